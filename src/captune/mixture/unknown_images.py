"""Which images fit none of the class names, by embeddings alone or with a few answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from captune.core.arrays import Floats, as_embeddings, canonical_order, score_rows, unit_rows
from captune.core.errors import InputError
from captune.labeling.neighbors import nearest_neighbors

N_NEIGHBORS, NEIGHBOR_WIDTH, MOST_SMOOTHED = 10, 0.05, 4096
"""An image counts together with so many nearest ones, weighted by their similarity (in cosines of this width), unless
there are more images than the third number."""
TYPICAL_SHARE = 0.25
"""Share of the images predicted as a class, those nearest to its text, that show what the class looks like here."""
ANSWER, ANSWER_WIDTH, ANSWER_NOISE = 3.0, 0.4, 0.1
"""Score of an image that a person gave a class (negative for none of them), in standard deviations; how far answers
reach, in cosines; and how far they are doubted."""
MOST_ANSWERS = 2048


def fit_to_names(
    image_embeddings: ArrayLike,
    class_embeddings: ArrayLike,
    *,
    known: ArrayLike | None = None,
    unknown: ArrayLike | None = None,
) -> Floats:
    """Return how well each image fits the class names, from 0 (worst of all images) to 1 (best), `(images,)`.

    The result is a rank: 0.05 means that 95 % of the images fit better. `known` are embeddings of images that people
    gave a class, `unknown` of images of which they said that they fit none.

    Examples:
        Of 20 images, two show neither of the two classes.

        >>> import numpy as np
        >>> images = np.repeat(np.eye(3, 4), [9, 9, 2], axis=0) + 0.1 * np.random.default_rng(0).normal(size=(20, 4))
        >>> np.flatnonzero(fit_to_names(images, np.eye(2, 4)) < 0.1)
        array([18, 19])
    """
    images, texts = as_embeddings(image_embeddings, "images"), as_embeddings(class_embeddings, "classes")
    if images.shape[1] != texts.shape[1]:
        raise InputError(f"Expected embeddings of one width, got {images.shape[1]} and {texts.shape[1]}.")
    if not len(images):
        return np.empty(0, dtype=np.float32)
    order = canonical_order(images)
    ordered = images[order]
    center = ordered.mean(axis=0)
    scores = _scores(ordered, texts, center)
    answers = [
        np.empty((0, images.shape[1]), np.float32) if rows is None else as_embeddings(rows, "answers")
        for rows in (known, unknown)
    ]
    if len(answers[0]) + len(answers[1]):
        scores = _corrected(scores, ordered, center, *answers)
    ranks = np.empty(len(images), dtype=np.float32)
    ranks[order] = (_ranks(scores) + 0.5) / len(images)
    return ranks


def _scores(images: Floats, texts: Floats, center: Floats) -> Floats:
    """Return a score of fit, `(images,)`, of mean 0 and standard deviation 1.

    The sum of four views: the largest cosine; how far it exceeds the cosines of the name to all images (some texts are
    near to all images); the largest cosine once images and texts are centered; and the similarity to typical images of
    the predicted class.
    """
    cosines = score_rows(images, len(texts), lambda rows: rows @ texts.T)
    best, predicted = cosines.max(axis=1), cosines.argmax(axis=1)
    beyond_name = (cosines - cosines.mean(axis=0)).max(axis=1)
    centered, middle = unit_rows(images - center), unit_rows(texts - texts.mean(axis=0))
    beyond_means = score_rows(centered, len(texts), lambda rows: rows @ middle.T).max(axis=1)
    likeness = np.zeros(len(images), dtype=np.float32)
    for class_id in np.unique(predicted):
        own = np.flatnonzero(predicted == class_id)
        typical = own[np.argsort(-best[own], kind="stable")][: max(1, int(TYPICAL_SHARE * len(own)))]
        likeness[own] = centered[own] @ unit_rows((images[typical] - center).mean(axis=0, keepdims=True))[0]
    views = (best, beyond_name, beyond_means, likeness)
    total = np.sum([_standardized(view) for view in views], axis=0)
    if N_NEIGHBORS < len(images) <= MOST_SMOOTHED:
        near = nearest_neighbors(images, np.arange(len(images)), N_NEIGHBORS)
        similar = np.einsum("nw,nkw->nk", centered, centered[near])
        weights = np.exp((similar - similar.max(axis=1, keepdims=True)) / np.float32(NEIGHBOR_WIDTH))
        total = total + (weights * total[near]).sum(axis=1) / weights.sum(axis=1)
    return _standardized(total)


def _corrected(scores: Floats, images: Floats, center: Floats, known: Floats, unknown: Floats) -> Floats:
    """Return scores that answers correct around them: the posterior mean of a Gaussian process with these scores."""
    answered = np.concatenate([known[canonical_order(known)], unknown[canonical_order(unknown)]])
    wanted = np.repeat([ANSWER, -ANSWER], [len(known), len(unknown)])
    if len(answered) > MOST_ANSWERS:
        some = np.sort(canonical_order(answered)[:MOST_ANSWERS])
        answered, wanted = answered[some], wanted[some]
    rows, places = unit_rows(images - center), unit_rows(answered - center)
    # The score of an answered image is that of the most similar image here, which is itself if it is among them.
    similar = score_rows(rows, len(places), lambda part: part @ places.T)
    before = scores[similar.argmax(axis=0)]
    kernel = np.exp((similar - 1) / np.float32(ANSWER_WIDTH))
    among = np.exp((places @ places.T - 1) / ANSWER_WIDTH) + ANSWER_NOISE * np.eye(len(places))
    return np.asarray(scores + kernel @ np.linalg.solve(among, wanted - before), dtype=np.float32)


def _standardized(values: Floats) -> Floats:
    return np.asarray((values - values.mean()) / max(float(values.std()), 1e-5), dtype=np.float32)


def _ranks(values: Floats) -> Floats:
    """Return how many values are smaller, and half of those that are equal, `(values,)`."""
    ordered = np.sort(values)
    low, high = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return np.asarray((low + high - 1) / 2, dtype=np.float32)
