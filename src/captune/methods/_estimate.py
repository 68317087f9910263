"""How long each preset of CAP would take on this machine, from one small measured pass of the backbone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from captune.backbones.base import Backbone
from captune.core.runtime import Runtime, duration
from captune.data.vocabulary import Vocabulary
from captune.methods._cap_settings import QUICK, CapSettings
from captune.tuners.feature_adapter import ResidualAdapter

PROBED, LEARNING = 8, 2.0
"""Images of the probe, and what a pass with gradients costs in passes without: the backbone's weights need none."""


class Sizes(NamedTuple):
    """How much there is to do."""

    n_unlabeled: int
    n_given: int
    n_classes: int


@dataclass(frozen=True)
class Costs:
    """Measured seconds: encoding one image, encoding the class texts, and one step on ready embeddings."""

    image: float
    texts: float
    small_step: float


@torch.inference_mode()
def measure_costs(backbone: Backbone, vocabulary: Vocabulary, runtime: Runtime) -> Costs:
    """Time the backbone on a few blank images and on the class texts; nothing random is drawn."""
    side = backbone.preprocessing.image_size
    pixels = torch.zeros((PROBED, 3, side, side), device=backbone.device)
    n_classes = min(len(vocabulary), 64)
    tokens = backbone.tokenize([vocabulary.texts(class_id)[0] for class_id in range(n_classes)])
    image = _seconds(lambda: backbone.encode_image(pixels)) / PROBED
    texts = _seconds(lambda: backbone.encode_text(tokens)) * len(vocabulary) / n_classes
    with torch.random.fork_rng(), runtime.one_thread(), torch.inference_mode(False):
        adapter = ResidualAdapter(backbone.embed_dim).to(backbone.device)
        rows = torch.ones((128, backbone.embed_dim), device=backbone.device)
        classes = torch.ones((len(vocabulary), backbone.embed_dim), device=backbone.device)
        small = _seconds(lambda: _small_step(adapter, rows, classes))
    return Costs(image, texts, small)


def estimate(costs: Costs, settings: CapSettings, sizes: Sizes) -> float:
    """Return the seconds that training with these settings would take, without what is cached already."""
    steps, batch = settings.epochs * settings.iterations, settings.train_batch
    if settings.tuner != "maple":
        strong_views = settings.strong_views * sizes.n_unlabeled * costs.image
        return strong_views + 3 * steps * costs.small_step  # the adapters of text, main and pseudo
    learned = batch * (3 if sizes.n_given else 2)
    step = costs.image * (LEARNING * learned + batch) + LEARNING * costs.texts
    # Every epoch looks at D_PL for its margin, which grows to all unlabeled images, and each growth at all of them.
    looks = settings.epochs * (1 + settings.margin) / 2 + settings.epochs / settings.grow_every
    return steps * step + looks * sizes.n_unlabeled * costs.image


def tell(backbone: Backbone, vocabulary: Vocabulary, settings: CapSettings, sizes: Sizes, runtime: Runtime) -> None:
    """Say on screen what this run and each preset would take here."""
    costs = measure_costs(backbone, vocabulary, runtime)
    presets = {"quick": replace(CapSettings(), **QUICK), "full": CapSettings()}

    def about(one: CapSettings) -> str:
        return f"about {duration(max(1.0, estimate(costs, one, sizes)))}"

    each = ", ".join(f"{name} {about(preset)}" for name, preset in presets.items())
    runtime.say(f"Training will take {about(settings)} on this machine (presets as they come: {each}).")


def _small_step(adapter: nn.Module, rows: Tensor, classes: Tensor) -> Tensor:
    adapter.zero_grad()
    loss = (adapter(rows) @ classes.T).log_softmax(dim=-1).mean()
    loss.backward()
    return loss.detach()


def _seconds(work: Callable[[], Tensor]) -> float:
    """Return the seconds of the second run; the first one warms up."""
    float(work().sum())
    started = time.perf_counter()
    float(work().sum())  # reading a number waits for a GPU
    return time.perf_counter() - started
