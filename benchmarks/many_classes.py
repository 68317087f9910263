"""Peak memory and loss of MaPLe's training steps with thousands of classes, with texts encoded in chunks and at once.

Each case runs in its own process. Memory is the peak during the steps above that before them; a first step with four
classes loads libraries and weights.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captune.backbones.base import load_backbone
from captune.core import runtime
from captune.data.images import ImageCollection
from captune.data.vocabulary import Vocabulary
from captune.training.batch_sources import PixelSource, Request, Views
from captune.training.loop import Optimization, Schedule, fit
from captune.training.objective import CapBatch, ConfusionObjective
from captune.tuners.maple import Maple


class RandomSteps(Schedule):
    """Steps on random images with random labels; keeps the mean loss."""

    def __init__(self, n_classes: int, n_images: int, side: int, n_steps: int) -> None:
        self.n_classes, self.n_images, self.side, self.iterations = n_classes, n_images, side, n_steps
        self.loss = 0.0

    def begin_epoch(self, epoch: int) -> None:
        """Do nothing."""

    def batches(self, epoch: int, first_step: int) -> Iterator[CapBatch]:
        """Yield images of noise."""
        for step in range(first_step, self.iterations):
            drawn = torch.Generator().manual_seed(step)
            weak, pseudo_labeled, strong = torch.randn(3, self.n_images, 3, self.side, self.side, generator=drawn)
            labels = torch.randint(self.n_classes, (self.n_images,), generator=drawn)
            ids = np.arange(self.n_images)
            views = Views(pseudo_labeled, pseudo_labeled[:0], weak, strong, Request(ids, ids[:0], ids))
            yield CapBatch(views, labels, labels[:0], None)

    def end_epoch(self, epoch: int, sums: Mapping[str, Tensor]) -> None:
        """Keep the mean loss."""
        self.loss = float(sums["loss"]) / self.iterations

    def progress(self, epoch: int, sums: Mapping[str, Tensor]) -> str:
        """Return nothing."""
        return ""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return nothing."""
        return {}, {}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Do nothing."""


def peak_mb() -> float:
    """Return the highest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(backbone_id: str, n_classes: int, chunk: int, n_images: int, n_steps: int) -> dict[str, float]:
    """Train a few steps and return memory, loss and seconds."""
    engine = runtime.start(workers=0, accelerator="cpu", quiet=True)
    backbone = load_backbone(backbone_id)
    backbone.texts_at_once = chunk
    nothing = ImageCollection((), Path())
    source = PixelSource(nothing, nothing, np.empty(0, dtype=np.int64), backbone.preprocessing, engine)
    for classes, steps in ((4, 1), (n_classes, n_steps)):
        torch.manual_seed(0)
        tuner = Maple(backbone, Vocabulary(tuple(f"pattern {i}" for i in range(classes))))
        objective = ConfusionObjective(tuner, source, torch.ones(classes, dtype=torch.bool), 0.0)
        objective.margin = torch.rand(classes, classes, generator=torch.Generator().manual_seed(0))
        schedule = RandomSteps(classes, n_images, backbone.preprocessing.image_size, steps)
        before, started = peak_mb(), time.perf_counter()
        fit(objective, schedule, Optimization(epochs=1, learning_rate=0.002), engine)
    seconds = (time.perf_counter() - started) / n_steps
    return {"memory_mb": peak_mb() - before, "loss": schedule.loss, "seconds": seconds}


def main() -> int:
    """Measure chunked and whole, print all; fail when a loss differs or the smallest chunks exceed the budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="embedded:patterns")
    parser.add_argument("--classes", type=int, default=5000)
    parser.add_argument("--chunks", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--images", type=int, default=16, help="images of each kind in a step")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--budget-mb", type=float, default=1024.0)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.backbone, options.classes, options.measure, options.images, options.steps)))
        return 0
    found = {}
    for chunk in (*options.chunks, options.classes):
        words = [sys.executable, __file__, *sys.argv[1:], "--measure", str(chunk)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        found[chunk] = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{options.classes} classes, {options.backbone}, {options.steps} steps of {options.images} images of each kind"
    )
    for chunk, facts in found.items():
        print(
            f"  {chunk:>6} texts at once: {facts['memory_mb']:7.0f} MB, loss {facts['loss']:.6f}, "
            f"{facts['seconds']:.1f} s a step"
        )
    whole = found[options.classes]["loss"]
    is_same = all(abs(facts["loss"] - whole) < 1e-5 for facts in found.values())
    is_small = found[min(options.chunks)]["memory_mb"] <= options.budget_mb
    print(f"  same loss: {is_same}; within {options.budget_mb:.0f} MB: {is_small}")
    return 0 if is_same and is_small else 1


if __name__ == "__main__":
    sys.exit(main())
