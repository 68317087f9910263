"""Small runs with real classifiers, and class names with special characters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from toys import write_images

from captune.backbones.base import Backbone
from captune.core import registry
from captune.data.images import find_images
from captune.data.vocabulary import Vocabulary
from captune.embeddings.predictions import Predictions
from captune.labeling.pseudo_labels import PseudoLabels
from captune.results.classifier import Classifier
from captune.results.finishing import Evidence
from captune.results.run import Run

NAMES = ('red, "green"', "two\nlines", "<script>alert(1)</script>", "a/b\\c", "..", "A:B\\C", "é🙂")
"""Commas, quotes, line breaks, markup, slashes, dots, and names that differ only in case."""


def make_run(
    folder: Path, backbone: Backbone, tuner: str = "frozen", n_images: int = 12, pseudo_labels: bool = True
) -> Run:
    """Write a run of a tuner with changed weights over noisy images in two folders of equal file names."""
    torch.manual_seed(0)
    made = registry.load("tuners", tuner)(backbone, Vocabulary(NAMES))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        for buffer in made.buffers():
            buffer.add_(0.05 * torch.rand_like(buffer))
    classifier = Classifier.from_tuner(made)
    photos = folder.parent / "photos"
    write_images(photos / "one", n_images // 2, side=40, seed=1)
    write_images(photos / "two", n_images - n_images // 2, side=40, seed=2)
    images = find_images(photos)
    index = np.arange(n_images)
    predictions = Predictions(index, classifier.predict_proba(images.paths))
    chosen = PseudoLabels.create(index[::2], (index[::2] % len(NAMES)), predictions.confidence[::2], len(NAMES))
    history = [(1, chosen)] if pseudo_labels else []
    evidence = Evidence({"rows": index.astype(np.int32), "after": predictions.probabilities}, history)
    run = Run(
        settings={"method": "cap", "backbone": backbone.identifier},
        images=images,
        skipped={},
        made=(classifier, predictions),
        environment={"seed": 0},
        evidence=evidence,
    )
    run.write(folder)
    return run
