"""The curve of CAP's full recipe (MaPLe, 50 x 50 steps) on UC Merced: test accuracy and pseudo-labels as it trains.

    python benchmarks/curve.py train RUN COPIES    # hours on a CPU; goes on where it was stopped
    python benchmarks/curve.py show COPIES         # a table row for every fifth epoch that there is

`train` is `captune adapt` with the settings below, beside a thread that copies every checkpoint before it is replaced
by later ones. Labels are looked at by `show` only. `--set KEY=VALUE` changes a setting, in both alike; `--until EPOCH`
stops after an epoch, with the learning rates of the whole training. The arms that compare gradient clipping and texts
over the first ten epochs:

    python benchmarks/curve.py train RUN COPIES --until 10 --set gradient_clip=0 --set class_texts=names
    python benchmarks/curve.py train RUN COPIES --until 10 --set class_texts=names
    python benchmarks/curve.py train RUN COPIES --until 10 --set gradient_clip=0
    python benchmarks/curve.py train RUN COPIES --until 10

Each takes about 40 minutes of two cores with nothing beside it; the same command without `--until` goes on to the end.
`--set precision=bf16-mixed` halves this where the processor has instructions for it, `--set devices=2` uses two
processes, and MALLOC_MMAP_MAX_=0 in the environment keeps memory between steps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from captune import pipeline
from captune.backbones.base import load_backbone
from captune.core import runtime
from captune.core.settings import parse_overrides
from captune.data.images import find_images
from captune.data.labels import read_labels
from captune.describers.base import open_describer
from captune.embeddings.cache import EmbeddingCache, default_folder
from captune.methods.base import Context
from captune.plan import Plan, make_plan
from captune.results.classifier import Classifier
from captune.results.metrics import summarize
from captune.results.run_folder import CHECKPOINTS
from captune.training.checkpoint import FILES

TUNED = {"detection": "robust", "describe": "all"}
"""What the paper leaves open, or fixes for CLIP's own weights, as it suits these photographs and this model."""


def settings(testbed: Path, changed: list[str]) -> dict[str, Any]:
    """Return the settings of the run, with those that are `changed` as KEY=VALUE."""
    return {
        "method": "cap",
        "preset": "full",
        "backbone": f"dual:{testbed / 'models' / 'aerial-dual'}",
        "describer": f"file:{testbed / 'data' / 'ucmerced' / 'descriptions.yaml'}",
        **TUNED,
        **parse_overrides(changed),
    }


def train(testbed: Path, run: Path, copies: Path, chosen: dict[str, Any], until: int) -> None:
    """Train, or go on training, until an epoch is finished (0 for all), and keep a copy of every checkpoint."""
    images, done = testbed / "data" / "ucmerced" / "train", threading.Event()
    copies.mkdir(parents=True, exist_ok=True)
    if until and any(read_note(path)["epoch"] >= until for path in copies.glob(FILES)):
        print(f"epoch {until} is finished; without --until, training goes on")
        return

    def copy() -> None:
        while not done.wait(10):
            for path in (run / CHECKPOINTS).glob(FILES):
                if not (copies / path.name).exists():
                    shutil.copy(path, copies)
                    if until and read_note(copies / path.name)["epoch"] >= until:
                        os.kill(os.getpid(), signal.SIGTERM)  # training saves its state and stops
                        return

    threading.Thread(target=copy, daemon=True).start()
    pipeline.adapt(images, images, out=run, resume=(run / CHECKPOINTS).exists(), workers=1, **chosen)
    done.set()


def read_note(path: Path) -> dict[str, Any]:
    """Return the epoch, the step and other facts of a checkpoint."""
    with safe_open(str(path), "pt") as file:
        note: dict[str, Any] = json.loads(file.metadata()["captune"])
    return note


def rows(plan: Plan, testbed: Path, files: list[Path], every: int) -> Iterator[list[str]]:
    """Yield epoch, loss, accepted share, size and precision of D_PL, and test accuracy of checkpoints."""
    chosen = plan.settings  # the order of the images depends on the bits of their embeddings
    engine = runtime.start(seed=chosen.seed, precision=chosen.precision, workers=0, quiet=True)
    cache = EmbeddingCache(default_folder())
    backbone = load_backbone(plan.settings.backbone)
    context = Context(engine, cache, describer=open_describer(plan.settings.describer, default_folder()))
    task = context.in_canonical_order(plan.task, backbone)
    schedule = plan.method.prepare(task, backbone, context)  # type: ignore[attr-defined]
    objective = schedule.objective
    images = find_images(testbed / "data" / "ucmerced" / "test")
    names = task.vocabulary.names
    truth, pool_truth = read_labels("folders", images, names), read_labels("folders", task.unlabeled, names)
    for path in files:
        note = read_note(path)
        with safe_open(str(path), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        epoch = note["epoch"]
        if note["step"] or (epoch % every and epoch != 1):
            continue
        with torch.no_grad():
            for name, parameter in objective.named_parameters():
                parameter.copy_(tensors[f"parameter.{name}"])
        schedule.restore({n.removeprefix("schedule."): t for n, t in tensors.items()}, note["facts"])
        found = Classifier.from_tuner(objective.tuner).compute(images, cache, engine)
        labels, last = schedule.pseudo_labels, schedule.context.rounds[-1]
        right = np.mean(labels.labels == pool_truth[labels.image_index])
        test = summarize(found.probabilities, truth[found.image_index], n_classes=len(names))
        yield [
            *(str(epoch), f"{last['loss']:.3f}", f"{100 * last['accepted_share']:.0f} %", str(len(labels))),
            *(f"{100 * value:.1f}" for value in (right, test.accuracy, test.lowest_five)),
        ]


def main() -> int:
    """Train, or show what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--testbed", default=os.environ.get("CAPTUNE_TESTBED"), help="default: CAPTUNE_TESTBED")
    parser.add_argument("--every", type=int, default=5, help="epochs between the rows of the table")
    parser.add_argument("--until", type=int, default=0, help="stop after this epoch; default: train to the end")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("what", choices=("train", "show"))
    parser.add_argument("folders", nargs="+", type=Path)
    words = parser.parse_args()
    if len(words.folders) != (2 if words.what == "train" else 1):
        parser.error("expected: train RUN COPIES, or show COPIES")
    if not (words.testbed and Path(words.testbed, "models", "aerial-dual").is_dir()):
        print("skipped: set CAPTUNE_TESTBED to the folder with data/ucmerced and models/aerial-dual")
        return 0
    testbed = Path(words.testbed)
    chosen = settings(testbed, words.set)
    if words.what == "train":
        try:
            train(testbed, *words.folders, chosen, words.until)
        except KeyboardInterrupt:
            print("stopped; the same command goes on")
            return 130
        return 0
    pool = testbed / "data" / "ucmerced" / "train"
    files = sorted(words.folders[0].glob(FILES))
    print("| epoch | loss | accepted | D_PL | of these right | test accuracy | lowest five |")
    print("|---" * 7 + "|", flush=True)
    for row in rows(make_plan(pool, pool, None, chosen), testbed, files, words.every):
        print("| " + " | ".join(row) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
