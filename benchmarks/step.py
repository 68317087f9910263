"""One training step of CAP with MaPLe against a literal one, in one run, on a random CLIP of ViT-B/32's size.

The literal step encodes the class texts anew for each of its three views, at CLIP's full 77 tokens, encodes the three
image batches one by one, and keeps the graph of the weak view, whose labels need none. Both compute the same loss.
captune's step keeps its memory for the next one, as in training; the literal one has the system's defaults.
The memory of each is the peak of a process of its own, beyond what the loaded model takes.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.profiler import ProfilerActivity, profile
from transformers import CLIPConfig, CLIPModel

from captune.backbones.base import Tokens
from captune.backbones.hf import HuggingFace, read_preprocessing
from captune.core import runtime
from captune.core._memory import kept_memory
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
    backbone = HuggingFace("hf:random-vit-base-32", model, WordTokenizer(end), read_preprocessing({}, config, "random"))
    names = tuple(" ".join([f"kind{c}", *["word"] * (2 + c % 7)]) for c in range(n_classes))
    tuner = Maple(backbone, Vocabulary(names, ("a photo of a {}",)))
    nothing = ImageCollection((), Path())
    engine = runtime.start(quiet=True, workers=0)
    source = PixelSource(nothing, nothing, np.empty(0, dtype=np.int64), backbone.preprocessing, engine)
    objective = ConfusionObjective(tuner, source, torch.ones(n_classes, dtype=torch.bool), 0.0, 128, True)
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


def run_one(kind: str, n_classes: int) -> None:
    """Do a step, or captune's own twice, in this process and print its peak memory beyond the model, in MB."""
    objective, batch = make_objective(n_classes), make_batch(n_classes)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    before = peak_kilobytes()
    if kind == "fast":
        with kept_memory():
            for _ in range(2):  # what is kept of one step must not add to the next
                fast_step(objective, batch)
    else:
        literal_step(padded(objective), batch)
    print((peak_kilobytes() - before) / 1024)


def peak_kilobytes() -> int:
    """Return the largest resident memory of this process since the count began."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def memory_of(kind: str, n_classes: int) -> float:
    """Return the peak memory of one step in a fresh process, in MB."""
    command = [sys.executable, __file__, "--only", kind, "--classes", str(n_classes)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def compare(n_classes: int, rounds: int) -> None:
    """Time both steps in turn, compare losses and gradients, and print a row with where our time goes."""
    megabytes = {kind: memory_of(kind, n_classes) for kind in ("fast", "literal")}  # alone: it may fill the machine
    objective, batch = make_objective(n_classes), make_batch(n_classes)
    steps = {"fast": (fast_step, objective), "literal": (literal_step, padded(objective))}
    seconds: dict[str, list[float]] = {kind: [] for kind in steps}
    found: dict[str, tuple[Tensor, list[Tensor]]] = {}
    for turn in range(rounds + 1):  # the first turn warms up
        for kind, (step, student) in steps.items():
            with kept_memory() if kind == "fast" else nullcontext():  # as captune trains
                for _ in range(2 if kind == "fast" else 1):  # the first one's memory is kept for the second
                    objective.zero_grad(set_to_none=True)
                    started = time.perf_counter()
                    loss = step(student, batch)
                    took = time.perf_counter() - started
            if turn:
                seconds[kind].append(took)
            gradients = [p.grad.clone() for p in objective.parameters() if p.grad is not None]
            found[kind] = (loss, gradients)
    medians = {kind: statistics.median(times) for kind, times in seconds.items()}
    loss_gap = float((found["fast"][0] - found["literal"][0]).abs())
    pairs = list(zip(found["fast"][1], found["literal"][1], strict=True))
    gradient_gap = max(float((a - b).norm() / b.norm().clamp(min=1e-12)) for a, b in pairs)
    ratio = medians["literal"] / medians["fast"]
    verdict = "reached" if ratio >= TARGETS.get(n_classes, 1.0) else "missed"
    print(
        f"{n_classes} classes: fast {medians['fast']:.2f} s, literal {medians['literal']:.2f} s, ratio {ratio:.2f} "
        f"(aim {TARGETS.get(n_classes, 1.0)}: {verdict}); loss differs by {loss_gap:.1e}, gradients by "
        f"{gradient_gap:.1e} of their norm; peak memory {megabytes['fast']:.0f} MB against "
        f"{megabytes['literal']:.0f} MB",
        flush=True,
    )
    with kept_memory(), profile(activities=[ProfilerActivity.CPU]) as seen:
        fast_step(objective, batch)
    events = seen.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    products = sum(e.self_cpu_time_total for e in events if any(word in e.key for word in MATRIX_PRODUCTS))
    print(f"  matrix products take {products / total:.0%} of the fast step", flush=True)


def main() -> None:
    """Compare at both numbers of classes, or do what the main process asks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, nargs="*", default=list(TARGETS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("fast", "literal"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    for n_classes in options.classes:
        if options.only:
            run_one(options.only, n_classes)
        else:
            compare(n_classes, options.rounds)


if __name__ == "__main__":
    main()
