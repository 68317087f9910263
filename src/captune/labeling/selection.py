"""Which images get which pseudo-label: pure functions of embeddings or of scores `(images, classes)`.

All functions return images in ascending order and use each image at most once; ties go to the first image. The
`image_index` of a result holds rows of the scores; `PseudoLabels.reindexed` maps them to positions in a collection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from captune.core.arrays import Bools, Floats, Ints, as_embeddings, fill_rows, row_parts, softmax_rows
from captune.core.errors import InputError
from captune.labeling.pseudo_labels import PseudoLabels, Source

Classes: TypeAlias = Sequence[int] | Ints
Ranking = Literal["cosine", "probability"]

NEGLIGIBLE = 1e-7
"""A class with no more than this share of an image's probability is never a candidate of the image."""
ROWS_AT_ONCE = 8192
"""Images that propose to classes at once."""


def class_mask(classes: Classes | None, n_classes: int) -> Bools:
    """Return which classes are listed; None lists all."""
    if classes is None:
        return np.ones(n_classes, dtype=np.bool_)
    ids = np.asarray(classes, dtype=np.int64)
    if not ids.size or not 0 <= ids.min() <= ids.max() < n_classes:
        listed = f"{ids.min()}..{ids.max()}" if ids.size else "none"
        raise InputError(f"allowed: expected at least one class id, all in 0..{n_classes - 1}, got {listed}.")
    return np.isin(np.arange(n_classes), ids)


def first_labels(
    image_embeddings: ArrayLike,
    class_embeddings: ArrayLike,
    logit_scale: float = 100.0,
    described: Mapping[int, Floats] | None = None,
    *,
    k: int = 16,
    allowed: Classes | None = None,
    rank_described_by: Ranking = "cosine",
) -> PseudoLabels:
    """Return the top k images of each allowed class before any training (D_PL of Section 3.1).

    `described` maps each class with a misleading name to the embedding of its description, which replaces the class
    name. Zero-shot probabilities with these texts, over the allowed classes, make all classes comparable: an image
    that is among the top k of several classes goes to the most probable one, and the next image takes its place. A
    described class ranks images by their cosine with its description, and the others by their probability among the
    names, as in the paper; or all rank them by probability with these texts.

    The two kinds of score are never compared: a cosine of 0.3 says nothing beside a probability of 0.9. Ranking by
    cosine works better with good descriptions, ranking by probability with mediocre ones.

    Examples:
        The two most confident images of each of two classes; the third image is left without a label.

        >>> images = [[1.0, 0.0], [0.9, 0.1], [0.6, 0.5], [0.1, 0.9], [0.0, 1.0]]
        >>> found = first_labels(images, [[1.0, 0.0], [0.0, 1.0]], k=2)
        >>> found.image_index, found.labels
        (array([0, 1, 3, 4]), array([0, 0, 1, 1]))
    """
    images, names = as_embeddings(image_embeddings, "images"), as_embeddings(class_embeddings, "classes")
    described = described or {}
    n_images, (n_classes, width) = len(images), names.shape
    if images.shape[1] != width or any(c not in range(n_classes) or len(v) != width for c, v in described.items()):
        shapes = f"; described: { {c: np.shape(vector) for c, vector in described.items()} }" if described else ""
        raise InputError(
            "Expected embeddings (images, width) and (classes, width), and (width,) for each described id of a class, "
            f"got {images.shape} and {names.shape}{shapes}."
        )
    is_allowed = class_mask(allowed, n_classes)
    texts = names.copy()
    for class_id, embedding in described.items():
        texts[class_id] = embedding
    is_described = np.isin(np.arange(n_classes), list(described))
    ranks_by_cosine = is_described & (rank_described_by == "cosine")

    def probabilities(rows: slice, vectors: Floats) -> Floats:
        return softmax_rows(np.where(is_allowed, np.float32(logit_scale) * (images[rows] @ vectors.T), -np.inf))

    def wish(rows: slice) -> Floats:
        return np.where(is_allowed, probabilities(rows, texts), np.float32(-np.inf))

    preferences = priorities = fill_rows(n_images, n_classes, wish)
    if ranks_by_cosine.any():  # classes without a description rank by names alone
        priorities = fill_rows(
            n_images,
            n_classes,
            lambda rows: np.where(ranks_by_cosine, images[rows] @ texts.T, probabilities(rows, names)),
        )
    found = _assign(preferences, priorities, np.full(n_classes, k, dtype=np.int64))
    source = np.where(is_described[found.labels], int(Source.DESCRIPTION), int(Source.NAME))
    return replace(found, source=source)


