"""The health check: does an adaptation look helpful or harmful? It needs no labels, but uses those that there are.

Accuracy before and after is estimated with a reference that does not know the adaptation: a Gaussian mixture next to
the class texts and labels, fitted to one half of the images and applied to the other. The halves are drawn within
predicted classes, several times. How far the estimate can be trusted is reported in docs/health-check.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from captune.core.arrays import Bools, Floats, Ints, as_embeddings, canonical_order, softmax_rows
from captune.core.errors import InputError
from captune.embeddings.similarity import nearest_neighbors, neighbor_agreement
from captune.mixture.gaussian_mixture import fit_gaussian_mixture

Verdict = Literal["helpful", "unclear", "harmful"]

N_NEIGHBORS = 10
MOST_QUERIES = 1000
MOST_JUDGED = 20_000
FEWEST_IMAGES = 50

# Chosen on half of the runs of benchmarks/verdict.py; docs/health-check.md reports the other half.
HELPFUL_ABOVE, HARMFUL_BELOW = 0.003, -0.01
"""Estimated changes of accuracy that are clear, if they also exceed two standard errors."""
ERRORS = 2.0
FEWER_CLASSES, COLLAPSE = 0.8, 0.6
"""Below the first share of the effective classes that are to be expected, nothing is called helpful; below the second,
it is harmful unless the estimate rises. To be expected are those before, or of the reference if it has fewer."""
FEWEST_SPLITS, MOST_SPLITS = 2, 6
SPLIT_ERROR = 1 / 3
"""Splits are added until their part of the standard error is below this share of the images' part."""

ADVICE = "Label a few images to find out."


@dataclass(frozen=True)
class HealthCheck:
    """How adaptation changed the predictions, judged without labels or with a few.

    Attributes:
        expected_change: Estimated change of accuracy, from -1 to 1.
        standard_error: Its standard error, as far as it comes from the number of images and from the random halves.
        agreement_before: How often an image and its nearest neighbors share a class, from 0 (chance) to 1 (always).
        changed: Share of images whose predicted class changed.
        classes_before: Effective number of predicted classes (exponential of the entropy).
    """

    n_images: int
    expected_change: float
    standard_error: float
    agreement_before: float
    agreement_after: float
    changed: float
    classes_before: float
    classes_after: float
    confidence_before: float
    confidence_after: float
    verdict: Verdict
    sentence: str
    n_labels: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return asdict(self)


def check_health(
    image_embeddings: ArrayLike,
    before: ArrayLike,
    after: ArrayLike,
    class_embeddings: ArrayLike,
    logit_scale: float = 100.0,
    *,
    labeled: ArrayLike | None = None,
    labels: ArrayLike | None = None,
) -> HealthCheck:
    """Compare probabilities `(images, classes)` before and after adaptation, on embeddings of the frozen backbone.

    The reference uses the class texts `class_embeddings` `(classes, width)` and, if there are any, embeddings of
    labeled images `(labels, width)` with their class ids `(labels,)`.

    Examples:
        Half of the images of two clear clusters are predicted wrongly after a bad adaptation.

        >>> import numpy as np
        >>> images = np.repeat(np.eye(2, 3), 50, axis=0)
        >>> images += 0.05 * np.random.default_rng(0).normal(size=images.shape)
        >>> right = np.repeat(np.eye(2), 50, axis=0)
        >>> wrong = np.tile(np.eye(2), (50, 1))
        >>> check_health(images, before=right, after=wrong, class_embeddings=np.eye(2, 3)).verdict
        'harmful'
    """
    unit, texts = as_embeddings(image_embeddings, "images"), as_embeddings(class_embeddings, "classes")
    before, after = np.asarray(before, dtype=np.float32), np.asarray(after, dtype=np.float32)
    if before.shape != after.shape or before.shape != (len(unit), len(texts)) or not len(unit):
        raise InputError(
            f"Expected two sets of probabilities of shape (images, classes) = ({len(unit)}, {len(texts)}), "
            f"got {before.shape} and {after.shape}."
        )
    n_images, n_classes = before.shape
    order = canonical_order(unit)  # the same images have the same verdict, whatever their order
    unit, before, after = unit[order], before[order], after[order]
    queries = np.arange(min(n_images, MOST_QUERIES))
    neighbors = nearest_neighbors(unit, queries, N_NEIGHBORS)
    old, new = (np.asarray(rows.argmax(axis=1), dtype=np.int64) for rows in (before, after))
    sample = slice(0, MOST_JUDGED)
    ids = np.asarray([] if labels is None else labels, dtype=np.int64)
    known = as_embeddings(labeled, "labeled images") if labeled is not None and len(ids) else None
    change, error, reference = expected_change(unit[sample], texts, logit_scale, old[sample], new[sample], known, ids)
    numbers = {"expected_change": change, "standard_error": error, "changed": float(np.mean(old != new))}
    for when, predicted, probabilities in (("before", old, before), ("after", new, after)):
        numbers |= {
            f"agreement_{when}": neighbor_agreement(predicted, queries, neighbors),
            f"classes_{when}": effective_classes(predicted),
            f"confidence_{when}": float(probabilities.max(axis=1).mean()),
        }
    n_expected = min(numbers["classes_before"], effective_classes(reference))
    verdict, reason = _judge(n_images, numbers, len(ids), n_classes, n_expected)
    return HealthCheck(n_images=n_images, verdict=verdict, sentence=reason, n_labels=len(ids), **numbers)


