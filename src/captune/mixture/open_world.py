"""The open world: class names that no image shows, and images that fit none of the names.

People pass long lists of names, of which a collection may show a few. Shares of the names that maximize the likelihood
of all images find these, but they also drop names that are present and hardly recognized. How far they are believed
therefore depends on how much the predicted class sizes differ: sizes of classes that are all present differ by wrong
labels and by chance alone. Images are ranked by how well they fit, by embeddings alone or with a few answers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from captune.core.arrays import Bools, Floats, Ints, as_embeddings, canonical_order, score_rows, unit_rows
from captune.core.errors import InputError
from captune.embeddings.similarity import nearest_neighbors

POWER = 4
"""How fast shares are drawn to an even split where wrong labels and chance explain how much class sizes differ."""
FEWEST_EXPECTED = 1.0
"""A name with fewer expected images is absent; where class sizes are as even as this, fewer are expected of all."""
MOST_STEPS, STANDS_STILL = 200, 1e-6
N_NEIGHBORS, NEIGHBOR_WIDTH, MOST_SMOOTHED = 10, 0.05, 4096
"""An image counts together with so many nearest ones, weighted by their similarity (in cosines of this width), unless
there are more images than the third number."""
SAME = 0.9999
"""Cosine beyond which an image is taken for one of the reference, whose embeddings may have been rounded to float16."""
TYPICAL_SHARE = 0.25
"""Share of the images predicted as a class, those nearest to its text, that show what the class looks like here."""
ANSWER, ANSWER_WIDTH, ANSWER_NOISE = 3.0, 0.4, 0.1
"""Score of an image that a person gave a class (negative for none of them), in standard deviations; how far answers
reach, in cosines; and how far they are doubted."""
MOST_ANSWERS = 2048


def find_absent(probabilities: Floats, labels: Ints, n_images: int | None = None) -> Bools:
    """Return which class names no image seems to show, by zero-shot probabilities `(images, classes)`.

    The images may be a sample of `n_images`. A class with labels `(labels,)` is never absent, nor is one that no image
    may have (probability zero everywhere).

    Examples:
        Ten names of which two are shown; the others get a few images by mistake.

        >>> import numpy as np
        >>> scores = np.random.default_rng(0).normal(size=(200, 10))
        >>> scores[np.arange(200), np.arange(200) % 2] += 3
        >>> probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        >>> np.flatnonzero(~find_absent(probabilities, labels=[]))
        array([0, 1])
    """
    absent = np.zeros(probabilities.shape[1], dtype=np.bool_)
    names = np.flatnonzero(probabilities.any(axis=0))
    rows = np.asarray(probabilities[:, names], dtype=np.float32)
    if len(names) < 3 or not len(rows):  # of two names, a person wants to know which one
        return absent
    evenness = even_share(rows)
    if evenness < 1:
        expected = expected_images(rows, evenness) * (1.0 if n_images is None else n_images / len(rows))
        expected[np.isin(names, labels)] = np.inf
        is_absent = expected < FEWEST_EXPECTED * (1 - evenness)
        is_absent[expected.argmax()] = False
        absent[names] = is_absent
    return absent


def even_share(probabilities: Floats) -> float:
    """Return how far wrong labels and chance explain that class sizes differ, from 0 (not at all) to 1.

    With a share e of wrong labels, sizes vary by about e times their mean, and by chance as counts do.
    """
    n_images, n_classes = probabilities.shape
    sizes = np.bincount(probabilities.argmax(axis=1), minlength=n_classes)
    error = 1.0 - float(probabilities.max(axis=1).mean())
    variation = float(np.square(sizes / sizes.mean() - 1).mean())
    return float(min(1.0, (error**2 + n_classes / n_images) / max(variation, 1e-9)) ** POWER)


def expected_images(probabilities: Floats, evenness: float) -> Floats:
    """Return the expected number of images of each class, `(classes,)`, by expectation-maximization of class shares.

    In each step, shares are drawn to an even split: entirely with evenness 1, and not at all with 0 (label shift,
    Saerens et al., 2002).
    """
    n_images, n_classes = probabilities.shape
    shares = np.full(n_classes, 1.0 / n_classes)
    for _ in range(MOST_STEPS):
        counts = shares * (probabilities.T @ (1.0 / np.maximum(probabilities @ shares, 1e-30)))
        before, shares = shares, counts ** (1.0 - evenness)
        shares /= shares.sum()
        if np.abs(shares - before).max() < STANDS_STILL:
            break
    return np.asarray(n_images * shares, dtype=np.float32)


def fit_to_names(
    image_embeddings: ArrayLike,
    class_embeddings: ArrayLike,
    *,
    known: ArrayLike | None = None,
    unknown: ArrayLike | None = None,
    scores: Floats | None = None,
) -> Floats:
    """Return how well each image fits the class names, from 0 (worst of all images) to 1 (best), `(images,)`.

    The result is a rank: 0.05 means that 95 % of the images fit better. `known` are embeddings of images that people
    gave a class, `unknown` of images of which they said that they fit none. `scores` are those of `score_fits`, if they
    are known.

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
    scores = score_fits(images, texts) if scores is None else scores
    answers = [images[:0] if rows is None else as_embeddings(rows, "answers") for rows in (known, unknown)]
    if len(answers[0]) + len(answers[1]):
        order, corrected = canonical_order(images), np.empty_like(scores)
        corrected[order] = _corrected(scores[order], images[order], *answers)
        scores = corrected
    return np.float32(_mean_ranks(scores, scores)) / len(images)


