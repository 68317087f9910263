"""A backbone of two small matrices that counts its work, and folders of small noisy images."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from captune.backbones.base import Backbone, Edit, Tokens
from captune.data.views import Preprocessing

SIDE, WIDTH = 8, 12


class ToyBackbone(Backbone):
    """Projects pixels and word digests; fast enough to be used everywhere that the weights do not matter."""

    def __init__(self, seed: int = 0, mean: float = 0.5) -> None:
        torch.manual_seed(seed)
        self.weights = nn.ModuleDict({"image": nn.Linear(SIDE * SIDE * 3, WIDTH), "text": nn.Linear(16, WIDTH)})
        self.preprocessing = Preprocessing(SIDE, SIDE, "bilinear", (mean,) * 3, (0.5, 0.5, 0.5))
        self.identifier, self.embed_dim, self.logit_scale = "toy:", WIDTH, 10.0
        self.n_encoded = 0
        self.freeze()

    @classmethod
    def load(cls, name: str) -> ToyBackbone:
        return cls()

    @classmethod
    def check(cls, name: str) -> None:
        pass

    def parts(self) -> Sequence[nn.Module]:
        return (self.weights,)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        ids = torch.tensor([[zlib.crc32(f"{i} {text}".encode()) % 1000 for i in range(16)] for text in texts])
        return Tokens(ids, torch.ones_like(ids, dtype=torch.bool))

    def image_features(self, pixels: Tensor, edit: Edit | None = None) -> Tensor:
        self.n_encoded += len(pixels)
        return self.weights["image"](pixels.flatten(1))

    def text_features(self, tokens: Tokens, edit: Edit | None = None) -> Tensor:
        return self.weights["text"](tokens.ids.float() / 500 - 1)


class ShunnedClass(ToyBackbone):
    """All images lean to one side and one text lies on the other, so that its class is never predicted."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.shunned = self.tokenize([text]).ids[0]
        with torch.no_grad():
            self.weights["image"].bias.fill_(2.0)

    def text_features(self, tokens: Tokens, edit: Edit | None = None) -> Tensor:
        is_shunned = (tokens.ids == self.shunned).all(dim=1, keepdim=True)
        return torch.where(is_shunned, -self.weights["image"].bias, super().text_features(tokens, edit))


def write_images(folder: Path, n: int, side: int = 12, seed: int = 0, suffix: str = ".png") -> Path:
    """Write n different images of noise and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(n):
        noise = np.random.default_rng([seed, i]).integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{i:03d}{suffix}")
    return folder


def write_classes(folder: Path, names: Sequence[str], n: int, side: int = 36) -> Path:
    """Write n images of noise into a folder for each class and return the folder of all."""
    for number, name in enumerate(names):
        write_images(folder / name, n, side=side, seed=number)
    return folder
