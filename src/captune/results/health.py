"""Does an adaptation look harmful? A check that needs no labels."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from captune.core.arrays import Floats, Ints, unit_rows
from captune.core.errors import InputError
from captune.core.scratch import fill_rows
from captune.labeling.neighborhood import nearest_neighbors

Verdict = Literal["helpful", "unclear", "harmful"]

N_NEIGHBORS = 10
MOST_QUERIES = 1000
MOST_EXPLAINED = 20_000
FEWEST_IMAGES = 50

# Chosen on simulated and real ways to adapt or to spoil classifiers of aerial photographs and of textile patterns, with
# classes balanced, 10:1 and 50:1 (docs/health-check.md says how often it is right, and on what it fails).
EXPLAINED_WEIGHT = 2.0
CLEAR_CHANGE = 0.02
MANY_CHANGED = 0.45
COLLAPSE = 0.6
COLLAPSE_EXCUSE = 0.1
EVEN = 0.97


@dataclass(frozen=True)
class HealthCheck:
    """What adaptation did to the predictions, judged without labels.

    Attributes:
        n_images: How many images were judged.
        agreement_before: Agreement of images with their nearest neighbors, 0 by chance and 1 complete.
        agreement_after: The same after adaptation.
        explained_before: Share of the variance of the embeddings that the predicted classes explain.
        explained_after: The same after adaptation.
        changed: Share of images whose predicted class changed.
        moved_mass: Share of predictions that would have to move to restore the class counts.
        classes_before: Effective number of predicted classes (the exponential of their entropy).
        classes_after: The same after adaptation.
        confidence_before: Mean highest probability.
        confidence_after: The same after adaptation.
        verdict: Whether adaptation looks helpful, harmful or neither.
        sentence: The verdict in words.
    """

    n_images: int
    agreement_before: float
    agreement_after: float
    explained_before: float
    explained_after: float
    changed: float
    moved_mass: float
    classes_before: float
    classes_after: float
    confidence_before: float
    confidence_after: float
    verdict: Verdict
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and words that strict JSON can hold."""
        return asdict(self)


def check_health(image_embeddings: Floats, before: Floats, after: Floats) -> HealthCheck:
    """Compare probabilities `(images, classes)` before and after adaptation on the images' own embeddings.

    `image_embeddings` come from the frozen backbone, so that the neighbors do not depend on the adaptation.
    """
    if before.shape != after.shape or before.ndim != 2 or len(image_embeddings) != len(before) or not len(before):
        raise InputError(
            "Expected embeddings (images, width) and two sets of probabilities (images, classes), "
            f"got {image_embeddings.shape}, {before.shape} and {after.shape}."
        )
    n_images, n_classes = before.shape
    queries = np.unique(np.linspace(0, n_images - 1, min(n_images, MOST_QUERIES)).astype(np.int64))
    unit = fill_rows(n_images, image_embeddings.shape[1], lambda rows: unit_rows(image_embeddings[rows]))
    neighbors = nearest_neighbors(unit, queries, N_NEIGHBORS)
    old = np.asarray(before.argmax(axis=1), dtype=np.int64)
    new = np.asarray(after.argmax(axis=1), dtype=np.int64)
    sample = np.unique(np.linspace(0, n_images - 1, min(n_images, MOST_EXPLAINED)).astype(np.int64))
    numbers = {
        "agreement_before": neighbor_agreement(old, queries, neighbors),
        "agreement_after": neighbor_agreement(new, queries, neighbors),
        "explained_before": explained_variance(image_embeddings[sample], old[sample]),
        "explained_after": explained_variance(image_embeddings[sample], new[sample]),
        "changed": float(np.mean(old != new)),
        "moved_mass": moved_mass(old, new, n_classes),
        "classes_before": effective_classes(old),
        "classes_after": effective_classes(new),
        "confidence_before": float(before.max(axis=1).mean()),
        "confidence_after": float(after.max(axis=1).mean()),
    }
    verdict, reason = _judge(n_images, n_classes, numbers)
    return HealthCheck(n_images=n_images, verdict=verdict, sentence=reason, **numbers)


