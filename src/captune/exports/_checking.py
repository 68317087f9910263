"""An exported model is compared with PyTorch on real images before anyone relies on it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Floats, Ints
from captune.core.errors import InputError
from captune.data.decoding import UnreadableImageError
from captune.data.images import ImageCollection, find_images, read_labels
from captune.data.views import weak_view
from captune.exports.base import ExportSettings, FinishedRun
from captune.results.classifier import Classifier
from captune.results.onnx_classifier import OnnxClassifier

TOLERANCE = 1e-4
N_CHECKED = 64
BATCH = 32


@dataclass(frozen=True, eq=False)
class Examples:
    """Real images with what PyTorch says about them.

    Attributes:
        views: Decoded views `(images, height, width, 3)`.
        probabilities: What PyTorch says, `(images, classes)`.
        truth: Class ids, -1 where unknown; None without labels.
    """

    views: NDArray[np.uint8]
    probabilities: Floats
    truth: Ints | None


def gather_examples(run: FinishedRun, settings: ExportSettings) -> Examples:
    """Read images of the run (or of --images), spread evenly, and let PyTorch classify them."""
    classifier = run.classifier
    images = run.record.images if settings.images is None else find_images(settings.images)
    truth = None if settings.labels is None else read_labels(settings.labels, images, classifier.names)
    candidates = np.arange(len(images)) if truth is None else np.flatnonzero(truth >= 0)
    most = settings.n_checked or (N_CHECKED if truth is None else len(candidates))
    if len(candidates):
        spread = np.linspace(0, len(candidates) - 1, min(most, len(candidates)))
        candidates = candidates[np.unique(spread.astype(np.int64))]
    kept, views = _read(images, candidates, classifier)
    if not kept:
        what = "with a label " if truth is not None else ""
        raise InputError(
            f"No image {what}can be read at {str(images.root)!r}, and an export is checked with real images. "
            "Name a folder of images with --images."
        )
    stacked = np.stack(views)
    parts = [classifier.score_views(stacked[i : i + BATCH]) for i in range(0, len(stacked), BATCH)]
    return Examples(stacked, np.concatenate(parts), None if truth is None else truth[kept])


def compare(model: OnnxClassifier, examples: Examples) -> dict[str, Any]:
    """Return how far a model is from PyTorch, how long one image takes, and its accuracy where labels are known."""
    views, expected = examples.views, examples.probabilities
    # One alone, then the rest in batches: a size that was frozen into the graph fails here.
    starts = [0, *range(1, len(views), BATCH)]
    ends = [*starts[1:], len(views)]
    found = np.concatenate([model.score_views(views[a:b]) for a, b in zip(starts, ends, strict=True)])
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        model.score_views(views[:1])
        seconds.append(time.perf_counter() - started)
    same = found.argmax(axis=1) == expected.argmax(axis=1)
    facts: dict[str, Any] = {
        "n_images": len(views),
        "max_difference": float(np.abs(found - expected).max()),
        "mean_difference": float(np.abs(found - expected).mean()),
        "same_top_1": float(same.mean()),
        "seconds_per_image": round(float(np.median(seconds)), 5),
    }
    if examples.truth is not None:
        facts["accuracy"] = float((found.argmax(axis=1) == examples.truth).mean())
        facts["accuracy_pytorch"] = float((expected.argmax(axis=1) == examples.truth).mean())
    return facts


def _read(
    images: ImageCollection, positions: Ints, classifier: Classifier
) -> tuple[list[int], list[NDArray[np.uint8]]]:
    kept, views = [], []
    for position in positions.tolist():
        try:
            image = images.read(position).decode()
        except UnreadableImageError:
            continue
        kept.append(position)
        views.append(weak_view(image, classifier.preprocessing))
    return kept, views
