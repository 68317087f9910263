"""How predict and evaluate find and score images."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from captune.commands._options import WHERE
from captune.core.errors import InputError

if TYPE_CHECKING:
    from captune.data.images import ImageCollection
    from captune.embeddings.predictions import Predictions
    from captune.results.image_classifier import ImageClassifier


def score_images(
    options: argparse.Namespace, classifier: ImageClassifier, images: ImageCollection
) -> tuple[Predictions, dict[int, str]]:
    """Return the predictions of a collection and why images were skipped."""
    from captune.core import runtime
    from captune.results.onnx_classifier import OnnxClassifier

    if isinstance(classifier, OnnxClassifier):  # before anything imports PyTorch, which takes seconds
        return classifier.predict_collection(images, runtime.count_workers(options.workers))
    from captune.core.settings import RunSettings, build
    from captune.embeddings.cache import EmbeddingCache
    from captune.results.classifier import Classifier
    from captune.results.predict import predict_collection

    assert isinstance(classifier, Classifier)
    given = {name: getattr(options, name) for name in WHERE if getattr(options, name) is not None}
    where = build(RunSettings, given, "options")
    engine = runtime.start(workers=options.workers, **{name: getattr(where, name) for name in WHERE})
    classifier.to(engine.device)
    with engine.together():
        return predict_collection(classifier, images, EmbeddingCache(), engine)


def find_any(source: str) -> ImageCollection:
    """Return the images of a folder, manifest or list, or the one image that is named."""
    from captune.core.files import is_file
    from captune.data.images import ImageCollection, find_images, no_usable_image
    from captune.data.paths import SUFFIXES

    path = Path(source)
    if path.suffix.lower() in SUFFIXES and is_file(path):
        return ImageCollection((path,), path.parent)
    images = find_images(source)
    if len(images) == 0:
        raise InputError(no_usable_image(images, {}))
    return images