def expected_change(
    images: Floats,
    texts: Floats,
    logit_scale: float,
    old: Ints,
    new: Ints,
    labeled: Floats | None = None,
    labels: Ints | None = None,
) -> tuple[float, float, Ints]:
    """Return the estimated change of accuracy from `old` to `new` predictions `(images,)`, and its standard error.

    The mean over the images of p(new) - p(old), where p are the probabilities of a Gaussian mixture that was fitted to
    the other half of the images, and to all labeled ones. A method that fits these very images cannot raise it by
    fitting them. The labels that this reference gives, `(images,)`, are returned, too.
    """
    n_images, rule = len(images), np.float32(logit_scale) * np.asarray(texts, dtype=np.float32)
    total, means, spreads = np.zeros((n_images, len(texts)), dtype=np.float32), list[float](), list[float]()
    while len(means) < MOST_SPLITS:
        is_first = _halve(old, len(means))
        change = np.zeros(n_images)
        for fitted, judged in ((is_first, ~is_first), (~is_first, is_first)):
            if not (fitted.any() and judged.any()):
                continue
            mixture = fit_gaussian_mixture(images[fitted], texts, logit_scale, labeled=labeled, labels=labels)
            scores = images[judged] @ (rule + mixture.weights).T + mixture.offsets
            probabilities = softmax_rows(scores / np.float32(mixture.temperature))
            rows = np.arange(len(probabilities))
            change[judged] = probabilities[rows, new[judged]] - probabilities[rows, old[judged]]
            total[judged] += probabilities
        means.append(float(change.mean()))
        spreads.append(float(change.std()))
        of_images = float(np.mean(spreads) / np.sqrt(n_images))
        of_splits = float(np.std(means, ddof=1) / np.sqrt(len(means))) if len(means) > 1 else np.inf
        if len(means) >= FEWEST_SPLITS and of_splits <= SPLIT_ERROR * of_images:
            break
    return float(np.mean(means)), float(np.hypot(of_images, of_splits)), total.argmax(axis=1)


def _halve(predicted: Ints, number: int) -> Bools:
    """Return the first of two random halves in which every predicted class is equally frequent."""
    chance = np.random.default_rng(number).permutation(len(predicted))
    is_first = np.empty(len(predicted), dtype=np.bool_)
    is_first[np.lexsort((chance, predicted))] = np.arange(len(predicted)) % 2 == 0
    return is_first


def effective_classes(predicted: Ints) -> float:
    """Return the exponential of the entropy of the predicted classes."""
    counts = np.bincount(predicted)
    shares = counts[counts > 0] / len(predicted)
    return float(np.exp(-np.sum(shares * np.log(shares))))


def _judge(
    n_images: int, numbers: dict[str, float], n_labels: int, n_classes: int, n_expected: float
) -> tuple[Verdict, str]:
    if n_images < FEWEST_IMAGES:
        return "unclear", f"Too few images to judge ({n_images}, at least {FEWEST_IMAGES} are needed)."
    change, error = numbers["expected_change"], numbers["standard_error"]
    remaining = numbers["classes_after"] / max(n_expected, 1e-9)
    source = f", judged with {n_labels} labels" if n_labels else ""
    advice = "" if n_labels >= n_classes else f" {ADVICE}"
    facts = (
        f"estimated change of accuracy {100 * change:+.1f} points (standard error {100 * error:.1f}{source}), "
        f"{numbers['changed']:.0%} of the predictions changed"
    )
    is_gain = change > HELPFUL_ABOVE and change > ERRORS * error
    # The reference has its names from the same texts. Where these are hardly recognized, its clusters may be clean and
    # their names a guess, so it cannot speak for an adaptation that overturns more than zero-shot was confident of.
    # With a label per class, the names are not a guess any more.
    is_guess = numbers["changed"] > numbers["confidence_before"] and n_labels < n_classes
    if remaining < COLLAPSE and not is_gain:
        collapse = f"from about {n_expected:.0f} classes to {numbers['classes_after']:.0f}"
        return "harmful", f"Adaptation looks harmful: predictions collapsed {collapse}; {facts}."
    if change < HARMFUL_BELOW and change < -ERRORS * error:
        return "harmful", f"Adaptation looks harmful: {facts}."
    if is_gain and not is_guess and remaining >= FEWER_CLASSES:
        names = "" if n_labels else "; whether names fit their images was not verified"
        alike = f"Similar images share a class in {numbers['agreement_after']:.0%} of cases beyond chance"
        return "helpful", f"Adaptation looks helpful: {facts}. {alike}{names}.{advice}"
    if is_gain and is_guess:
        sure = f"{numbers['confidence_before']:.0%}"
        facts += f", more than zero-shot was confident of ({sure}): clusters may have wrong names"
    return "unclear", f"Cannot tell whether adaptation helps: {facts}.{advice}"