def top_k_per_class(
    scores: ArrayLike, k: int | Ints, allowed: Classes | None = None, predicted_only: bool = False
) -> PseudoLabels:
    """Return the k images of highest score for each allowed class, each image in one class only.

    An image that is among the top k of several classes goes to the class it scores highest in, and the next image
    takes its place (`assign` with the scores on both sides). A class gets fewer than k images only if no free image
    is left. `k` may differ by class. With `predicted_only`, a class takes only images that score highest in it
    among the allowed classes.

    Examples:
        One image per class: class 0 takes image 1, so image 0 goes to class 1, where it scores highest.

        >>> found = top_k_per_class([[0.52, 0.48], [0.9, 0.1], [0.6, 0.4]], k=1)
        >>> found.image_index, found.labels
        (array([0, 1]), array([1, 0]))
    """
    scores = np.asarray(scores, dtype=np.float32)
    mask = class_mask(allowed, _check_scores(scores))

    def eligible(rows: slice) -> Bools:
        if not predicted_only:
            return np.broadcast_to(mask, scores[rows].shape)
        return np.where(mask, scores[rows], -np.inf).argmax(axis=1)[:, None] == np.arange(len(mask))

    return _assign_among(scores, eligible, k)


def candidate_sets(probabilities: Floats, alpha: float, beta: float, allowed: Classes | None = None) -> Bools:
    """Return the candidate classes of each image, `(images, classes)`, by the two rules of CPL.

    Within an image: the most probable classes, until their sum exceeds the alpha-quantile of all images' highest
    probabilities; classes of equal probability stay together, and a quantile of 1 admits all classes. Across images:
    only classes in which the image's probability is at least the beta-quantile over all images. As in the authors'
    code, a class is no candidate if it has at most 1e-7 of the probability of the classes that pass either rule. An
    image may have no candidate at all.
    """
    mask = class_mask(allowed, _check_scores(probabilities))
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not 0.0 <= value <= 1.0:
            raise InputError(f"{name}: expected a number from 0 to 1, got {value}.")
    if not len(probabilities):
        return np.zeros(probabilities.shape, dtype=np.bool_)
    own = probabilities.astype(np.float64)
    if allowed is not None:  # conditional on them; a row without any mass on them stays zero
        kept = np.where(mask, probabilities, 0.0)
        mass = kept.sum(axis=1, keepdims=True)
        own = (kept / np.where(mass > 0, mass, 1.0)).astype(np.float32).astype(np.float64)
    within = _most_probable(own, float(np.quantile(own.max(axis=1), alpha))) & mask
    across = (own >= np.quantile(own, beta, axis=0)) & mask
    mass = np.maximum(np.where(within, own, 0.0).sum(axis=1), np.where(across, own, 0.0).sum(axis=1))
    return within & across & (own > NEGLIGIBLE * mass[:, None])


def balanced_pools(probabilities: Floats, candidates: Bools, k: int | Ints) -> PseudoLabels:
    """Return at most k images per class, each assigned to one of its candidate classes.

    The label is the class to which an image was assigned; its candidates are kept with it. Images without a
    candidate, or rejected by all of them, are left out.
    """
    pools = _assign_among(probabilities, lambda rows: candidates[rows], k)
    return replace(pools, candidates=candidates[pools.image_index])


def pool_capacities(k: int, fills: Ints | None) -> int | Ints:
    """Return how many images each of CPL's pools may hold in a round, given the fills of the previous round.

    As in the authors' code, all pools gain as many places as the fullest one needs to reach k, so a class that was
    starved in the previous round stays small. In the first round, all pools hold k images.
    """
    return k if fills is None else np.minimum(fills + max(0, k - int(fills.max(initial=0))), k)