def neighbor_agreement(predicted: Ints, queries: Ints, neighbors: Ints) -> float:
    """Return how often neighbors share their predicted class, 0 for what chance gives and 1 for always.

    Without the correction for chance, predicting one class for every image would agree perfectly; here it is 0.
    """
    shares = np.bincount(predicted) / len(predicted)
    by_chance = float(np.sum(shares**2))
    if neighbors.size == 0 or by_chance >= 1.0:
        return 0.0
    observed = float(np.mean(predicted[neighbors] == predicted[queries][:, None]))
    return (observed - by_chance) / (1.0 - by_chance)


def explained_variance(embeddings: Floats, predicted: Ints) -> float:
    """Return the share of the variance `(images, width)` that lies between the predicted classes.

    It is adjusted for the number of classes, so that splitting images at random gains nothing on average.
    """
    n_images = len(predicted)
    order = np.argsort(predicted, kind="stable")
    _, first, counts = np.unique(predicted[order], return_index=True, return_counts=True)
    centered = embeddings - embeddings.mean(axis=0)
    sums = np.add.reduceat(centered[order], first, axis=0)
    total = float(np.square(centered).sum())
    if total <= 1e-9 * n_images or len(counts) >= n_images:  # the same image throughout, or a class for each
        return 0.0
    between = float((np.square(sums).sum(axis=1) / counts).sum())
    return 1.0 - (1.0 - between / total) * (n_images - 1) / (n_images - len(counts))


def moved_mass(old: Ints, new: Ints, n_classes: int) -> float:
    """Return the total variation between two lists of predicted classes: 0 for equal counts, at most 1."""
    change = np.bincount(new, minlength=n_classes) - np.bincount(old, minlength=n_classes)
    return float(np.abs(change).sum() / (2 * len(old)))


def effective_classes(predicted: Ints) -> float:
    """Return how many equally frequent classes would have the entropy of the predicted ones."""
    counts = np.bincount(predicted)
    shares = counts[counts > 0] / len(predicted)
    return float(np.exp(-np.sum(shares * np.log(shares))))


def _judge(n_images: int, n_classes: int, numbers: dict[str, float]) -> tuple[Verdict, str]:
    if n_images < FEWEST_IMAGES:
        return "unclear", f"Too few images to judge ({n_images}, at least {FEWEST_IMAGES} are needed)."
    agreement = numbers["agreement_after"] - numbers["agreement_before"]
    gain = agreement + EXPLAINED_WEIGHT * (numbers["explained_after"] - numbers["explained_before"])
    facts = (
        f"agreement with look-alike images went from {numbers['agreement_before']:.2f} to "
        f"{numbers['agreement_after']:.2f}, the variance that the classes explain from "
        f"{numbers['explained_before']:.2f} to {numbers['explained_after']:.2f}, while {numbers['changed']:.0%} of the "
        "predictions changed"
    )
    if numbers["classes_after"] < COLLAPSE * numbers["classes_before"] and agreement < COLLAPSE_EXCUSE:
        return "harmful", (
            "Adaptation looks harmful: predictions fell together on about "
            f"{numbers['classes_after']:.0f} classes instead of {numbers['classes_before']:.0f}; {facts}."
        )
    # Many changes must win something: relabeling at random loses, and exchanging names wins nothing.
    if gain < (CLEAR_CHANGE if numbers["changed"] > MANY_CHANGED else -CLEAR_CHANGE):
        return "harmful", f"Adaptation looks harmful: {facts}."
    if gain > CLEAR_CHANGE:
        became_even = numbers["classes_before"] <= EVEN * n_classes < numbers["classes_after"]
        note = (
            " Classes are now predicted almost equally often: take care if your images are not." if became_even else ""
        )
        return "helpful", f"Adaptation looks helpful: {facts}.{note}"
    surer = numbers["confidence_after"] - numbers["confidence_before"] > 0.05
    note = " The model is surer of itself, but not more consistent." if surer else ""
    return "unclear", f"Adaptation looks neither helpful nor harmful: {facts}.{note}"