def fit_of_new_images(image_embeddings: ArrayLike, class_embeddings: ArrayLike, reference: ArrayLike) -> Floats:
    """Return the rank that each image would have among the images of `reference`, whatever the others are, `(images,)`.

    Examples:
        >>> import numpy as np
        >>> known = np.repeat(np.eye(2, 4), 9, axis=0) + 0.1 * np.random.default_rng(0).normal(size=(18, 4))
        >>> new = np.eye(3, 4) + 0.1
        >>> fit_of_new_images(new, np.eye(2, 4), known) < 0.1
        array([False, False,  True])
    """
    images, texts = as_embeddings(image_embeddings, "images"), as_embeddings(class_embeddings, "classes")
    known = as_embeddings(reference, "reference")
    known = known[canonical_order(known)]
    totals = _totals(known, texts, known)
    scores, here = _smoothed(totals, known, known), _smoothed(totals, known, images, _totals(images, texts, known))
    return np.asarray((_mean_ranks(here, scores) + 0.5) / (len(known) + 1), dtype=np.float32)


def score_fits(images: Floats, texts: Floats) -> Floats:
    """Return a score of fit without answers, `(images,)`, of mean 0 and standard deviation 1."""
    images, texts = as_embeddings(images, "images"), as_embeddings(texts, "classes")
    order, scores = canonical_order(images), np.empty(len(images), dtype=np.float32)
    ordered = images[order]
    scores[order] = _standardized(_smoothed(_totals(ordered, texts, ordered), ordered, ordered))
    return scores


