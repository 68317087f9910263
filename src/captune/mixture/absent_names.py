"""Which class names no image shows, by the zero-shot probabilities of all images together.

People pass long lists of names, of which a collection may show a few. Shares of the names that maximize the likelihood
of all images find these, but they also drop names that are present and hardly recognized. How far they are believed
therefore depends on how much the predicted class sizes differ: sizes of classes that are all present differ by wrong
labels and by chance alone.
"""

from __future__ import annotations

import numpy as np

from captune.core.arrays import Bools, Floats, Ints

POWER = 4
"""How fast shares are drawn to an even split where wrong labels and chance explain how much class sizes differ."""
FEWEST_EXPECTED = 1.0
"""A name with fewer expected images is absent; where class sizes are as even as this, fewer are expected of all."""
MOST_STEPS, STANDS_STILL = 200, 1e-6


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
