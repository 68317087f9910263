"""One training step of CAP with MaPLe compared with a literal one, on a random CLIP of the size of ViT-B/32.

The literal step encodes the class texts for each of its three views, at CLIP's full 77 tokens, encodes the three image
batches one by one, and keeps the graph of the weak view, whose labels need none. Both compute the same loss.
Each step has its own process, and its memory is the peak beyond the loaded model. captune's step runs with the malloc
variables that `captune.core.distributed` sets for the processes it starts, the literal one with the system's defaults.
Other work on the machine affects seconds more than processor time.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import pad
from torch.profiler import ProfilerActivity, profile
from transformers import CLIPConfig, CLIPModel

from captune.backbones.base import Tokens
from captune.backbones.hf import HuggingFace, read_preprocessing
from captune.core import runtime
from captune.core.distributed import KEEP_FREED_MEMORY
from captune.data.images import ImageCollection
from captune.data.vocabulary import Vocabulary
from captune.training.batch_sources import PixelSource, Request, Views
from captune.training.objective import CapBatch, ConfusionObjective
from captune.tuners.maple import Maple

BATCH, TARGETS = 32, {47: 2.0, 200: 5.5}
MATRIX_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "attention", "convolution")


class WordTokenizer:
    """One token a word, between CLIP's start and end tokens, padded with the end token."""

    def __init__(self, end: int) -> None:
        self.end = end

    def __call__(self, texts: list[str], **_: object) -> dict[str, Tensor]:
        """Return ids and mask as transformers' tokenizers do."""
        rows = [[self.end - 1, *(sum(word.encode()) for word in text.split()), self.end] for text in texts]
        longest = max(len(row) for row in rows)
        ids = torch.tensor([row + [self.end] * (longest - len(row)) for row in rows])
        mask = torch.arange(longest) < torch.tensor([len(row) for row in rows])[:, None]
        return {"input_ids": ids, "attention_mask": mask}


def make_objective(n_classes: int) -> ConfusionObjective:
    """Return CAP's objective on a random CLIP; class names have three to nine words."""
    torch.manual_seed(0)
    config = CLIPConfig()
    end = config.text_config.vocab_size - 1
    config.text_config.eos_token_id = end
    model = CLIPModel(config)
    model.logit_scale.data.fill_(np.log(100.0))
    backbone = HuggingFace("hf:random-vit-base-32", model, read_preprocessing({}, config, "random"), WordTokenizer(end))
    names = tuple(" ".join([f"kind{c}", *["word"] * (2 + c % 7)]) for c in range(n_classes))
    tuner = Maple(backbone, Vocabulary(names, ("a photo of a {}",)))
    nothing = ImageCollection((), Path())
    engine = runtime.start(quiet=True, workers=0)
    source = PixelSource(nothing, nothing, np.empty(0, dtype=np.int64), backbone.preprocessing, engine)
    objective = ConfusionObjective(tuner, source, torch.ones(n_classes, dtype=torch.bool), 0.0)
    similarity = torch.rand(n_classes, n_classes)
    objective.margin = 6.0 * similarity * (1.0 - torch.eye(n_classes))
    return objective


def make_batch(n_classes: int) -> CapBatch:
    """Return 32 pseudo-labeled and 32 unlabeled images, the latter in two views."""
    pseudo_labeled, weak, strong = (torch.randn(BATCH, 3, 224, 224) for _ in range(3))
    positions = np.arange(BATCH)
    request = Request(positions, positions[:0], positions)
    views = Views(pseudo_labeled, pseudo_labeled[:0], weak, strong, request)
    return CapBatch(views, torch.arange(BATCH) % n_classes, torch.empty(0, dtype=torch.int64), None)


def fast_step(objective: ConfusionObjective, batch: CapBatch) -> Tensor:
    """Return the loss of captune's own step, after its backward pass."""
    loss = objective(batch).loss
    loss.backward()
    return loss.detach()


def literal_step(objective: ConfusionObjective, batch: CapBatch) -> Tensor:
    """Return the loss computed view by view, after its backward pass."""
    views, scale = batch.views, objective.tuner.backbone.logit_scale

    def logits(pixels: Tensor, adapter: torch.nn.Module) -> Tensor:
        classes = objective.text_adapter(objective.tuner.class_embeddings())
        return scale * adapter(objective.tuner.image_embeddings(pixels)) @ classes.T

    def losses(scores: Tensor, labels: Tensor) -> Tensor:
        raised = scores + objective.margin[labels] if objective.margin is not None else scores
        return -raised.log_softmax(dim=-1)[torch.arange(len(labels)), labels]

    pseudo_labeled = logits(views.pseudo_labeled, objective.main_adapter)
    weak = logits(views.weak, objective.main_adapter)
    strong = logits(views.strong, objective.pseudo_adapter)
    confidence, made = weak.softmax(dim=-1).max(dim=-1)
    accepted = (confidence >= objective.tau).float()
    loss = losses(pseudo_labeled, batch.pseudo_labels).mean()
    loss = loss + (losses(strong, made.detach()) * accepted).sum() / accepted.sum().clamp(min=1)
    loss.backward()
    return loss.detach()


