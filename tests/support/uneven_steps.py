"""Steps of several processes in which only the first one has images whose self-made labels are accepted, or any."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ranks import NAMES
from torch import Tensor

from captune.backbones.hf import HuggingFace
from captune.core import distributed, registry, runtime
from captune.data.images import ImageCollection
from captune.data.vocabulary import Vocabulary
from captune.training.batch_sources import EmbeddingSource, PixelSource, Request, Views
from captune.training.loop import Optimization, Schedule, fit
from captune.training.objective import CapBatch, ConfusionObjective

N_IMAGES, N_STEPS = 8, 3


def make_objective(clip: Path, tuner_name: str, engine: runtime.Runtime) -> ConfusionObjective:
    torch.manual_seed(0)
    backbone = HuggingFace.load(str(clip))
    tuner = registry.load("tuners", tuner_name)(backbone, Vocabulary(tuple(NAMES)))
    nothing, none = ImageCollection((), Path()), np.empty(0, dtype=np.int64)
    rows = np.empty((0, backbone.embed_dim), dtype=np.float32)
    source = (
        PixelSource(nothing, nothing, none, backbone.preprocessing, engine)
        if tuner.edits_images
        else EmbeddingSource(rows, [], rows, none, engine)
    )
    objective = ConfusionObjective(tuner, source, torch.ones(len(NAMES), dtype=torch.bool), 0.0, adapter_width=8)
    objective.margin = torch.rand(len(NAMES), len(NAMES))
    return objective


class UnevenSchedule(Schedule):
    """The same batch in every step; a label is accepted where it is that of the untrained student, on even images."""

    iterations = N_STEPS

    def __init__(self, objective: ConfusionObjective, is_other_empty: bool) -> None:
        self.is_other_empty = is_other_empty
        tuner = objective.tuner
        shape = (3, 32, 32) if tuner.edits_images else (tuner.backbone.embed_dim,)
        self.inputs = torch.nn.functional.normalize(torch.randn(3, N_IMAGES, *shape), dim=-1)
        with torch.no_grad():
            seen = objective.main_adapter(objective.source.embed(tuner, self.inputs[0]))
            scores = objective.logits(seen, objective.text_adapter(tuner.class_embeddings()))
        self.agreed = scores.argmax(dim=1)
        self.agreed[1::2] = -1
        self.told: dict[str, Any] = {"agreed": int((distributed.part(self.agreed) >= 0).sum())}

    def begin_epoch(self, epoch: int) -> None:
        pass

    def batches(self, epoch: int, first_step: int) -> Iterator[CapBatch]:
        chosen = distributed.part(np.arange(N_IMAGES))
        if self.is_other_empty:  # as if every other image had become unreadable
            chosen = np.arange(0, N_IMAGES, 2) if distributed.rank() == 0 else chosen[:0]
        weak, pseudo_labeled, strong = self.inputs[:, chosen]
        labels = torch.from_numpy(chosen % len(NAMES))
        views = Views(pseudo_labeled, pseudo_labeled[:0], weak, strong, Request(chosen, chosen[:0], chosen))
        yield from [CapBatch(views, labels, labels[:0], self.agreed[chosen])] * N_STEPS

    def end_epoch(self, epoch: int, sums: Mapping[str, Tensor]) -> None:
        self.told |= {name: value.tolist() for name, value in sums.items()}

    def progress(self, epoch: int, sums: Mapping[str, Tensor]) -> str:
        return ""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"agreed": self.agreed}, {}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        pass


def take_uneven_steps(folder: Path, clip: Path, tuner_name: str, is_other_empty: bool) -> None:
    """Train as one of some processes and write down sums and parameters."""
    engine = runtime.start(workers=0, accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), quiet=True)
    with distributed.together():
        objective = make_objective(clip, tuner_name, engine)
        schedule = UnevenSchedule(objective, is_other_empty)
        how = Optimization(epochs=1, learning_rate=0.01, warmup_epochs=0)
        fit(objective, schedule, how, engine)
    parameters = {name: parameter.tolist() for name, parameter in objective.named_parameters()}
    (folder / f"{distributed.rank()}.json").write_text(json.dumps({**schedule.told, "parameters": parameters}))