def growing_k(round_number: int, n_rounds: int, n_images: int, n_classes: int) -> int:
    """Return the number of images per class in a round of GRIP and CPL, counted from 1.

    In round i of n it is i * floor(images / n) / classes, rounded down, and at least one.
    """
    return max(1, min(round_number * (n_images // n_rounds) // n_classes, n_images // n_classes))


def add_confident(
    current: PseudoLabels, probabilities: Floats, n_new: int, allowed: Classes, epoch: int
) -> PseudoLabels:
    """Return CAP's D_PL with the n most confident new images of each class added (Appendix B).

    `probabilities` are those of all unlabeled images; an image can be added to the class it is predicted as.
    """
    unused = np.setdiff1d(np.arange(len(probabilities)), current.image_index)
    new = top_k_per_class(probabilities[unused], n_new, allowed, predicted_only=True)
    return current.extend(new.reindexed(unused).stamped(epoch, Source.MODEL))


def assign(preferences: Floats, priorities: Floats, quota: Ints) -> tuple[Ints, Ints]:
    """Return the assigned images in ascending order and the class of each, by deferred acceptance.

    Each image proposes to the class it prefers most. A class keeps the proposals of highest priority, up to its
    quota; rejected images propose to their next class until they are assigned or have no class left. `preferences`
    and `priorities` are `(images, classes)`; an image never proposes to a class of preference minus infinity. Ties go
    to the first image and the first class.

    If both matrices are the same, this is the only stable assignment. It then equals the greedy one: visit all pairs
    from the highest score down, and keep a pair if its image is free and its class has room.
    """
    n_images, n_classes = preferences.shape
    class_of_image = np.full(n_images, -1, dtype=np.int64)
    # What a proposal must beat: nothing while a class has room, then the weakest proposal that it keeps.
    cutoffs = np.where(quota > 0, -np.inf, np.inf).astype(priorities.dtype)
    cutoff_images = np.full(n_classes, n_images, dtype=np.int64)

    def next_choice(images: Ints) -> Ints:
        """Return the most preferred class that would accept each image now, or -1: cutoffs only rise."""
        wanted = preferences[images]
        priority = wanted if priorities is preferences else priorities[images]
        is_beaten = (priority > cutoffs) | ((priority == cutoffs) & (images[:, None] < cutoff_images))
        wanted = np.where(is_beaten, wanted, -np.inf)
        best = wanted.argmax(axis=1)
        return np.where(wanted[np.arange(len(images)), best] > -np.inf, best, -1)

    unassigned = np.arange(n_images, dtype=np.int64)
    while unassigned.size:
        parts = np.split(unassigned, np.arange(ROWS_AT_ONCE, len(unassigned), ROWS_AT_ONCE))
        class_of_image[unassigned] = np.concatenate([next_choice(part) for part in parts])
        proposed: Bools = np.zeros(n_classes + 1, dtype=np.bool_)
        proposed[class_of_image[unassigned]] = True
        proposed[-1] = False  # -1: no class would accept the image
        members = np.flatnonzero(proposed[class_of_image])
        classes = class_of_image[members]
        priority = priorities[members, classes]
        order = np.lexsort((members, -priority, classes))
        members, classes, priority = members[order], classes[order], priority[order]
        rank = np.arange(len(members)) - np.searchsorted(classes, classes)
        is_last = rank == quota[classes] - 1
        cutoffs[classes[is_last]] = priority[is_last]
        cutoff_images[classes[is_last]] = members[is_last]
        unassigned = np.asarray(members[rank >= quota[classes]], dtype=np.int64)
        class_of_image[unassigned] = -1
    assigned = np.flatnonzero(class_of_image >= 0)
    return np.asarray(assigned, dtype=np.int64), class_of_image[assigned]


def _most_probable(probabilities: NDArray[np.float64], limit: float) -> Bools:
    ranked = np.sort(probabilities, axis=1)[:, ::-1]
    # The sum of all probabilities is 1 up to rounding, so a limit of 1 would otherwise stop at random.
    n_kept = 1 + ((np.cumsum(ranked, axis=1)[:, :-1] <= limit) | (limit >= 1.0)).sum(axis=1)
    return np.asarray(probabilities >= ranked[np.arange(len(ranked)), n_kept - 1][:, None], dtype=np.bool_)


def _assign_among(scores: Floats, eligible: Callable[[slice], Bools], k: int | Ints) -> PseudoLabels:
    """Assign images by their scores, to eligible classes only."""
    n_images, n_classes = scores.shape
    quota = np.broadcast_to(np.asarray(k, dtype=np.int64), (n_classes,))
    if quota.min() < 0:
        raise InputError(f"k: expected 0 or more images per class, got {quota.min()}.")
    masked = fill_rows(n_images, n_classes, lambda rows: np.where(eligible(rows), scores[rows], np.float32(-np.inf)))
    return _assign(masked, masked, quota)


def _assign(preferences: Floats, priorities: Floats, quota: Ints) -> PseudoLabels:
    images, labels = assign(preferences, priorities, quota)
    return PseudoLabels.create(images, labels, np.asarray(preferences[images, labels], np.float32), len(quota))


def _check_scores(scores: Floats) -> int:
    if scores.ndim != 2 or scores.shape[1] < 1:
        raise InputError(f"scores: expected shape (images, classes), got {scores.shape}.")
    if any(np.isnan(scores[rows]).any() for rows in row_parts(*scores.shape)):
        raise InputError("scores: expected numbers, got nan.")
    return int(scores.shape[1])