def _totals(images: Floats, texts: Floats, reference: Floats) -> Floats:
    """Return the sum of four views of fit, each standardized over the reference, `(images,)`.

    They are the largest cosine; how far it exceeds the cosines of the name to all images (some texts are near to all
    images); the largest cosine once images and texts are centered; and the similarity to typical images of the
    predicted class.
    """
    center, middle = reference.mean(axis=0), unit_rows(texts - texts.mean(axis=0))
    shown = score_rows(reference, len(texts), lambda rows: rows @ texts.T)
    best, predicted = shown.max(axis=1), shown.argmax(axis=1)
    typical = np.zeros((len(texts), images.shape[1]), dtype=np.float32)
    for class_id in np.unique(predicted):
        own = np.flatnonzero(predicted == class_id)
        chosen = own[np.argsort(-best[own], kind="stable")][: max(1, int(TYPICAL_SHARE * len(own)))]
        typical[class_id] = unit_rows((reference[chosen] - center).mean(axis=0, keepdims=True))[0]

    def views(rows: Floats) -> tuple[Floats, ...]:
        cosines = shown if rows is reference else score_rows(rows, len(texts), lambda part: part @ texts.T)
        centered, classes = unit_rows(rows - center), cosines.argmax(axis=1)
        beyond_means = score_rows(centered, len(texts), lambda part: part @ middle.T).max(axis=1)
        likeness = np.zeros(len(rows), dtype=np.float32)
        for class_id in np.unique(classes):
            own = np.flatnonzero(classes == class_id)
            likeness[own] = centered[own] @ typical[class_id]
        return cosines.max(axis=1), (cosines - shown.mean(axis=0)).max(axis=1), beyond_means, likeness

    expected = views(reference)
    found = expected if images is reference else views(images)
    return np.sum([_standardized(view, usual) for view, usual in zip(found, expected, strict=True)], axis=0)


def _smoothed(totals: Floats, reference: Floats, images: Floats, own: Floats | None = None) -> Floats:
    """Return totals plus those of similar images of the reference; `own` are the totals of other images."""
    if not N_NEIGHBORS < len(reference) <= MOST_SMOOTHED:
        return totals if own is None else own
    center = reference.mean(axis=0)
    places, rows = unit_rows(reference - center), unit_rows(images - center)
    if own is None:
        near = nearest_neighbors(reference, np.arange(len(reference)), N_NEIGHBORS)
    else:
        distances = score_rows(images, len(reference), lambda part: -part @ reference.T)
        distances[distances < -SAME] = 1.0  # the image itself, which is no neighbor
        near = np.argsort(distances, axis=1, kind="stable")[:, :N_NEIGHBORS]
    similar = np.einsum("nw,nkw->nk", rows, places[near])
    weights = np.exp((similar - similar.max(axis=1, keepdims=True)) / np.float32(NEIGHBOR_WIDTH))
    return (totals if own is None else own) + (weights * totals[near]).sum(axis=1) / weights.sum(axis=1)


def _corrected(scores: Floats, images: Floats, known: Floats, unknown: Floats) -> Floats:
    """Return scores that answers correct around them: the posterior mean of a Gaussian process with these scores."""
    answered = np.concatenate([known[canonical_order(known)], unknown[canonical_order(unknown)]])
    wanted = np.repeat([ANSWER, -ANSWER], [len(known), len(unknown)])
    if len(answered) > MOST_ANSWERS:
        some = np.sort(canonical_order(answered)[:MOST_ANSWERS])
        answered, wanted = answered[some], wanted[some]
    center = images.mean(axis=0)
    rows, places = unit_rows(images - center), unit_rows(answered - center)
    # The score of an answered image is that of the most similar image here, which is itself if it is among them.
    similar = score_rows(rows, len(places), lambda part: part @ places.T)
    before = scores[similar.argmax(axis=0)]
    kernel = np.exp((similar - 1) / np.float32(ANSWER_WIDTH))
    among = np.exp((places @ places.T - 1) / ANSWER_WIDTH) + ANSWER_NOISE * np.eye(len(places))
    return np.asarray(scores + kernel @ np.linalg.solve(among, wanted - before), dtype=np.float32)


def _standardized(values: Floats, usual: Floats | None = None) -> Floats:
    usual = values if usual is None else usual
    return np.asarray((values - usual.mean()) / max(float(usual.std()), 1e-5), dtype=np.float32)


def _mean_ranks(values: Floats, among: Floats) -> NDArray[np.float64]:
    """Return how many of the others are smaller, and half of those that are equal, `(values,)`."""
    ordered = np.sort(among)
    low, high = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return np.asarray((low + high) / 2)
