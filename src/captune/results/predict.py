"""Predicting whole collections: cached embeddings where they fit, streamed images where they do not."""

from __future__ import annotations

import numpy as np

from captune.core import distributed
from captune.core.errors import InputError
from captune.core.runtime import Runtime
from captune.core.scratch import empty_rows, take_rows
from captune.data.images import ImageCollection, no_usable_image
from captune.data.loading import load_batches
from captune.data.views import WeakView
from captune.embeddings.cache import EmbeddingCache
from captune.embeddings.embed import EmbeddedImages, embed_images, merge_parts
from captune.embeddings.predictions import Predictions
from captune.results.classifier import Classifier


def predict_collection(
    classifier: Classifier,
    images: ImageCollection,
    cache: EmbeddingCache,
    runtime: Runtime,
    batch_size: int = 32,
    embedded: EmbeddedImages | None = None,
) -> tuple[Predictions, dict[int, str]]:
    """Return predictions for every readable image, and why the others were skipped, by position."""
    if classifier.tuner.edits_images:
        predictions, skipped = _stream(classifier, images, runtime, batch_size)
    else:
        found = embedded or embed_images(classifier.backbone, images, cache, runtime, batch_size)
        predictions = Predictions(found.image_index, classifier.score_embeddings(found.vectors))
        skipped = found.skipped
    if len(predictions.image_index) == 0:
        raise InputError(no_usable_image(images, skipped))
    return predictions, skipped


def _stream(
    classifier: Classifier, images: ImageCollection, runtime: Runtime, batch_size: int
) -> tuple[Predictions, dict[int, str]]:
    batches = [np.arange(i, min(i + batch_size, len(images))) for i in range(0, len(images), batch_size)]
    view = WeakView(classifier.backbone.preprocessing)
    probabilities = empty_rows(len(images), len(classifier.names))
    is_done = np.zeros(len(images), dtype=np.bool_)
    skipped: dict[int, str] = {}
    own = distributed.part(batches)
    with runtime.progress("Classifying images", sum(map(len, own))) as advance, runtime.autocast():
        for batch in load_batches(images, own, view, workers=runtime.workers):
            if len(batch.pixels):
                pixels = classifier.backbone.preprocessing.normalize(batch.pixels)
                probabilities[batch.positions] = classifier.score_pixels(pixels)
            is_done[batch.positions] = True
            skipped.update(batch.problems)
            advance(len(batch.positions) + len(batch.problems))
    index, skipped = merge_parts(probabilities, is_done, skipped)
    return Predictions(index, take_rows(probabilities, index)), skipped
