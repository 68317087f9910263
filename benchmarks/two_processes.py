"""The same adaptation by one process and by several on this machine: losses, pseudo-labels and predictions compared.

Photographs of the embedded world are written to a temporary folder; every run is a `captune adapt` of its own that also
notes the loss of every step. The last run trains in double precision: what is left of the difference then, and comes
back in single precision, is rounding and nothing else.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from captune.world import class_names, write_world

RUNS = {
    "feature_adapter": (["--preset", "quick"], "single"),
    "maple": (["--preset", "full"], "single"),
    "feature_adapter, double": (["--preset", "quick"], "double"),
}
CLOSE = {"single": 1e-5, "double": 1e-11}
"""How far the first loss may be off, and all others, these as a share of the largest loss."""


def run_noting_steps(target: Path, precision: str, words: list[str]) -> int:
    """Be one process of a `captune` command; the first one writes the loss of every step to a file."""
    from torch import Tensor

    from captune import cli
    from captune.core import distributed

    losses: list[float] = []
    mean = distributed.mean

    def note(loss: Tensor) -> Tensor:
        found = mean(loss)
        losses.append(float(found))
        return found

    distributed.mean = note  # the loop calls it once a step
    if precision == "double":
        train_in_double()
    code = cli.main(words)
    if distributed.rank() == 0:
        target.write_text(json.dumps(losses))
    return code


def train_in_double() -> None:
    """Let everything that is trained on cached embeddings be computed in double precision."""
    import torch
    from torch import Tensor

    from captune.training.objective import ConfusionObjective
    from captune.tuners.base import Tuner
    from captune.tuners.feature_adapter import ResidualAdapter

    to_device, adapt_floats = ConfusionObjective.to, ResidualAdapter.forward

    def to_double(self: ConfusionObjective, device: torch.device) -> ConfusionObjective:
        return to_device(self, device).double()

    def adapt_doubles(self: ResidualAdapter, embeddings: Tensor) -> Tensor:
        return adapt_floats(self, embeddings.to(self.down.weight))

    def logits(self: Tuner, images: Tensor, classes: Tensor) -> Tensor:
        return self.backbone.logit_scale * images.to(classes) @ classes.T

    ConfusionObjective.to, ResidualAdapter.forward = to_double, adapt_doubles  # type: ignore[assignment,method-assign]
    Tuner.logits = logits  # type: ignore[method-assign]


def adapt(
    images: Path, out: Path, words: list[str], precision: str, devices: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Run one adaptation and return what it left behind."""
    short = {"epochs": options.epochs, "iterations": options.iterations, "grow_every": 2, "train_batch": 16, "k": 4}
    settings = [word for key, value in short.items() for word in ("--set", f"{key}={value}")]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices)] if devices > 1 else []
    steps = Path(f"{out}-steps.json")
    command = [sys.executable, *torchrun, __file__, "--one", str(steps), precision]
    command += ["adapt", str(images), "--classes", ",".join(class_names())]
    command += ["--backbone", "embedded:patterns", "--method", "cap", "--out", str(out), "--workers", "1"]
    started = time.perf_counter()
    cache = ["--set", f"cache={out}-cache"]
    subprocess.run([*command, *words, *settings, *cache, "--accelerator", "cpu"], check=True, capture_output=True)
    card = json.loads((out / "run.json").read_text())
    return {
        "losses": json.loads(steps.read_text()),
        "accepted": [facts["accepted"] for facts in card["rounds"] if facts["step"] == "epoch"],
        "labels": columns(out / "pseudo_labels.csv"),
        "predictions": columns(out / "predictions.csv"),
        "processes": card["environment"]["processes"],
        "seconds": time.perf_counter() - started,
    }


def columns(path: Path) -> dict[str, str]:
    """Return the label of each path in a table."""
    with path.open(newline="") as file:
        return {row["path"]: row["label"] for row in csv.DictReader(file)}


def main() -> int:
    """Compare and print; fail when anything differs by more than rounding."""
    if sys.argv[1:2] == ["--one"]:
        return run_noting_steps(Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--images", type=int, default=8, help="images of each class")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    options = parser.parse_args()
    is_good = True
    print(
        "| run | loss of a step | off in the first | off in the worst | of its loss | labels | accepted | predictions |"
    )
    print("|---|---|---:|---:|---:|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder, "images")
        write_world(images, options.images, seed=0)
        for name in options.runs:
            words, precision = RUNS[name]
            one = adapt(images, Path(folder, f"{name}-1"), words, precision, 1, options)
            many = adapt(images, Path(folder, f"{name}-many"), words, precision, options.processes, options)
            assert many["processes"] == options.processes
            assert len(one["losses"]) == len(many["losses"]) == options.epochs * options.iterations
            off = [abs(a - b) for a, b in zip(one["losses"], many["losses"], strict=True)]
            relative = max(off) / max(1.0, *one["losses"])
            same = {what: one[what] == many[what] for what in ("labels", "accepted", "predictions")}
            is_good &= max(off[0], relative) < CLOSE[precision] and all(same.values())
            shown = " | ".join("same" if equal else "DIFFERENT" for equal in same.values())
            losses = f"{min(one['losses']):.2f} to {max(one['losses']):.2f}"
            print(f"| {name} | {losses} | {off[0]:.1e} | {max(off):.1e} | {relative:.1e} | {shown} |", flush=True)
            print(f"  seconds: {one['seconds']:.0f} / {many['seconds']:.0f}", file=sys.stderr)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
