"""Which images get which pseudo-label: pure functions of embeddings or of scores `(images, classes)`.

All functions return images in ascending order and use each image at most once; ties go to the first image. The
`image_index` of a result holds rows of the scores; `PseudoLabels.reindexed` maps them to positions in a collection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from captune.core.arrays import Bools, Floats, Ints, as_embeddings, softmax_rows
from captune.core.errors import InputError, raise_all
from captune.core.scratch import fill_rows, row_parts
from captune.labeling.assignment import Scores, assign_in_parts
from captune.labeling.pseudo_labels import PseudoLabels, Source

Classes: TypeAlias = Sequence[int] | Ints
Ranking = Literal["cosine", "probability"]

_ROWS_AT_ONCE = 8192
NEGLIGIBLE = 1e-7
"""A class with no more than this share of an image's probability is never a candidate of the image."""


def class_mask(classes: Classes | None, n_classes: int) -> Bools:
    """Return which classes are listed; None lists all."""
    if classes is None:
        return np.ones(n_classes, dtype=np.bool_)
    ids = np.asarray(classes, dtype=np.int64)
    if not ids.size or not 0 <= ids.min() <= ids.max() < n_classes:
        listed = f"{ids.min()}..{ids.max()}" if ids.size else "none"
        raise InputError(f"allowed: expected at least one class id, all in 0..{n_classes - 1}, got {listed}.")
    mask = np.zeros(n_classes, dtype=np.bool_)
    mask[ids] = True
    return mask


def restrict_to(probabilities: Floats, allowed: Classes | None) -> Floats:
    """Return the probabilities conditional on the allowed classes: zero for the others, rows summing to one.

    A row without any mass on the allowed classes stays zero. With None, the input itself is returned.
    """
    _check_scores(probabilities)
    if allowed is None:
        return probabilities
    mask = class_mask(allowed, probabilities.shape[1])

    def part(rows: slice) -> Floats:
        kept = np.where(mask, probabilities[rows], 0.0)
        mass = kept.sum(axis=1, keepdims=True)
        return np.asarray(kept / np.where(mass > 0, mass, 1.0), dtype=np.float32)

    return fill_rows(len(probabilities), len(mask), part)


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
    _check_descriptions(images, names, described, rank_described_by)
    n_classes = len(names)
    is_allowed = class_mask(allowed, n_classes)
    texts = aligned_texts(names, described)
    is_described = np.isin(np.arange(n_classes), list(described))
    ranks_by_cosine = is_described & (rank_described_by == "cosine")

    def scores_of(rows: slice | Ints) -> Scores:
        cosines = np.asarray(images[rows] @ texts.T, dtype=np.float32)
        probabilities = softmax_rows(np.where(is_allowed, logit_scale * cosines, np.float32(-np.inf)))
        preferences = np.where(is_allowed, probabilities, np.float32(-np.inf))
        if ranks_by_cosine.any():  # classes without a description rank by names alone
            by_name = logit_scale * np.asarray(images[rows] @ names.T, dtype=np.float32)
            probabilities = softmax_rows(np.where(is_allowed, by_name, np.float32(-np.inf)))
        return Scores(preferences, np.where(ranks_by_cosine, cosines, probabilities))

    quota = np.full(n_classes, k, dtype=np.int64)
    chosen, labels, confidence = assign_in_parts(len(images), scores_of, quota)
    return PseudoLabels(
        chosen,
        labels,
        confidence,
        n_classes,
        round=np.zeros(len(chosen), dtype=np.int64),
        source=np.where(is_described[labels], int(Source.DESCRIPTION), int(Source.NAME)),
    )


def aligned_texts(class_embeddings: Floats, described: Mapping[int, Floats]) -> Floats:
    """Return a copy of the class embeddings in which descriptions replace the names of some classes."""
    texts = np.array(class_embeddings, dtype=np.float32)
    for class_id, embedding in described.items():
        texts[class_id] = embedding
    return texts


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
    n_classes = _check_scores(scores)
    quota = _quota(k, n_classes)
    mask = class_mask(allowed, n_classes)

    def eligible(rows: slice | Ints) -> Floats:
        masked = np.where(mask, scores[rows], np.float32(-np.inf))
        if not predicted_only:
            return masked
        best = masked.argmax(axis=1)[:, None]
        only = np.full_like(masked, -np.inf)
        np.put_along_axis(only, best, np.take_along_axis(masked, best, axis=1), axis=1)
        return only

    return _assign_by_score(len(scores), eligible, quota)


