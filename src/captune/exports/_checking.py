"""Comparing an exported model with PyTorch on real images, before anything is written."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Floats, Ints, evenly_spaced
from captune.core.errors import CaptuneError, InputError
from captune.core.wording import option
from captune.data.images import find_images
from captune.data.labels import read_labels
from captune.exports.base import ExportSettings
from captune.results.image_classifier import read_view
from captune.results.run import Run

TOLERANCE = 1e-4
N_CHECKED = 64
BATCH = 32

Score = Callable[[NDArray[np.uint8]], Floats]


@dataclass(frozen=True, eq=False)
class Examples:
    """Images with the probabilities that PyTorch computes for them.

    Attributes:
        views: Decoded images `(images, height, width, 3)`.
        probabilities: Probabilities computed by PyTorch, `(images, classes)`.
        truth: Class ids, -1 where unknown; None without labels.
    """

    views: NDArray[np.uint8]
    probabilities: Floats
    truth: Ints | None


def read_examples(run: Run, settings: ExportSettings) -> Examples:
    """Read an evenly spaced sample of the run's images (or of --images) and classify it with PyTorch."""
    classifier = run.classifier
    if not classifier.backbone.has_image_encoder:
        raise InputError(
            f"The run {str(run.folder)!r} was made from embeddings and has no image encoder to export. Adapt with a "
            "backbone, or export its labels (csv, parquet, label-studio, coco, cleanlab)."
        )
    images = run.readable if settings.images is None else find_images(settings.images)
    truth = None if settings.labels is None else read_labels(settings.labels, images, classifier.names)
    candidates = np.arange(len(images)) if truth is None else np.flatnonzero(truth >= 0)
    if len(candidates):
        most = settings.n_checked or (N_CHECKED if truth is None else len(candidates))
        candidates = candidates[evenly_spaced(len(candidates), most)]
    views = {i: read_view(images, i, classifier.preprocessing) for i in candidates.tolist()}
    readable = {i: view for i, view in views.items() if not isinstance(view, str)}
    if not readable:
        raise InputError(
            f"No {'labeled ' if truth is not None else ''}image can be read at {str(images.root)!r}, but an export is "
            f"checked with real images. Pass a folder of images as {option('images')}."
        )
    stacked = np.stack(list(readable.values()))
    parts = [classifier.score_views(stacked[i : i + BATCH]) for i in range(0, len(stacked), BATCH)]
    return Examples(stacked, np.concatenate(parts), None if truth is None else truth[list(readable)])


def compare(score: Score, examples: Examples) -> dict[str, Any]:
    """Return the differences between a model and PyTorch, its time per image, and its accuracy if labels are known."""
    views, expected = examples.views, examples.probabilities
    # A single image, then batches: a model that was traced with a fixed batch size fails here.
    starts = [0, *range(1, len(views), BATCH)]
    found = np.concatenate([score(views[a:b]) for a, b in zip(starts, [*starts[1:], len(views)], strict=True)])
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        score(views[:1])
        seconds.append(time.perf_counter() - started)
    facts: dict[str, Any] = {
        "n_images": len(views),
        "max_difference": float(np.abs(found - expected).max()),
        "mean_difference": float(np.abs(found - expected).mean()),
        "same_top_1": float((found.argmax(axis=1) == expected.argmax(axis=1)).mean()),
        "seconds_per_image": round(float(np.median(seconds)), 5),
    }
    if examples.truth is not None:
        facts["accuracy"] = float((found.argmax(axis=1) == examples.truth).mean())
        facts["accuracy_pytorch"] = float((expected.argmax(axis=1) == examples.truth).mean())
    return facts


def require_agreement(facts: dict[str, Any]) -> None:
    """Raise an error if an exported model predicts differently from PyTorch."""
    if not facts["max_difference"] <= TOLERANCE:
        raise CaptuneError(
            f"The exported model's probabilities differ from PyTorch's by {facts['max_difference']:.2e} on "
            f"{facts['n_images']} images, expected at most {TOLERANCE:.0e}. Nothing was written. "
            "Please report this, with the backbone and the tuner of the run."
        )