def padded(objective: ConfusionObjective) -> ConfusionObjective:
    """Return a copy whose class texts have CLIP's full length."""
    other = copy.copy(objective)
    tuner = copy.copy(objective.tuner)
    texts = tuner.texts
    end = max(int(part.ids.max()) for part in texts.parts)
    ids = torch.cat([pad(part.ids, (0, 77 - part.ids.shape[1]), value=end) for part in texts.parts])[texts.order]
    whole = Tokens(ids, torch.ones_like(ids, dtype=torch.bool))
    tuner.texts = dataclasses.replace(texts, parts=[whole], order=torch.arange(len(ids)))
    other._modules = {**objective._modules, "tuner": tuner}
    return other


def run_one(kind: str, n_classes: int, result: Path) -> None:
    """Take a warm-up step and a timed one in this process; print seconds, peak memory and share of products."""
    objective, batch = make_objective(n_classes), make_batch(n_classes)
    step, student = (fast_step, objective) if kind == "fast" else (literal_step, padded(objective))
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    before = peak_kilobytes()
    for _ in range(2):
        objective.zero_grad(set_to_none=True)
        started, processor = time.perf_counter(), time.process_time()
        loss = step(student, batch)
        seconds, processor = time.perf_counter() - started, time.process_time() - processor
    gradients = {name: p.grad for name, p in objective.named_parameters() if p.grad is not None}
    save_file({"loss": loss, **gradients}, result)
    megabytes = (peak_kilobytes() - before) / 1024
    share = products_share(objective, batch) if kind == "fast" else None
    print(json.dumps({"seconds": seconds, "processor": processor, "megabytes": megabytes, "products": share}))


def products_share(objective: ConfusionObjective, batch: CapBatch) -> float:
    """Return the share of captune's step that matrix products take."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        fast_step(objective, batch)
    events = seen.key_averages()
    products = sum(e.self_cpu_time_total for e in events if any(name in e.key for name in MATRIX_PRODUCTS))
    return products / sum(event.self_cpu_time_total for event in events)


def peak_kilobytes() -> int:
    """Return the largest resident memory of this process since the count began."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def measure(kind: str, n_classes: int, result: Path) -> dict[str, Any]:
    """Return the measurements of one kind of step in a new process."""
    command = [sys.executable, __file__, "--only", kind, str(result), "--classes", str(n_classes)]
    environment = {**KEEP_FREED_MEMORY, **os.environ} if kind == "fast" else dict(os.environ)
    shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    found: dict[str, Any] = json.loads(next(line for line in shown.splitlines() if line.startswith("{")))
    return found


def compare(n_classes: int, rounds: int) -> None:
    """Measure the steps in turn, compare losses and gradients, and print the medians."""
    with tempfile.TemporaryDirectory() as folder:
        files = {kind: Path(folder, kind) for kind in ("fast", "literal")}
        turns = [{kind: measure(kind, n_classes, file) for kind, file in files.items()} for _ in range(rounds)]
        fast_tensors, literal_tensors = (load_file(file) for file in files.values())
    found = turns[-1]
    seconds, processor = (
        {kind: statistics.median(turn[kind][what] for turn in turns) for kind in files}
        for what in ("seconds", "processor")
    )
    loss_gap = float((fast_tensors.pop("loss") - literal_tensors.pop("loss")).abs())
    assert fast_tensors.keys() == literal_tensors.keys()
    gradient_gap = max(
        float((fast_tensors[name] - other).norm() / other.norm().clamp(min=1e-12))
        for name, other in literal_tensors.items()
    )
    ratio = seconds["literal"] / seconds["fast"]
    verdict = "reached" if ratio >= TARGETS.get(n_classes, 1.0) else "missed"
    print(
        f"{n_classes} classes: fast {seconds['fast']:.2f} s, literal {seconds['literal']:.2f} s, ratio {ratio:.2f} "
        f"(target {TARGETS.get(n_classes, 1.0)}: {verdict}), ratio of processor time "
        f"{processor['literal'] / processor['fast']:.2f}; loss differs by {loss_gap:.1e}, gradients by "
        f"{gradient_gap:.1e} of their norm; peak memory {found['fast']['megabytes']:.0f} MB against "
        f"{found['literal']['megabytes']:.0f} MB; products take {found['fast']['products']:.0%} of the fast step",
        flush=True,
    )


def main() -> None:
    """Compare at both numbers of classes, or measure one step for the main process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, nargs="*", default=list(TARGETS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for n_classes in options.classes:
        if options.only:
            run_one(options.only[0], n_classes, Path(options.only[1]))
        else:
            compare(n_classes, options.rounds)


if __name__ == "__main__":
    main()