def candidate_sets(probabilities: Floats, alpha: float, beta: float, allowed: Classes | None = None) -> Bools:
    """Return the candidate classes of each image, `(images, classes)`, by the two rules of CPL.

    Within an image: the most probable classes, until their sum exceeds the alpha-quantile of all images' highest
    probabilities; classes of equal probability stay together, and a quantile of 1 admits all classes. Across images:
    only classes in which the image's probability is at least the beta-quantile over all images. As in the authors'
    code, a class is no candidate if it has at most 1e-7 of the probability of the classes that pass either rule. An
    image may have no candidate at all.
    """
    conditional = restrict_to(probabilities, allowed)
    _check_share("alpha", alpha)
    _check_share("beta", beta)
    if not len(conditional):
        return np.zeros(conditional.shape, dtype=np.bool_)
    limit = np.quantile(conditional.max(axis=1).astype(np.float64), alpha)
    mask = class_mask(allowed, conditional.shape[1])
    candidates = np.zeros(conditional.shape, dtype=np.bool_)
    across = np.zeros(len(conditional), dtype=np.float64)
    least = np.zeros(conditional.shape[1], dtype=np.float64)
    for column in np.flatnonzero(mask):
        values = conditional[:, column].astype(np.float64)
        least[column] = np.quantile(values, beta)
        across += np.where(values >= least[column], values, 0.0)
    for start in range(0, len(conditional), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        own = conditional[rows].astype(np.float64)
        within = _most_probable(conditional[rows], limit) & mask
        mass = np.maximum(np.where(within, own, 0.0).sum(axis=1), across[rows])
        candidates[rows] = within & (own >= least) & (own > NEGLIGIBLE * mass[:, None])
    return candidates


def balanced_pools(probabilities: Floats, candidates: Bools, k: int | Ints) -> PseudoLabels:
    """Return at most k images per class, each assigned to one of its candidate classes.

    The label is the class to which an image was assigned; its candidates are kept with it. Images without a
    candidate, or rejected by all of them, are left out.
    """
    n_classes = _check_scores(probabilities)
    if candidates.shape != probabilities.shape:
        raise InputError(f"candidates: expected shape {probabilities.shape}, got {candidates.shape}.")
    pools = _assign_by_score(
        len(probabilities),
        lambda rows: np.where(candidates[rows], probabilities[rows], np.float32(-np.inf)),
        _quota(k, n_classes),
    )
    return PseudoLabels.create(
        pools.image_index,
        pools.labels,
        pools.confidence,
        n_classes,
        candidates=candidates[pools.image_index],
    )


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


def _most_probable(probabilities: Floats, limit: float) -> Bools:
    ranked = np.sort(probabilities, axis=1)[:, ::-1].astype(np.float64)
    sum_before = np.cumsum(ranked, axis=1)[:, :-1]
    # The sum of all probabilities is 1 up to rounding, so a limit of 1 would otherwise stop at random.
    n_kept = 1 + ((sum_before <= limit) | (limit >= 1.0)).sum(axis=1)
    least = ranked[np.arange(len(ranked)), n_kept - 1]
    return np.asarray(probabilities >= least[:, None], dtype=np.bool_)


def _assign_by_score(n_images: int, eligible: Callable[[slice | Ints], Floats], quota: Ints) -> PseudoLabels:
    """Assign images by their scores; minus infinity excludes an image from a class."""

    def scores_of(rows: slice | Ints) -> Scores:
        masked = eligible(rows)
        return Scores(masked, masked)

    images, labels, confidence = assign_in_parts(n_images, scores_of, quota)
    return PseudoLabels.create(images, labels, np.asarray(confidence, dtype=np.float32), len(quota))


def _quota(k: int | Ints, n_classes: int) -> Ints:
    quota = np.broadcast_to(np.asarray(k, dtype=np.int64), (n_classes,))
    if quota.min() < 0:
        raise InputError(f"k: expected 0 or more images per class, got {quota.min()}.")
    return quota


def _check_scores(scores: Floats) -> int:
    if scores.ndim != 2 or scores.shape[1] < 1:
        raise InputError(f"scores: expected shape (images, classes), got {scores.shape}.")
    if any(np.isnan(scores[rows]).any() for rows in row_parts(len(scores), scores.shape[1])):
        raise InputError("scores: expected numbers, got nan.")
    return int(scores.shape[1])


def _check_share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise InputError(f"{name}: expected a number from 0 to 1, got {value}.")


def _check_descriptions(
    image_embeddings: Floats, class_embeddings: Floats, described: Mapping[int, Floats], ranking: str
) -> None:
    width = class_embeddings.shape[-1]
    if image_embeddings.ndim != 2 or image_embeddings.shape[1] != width or class_embeddings.ndim != 2:
        raise InputError(
            "Expected embeddings (images, width) and (classes, width), "
            f"got {image_embeddings.shape} and {class_embeddings.shape}."
        )
    problems = [
        f"class {class_id}: expected an id in 0..{len(class_embeddings) - 1} and a vector of shape ({width},), "
        f"got shape {np.shape(embedding)}"
        for class_id, embedding in described.items()
        if not 0 <= class_id < len(class_embeddings) or np.shape(embedding) != (width,)
    ]
    if ranking not in ("cosine", "probability"):
        problems.append(f"rank_described_by: expected 'cosine' or 'probability', got {ranking!r}")
    raise_all(problems, "These descriptions cannot be used")
