"""The expected training time of CAP's presets on this machine, from one small measured pass of the backbone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from captune.backbones.base import Backbone
from captune.core.progress import duration
from captune.core.runtime import Runtime
from captune.data.vocabulary import Vocabulary
from captune.tuners.feature_adapter import ResidualAdapter

if TYPE_CHECKING:
    from captune.methods.cap import CapSettings

N_PROBES = 8
GRADIENT_COST = 2.0
"""Cost of a pass with gradients, in passes without; the weights of the backbone need no gradient."""


class Workload(NamedTuple):
    """The number of images to train on."""

    n_unlabeled: int
    n_labeled: int


@dataclass(frozen=True)
class Costs:
    """Measured seconds: encoding one image, encoding the class texts, and one step on cached embeddings."""

    image: float
    texts: float
    small_step: float


@torch.inference_mode()
def measure_costs(backbone: Backbone, vocabulary: Vocabulary, runtime: Runtime) -> Costs:
    """Time the backbone on a few blank images and on the class texts, without drawing random numbers."""
    side = backbone.preprocessing.image_size
    pixels = torch.zeros((N_PROBES, 3, side, side), device=backbone.device)
    n_classes = min(len(vocabulary), 64)
    tokens = backbone.tokenize([vocabulary.texts(class_id)[0] for class_id in range(n_classes)])
    image = _seconds(lambda: backbone.encode_image(pixels)) / N_PROBES if backbone.has_image_encoder else 0.0
    texts = _seconds(lambda: backbone.encode_text(tokens)) * len(vocabulary) / n_classes
    with torch.random.fork_rng(), runtime.one_thread(), torch.inference_mode(False):
        adapter = ResidualAdapter(backbone.embed_dim).to(backbone.device)
        rows = torch.ones((128, backbone.embed_dim), device=backbone.device)
        classes = torch.ones((len(vocabulary), backbone.embed_dim), device=backbone.device)
        small = _seconds(lambda: _small_step(adapter, rows, classes))
    return Costs(image, texts, small)


def expected_seconds(costs: Costs, settings: CapSettings, workload: Workload) -> float:
    """Return the expected training time with these settings, assuming an empty cache."""
    steps, batch = settings.epochs * settings.iterations, settings.train_batch
    if settings.tuner != "maple":
        strong_views = settings.strong_views * workload.n_unlabeled * costs.image
        return strong_views + 3 * steps * costs.small_step  # the text, main and pseudo adapters
    with_gradients = batch * (3 if workload.n_labeled else 2)
    step = costs.image * (GRADIENT_COST * with_gradients + batch) + GRADIENT_COST * costs.texts
    # The margin of every epoch encodes D_PL, which grows to all unlabeled images; each growth encodes all of them.
    passes = settings.epochs * (1 + settings.margin) / 2 + settings.epochs / settings.grow_every
    return steps * step + passes * workload.n_unlabeled * costs.image


def announce(
    costs: Costs, settings: CapSettings, presets: Mapping[str, CapSettings], workload: Workload, runtime: Runtime
) -> None:
    """Show the expected training time of this run and of each preset."""

    def about(chosen: CapSettings) -> str:
        return f"about {duration(max(1.0, expected_seconds(costs, chosen, workload)))}"

    each = ", ".join(f"{name} {about(preset)}" for name, preset in presets.items())
    runtime.say(f"Training will take {about(settings)} on this machine (with default settings: {each}).")


def _small_step(adapter: nn.Module, rows: Tensor, classes: Tensor) -> Tensor:
    adapter.zero_grad()
    loss = (adapter(rows) @ classes.T).log_softmax(dim=-1).mean()
    loss.backward()
    return loss.detach()


def _seconds(work: Callable[[], Tensor]) -> float:
    """Return the seconds of the second call; the first one warms up."""
    float(work().sum())
    started = time.perf_counter()
    float(work().sum())  # reading a number waits for a GPU
    return time.perf_counter() - started
