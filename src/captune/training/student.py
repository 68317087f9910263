"""Small image classifiers: a network of transformers or timm, trained on soft labels of random views."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from captune.backbones.base import local_path
from captune.backbones.hf import IMAGENET_MEAN, IMAGENET_STD
from captune.backbones.image import ImageModel
from captune.core.arrays import Floats
from captune.core.errors import InputError, ModelError
from captune.core.runtime import Runtime
from captune.data.views import Preprocessing, strong_view, view_generator
from captune.training.batch_sources import draw_batches
from captune.training.loop import Schedule, StepResult

SMALL = "small"
"""The student that needs no download: a ResNet of transformers with ten layers and 200,000 parameters."""
SIDE = 64
"""Side of the images of a network that starts from random weights, if no other is asked for."""
BATCH_SIZE = 64
SMALLEST_AREA = 0.4
"""Smallest share of an image that a random crop shows."""


_Network = tuple[nn.Module, Callable[[Tensor], Tensor], Preprocessing, str]
"""A network, the function that computes its features, its preprocessing, and why its weights are random."""


class Student(nn.Module):
    """An image network and a linear layer: preprocessed images in, probabilities and features out.

    `random_because` says why the network starts from random weights; it is empty if it has its own.
    """

    def __init__(self, identifier: str, n_classes: int, side: int = 0) -> None:
        super().__init__()
        source, _, name = identifier.partition(":")
        if identifier != SMALL and not (source in ("timm", "hf") and name):
            raise InputError(f"Unknown student {identifier!r}: expected {SMALL}, timm:NAME or hf:NAME.")
        load = _from_timm if source == "timm" else _from_transformers
        self.network, self.encode, self.preprocessing, self.random_because = load(name, side)
        self.network.eval().requires_grad_(True)
        with torch.no_grad():
            self.width = self.features(torch.zeros(1, 3, *self.preprocessing.shape)).shape[1]
        self.head = nn.Linear(self.width, n_classes)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities `(images, classes)` and features `(images, width)`."""
        features = self.features(pixels)
        return self.head(features).softmax(dim=-1), features

    def features(self, pixels: Tensor) -> Tensor:
        """Return what the network pools."""
        return self.encode(pixels).flatten(1)


def _prepared(side: int, mean: Any = IMAGENET_MEAN, std: Any = IMAGENET_STD) -> Preprocessing:  # noqa: ANN401
    return Preprocessing(side, side, "bicubic", tuple(mean), tuple(std))


def _from_timm(name: str, side: int) -> _Network:
    try:
        import timm  # type: ignore[import-not-found]
    except ImportError as error:
        raise ModelError(f"A student of timm needs the package 'timm': pip install timm, or use {SMALL!r}.") from error
    try:
        found, why = timm.create_model(name, pretrained=True, num_classes=0), ""
    except Exception as error:  # every way to have no weights has its own error class
        why = str(error).splitlines()[0]
        try:
            found = timm.create_model(name, pretrained=False, num_classes=0)
        except RuntimeError as unknown:
            raise ModelError(f"{unknown}. Names of timm: https://huggingface.co/timm") from error
    facts = found.pretrained_cfg
    own = SIDE if why else int(facts["input_size"][-1])
    return found, found, _prepared(side or own, facts["mean"], facts["std"]), why


def _from_transformers(name: str, side: int) -> _Network:
    from transformers import AutoConfig, AutoModel, ResNetConfig

    if name:
        try:
            loaded = ImageModel.load(name)
            model, own, why = loaded.model, loaded.preprocessing, ""
        except ModelError as error:
            try:
                config, why = AutoConfig.from_pretrained(local_path(name), trust_remote_code=False), str(error)
            except (OSError, ValueError):
                raise error from None
    else:
        small = {"embedding_size": 8, "hidden_sizes": [8, 16, 32, 64, 96], "depths": [1] * 5, "layer_type": "basic"}
        config, why = ResNetConfig(**small), f"{SMALL!r} has no other weights."
    if why:
        own = _prepared(side or SIDE)
        if hasattr(config, "image_size"):
            config.image_size = own.image_size
        model = AutoModel.from_config(config)
    elif side:
        own = replace(own, image_size=side, resize=side if own.resize else 0)
    return model, ImageModel("student", model, own).image_features, own, why


class SoftLabelObjective(nn.Module):
    """The weighted mean of the cross-entropies between soft labels and the student's probabilities."""

    def __init__(self, student: Student) -> None:
        super().__init__()
        self.student = student

    def forward(self, batch: tuple[Tensor, Tensor, Tensor]) -> StepResult:
        """Return the loss of a step: pixels, soft labels `(images, classes)` and weights of the images."""
        pixels, targets, weights = batch
        logits = self.student.head(self.student.features(pixels))
        losses = -(targets * logits.log_softmax(dim=-1)).sum(dim=-1)
        return StepResult((weights * losses).sum() / weights.sum(), {})


class Distillation(Schedule):
    """Batches of random views of images that are decoded already, `(images, side, side, 3)`."""

    def __init__(
        self, images: NDArray[np.uint8], targets: Floats, weights: Floats, preprocessing: Preprocessing, engine: Runtime
    ) -> None:
        self.images, self.targets, self.weights = images, torch.from_numpy(targets), torch.from_numpy(weights)
        self.preprocessing, self.engine, self.iterations = preprocessing, engine, -(-len(images) // BATCH_SIZE)

    def batches(self, epoch: int, first_step: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield random views, seeded by image and epoch, with their soft labels."""
        generator, device = np.random.default_rng([self.engine.seed, epoch]), self.engine.device
        for rows in draw_batches(generator, len(self.images), self.iterations, BATCH_SIZE)[first_step:]:
            views = np.stack([self._view(row, epoch) for row in rows.tolist()])
            pixels = self.preprocessing.normalize(views)
            yield tuple(part.to(device) for part in (pixels, self.targets[rows], self.weights[rows]))

    def _view(self, row: int, epoch: int) -> NDArray[np.uint8]:
        image, generator = Image.fromarray(self.images[row]), view_generator(self.engine.seed, epoch, row)
        return strong_view(image, self.preprocessing, generator, SMALLEST_AREA)
