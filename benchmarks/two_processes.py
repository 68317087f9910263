"""The same adaptation by one process and by several on this machine: losses, pseudo-labels and predictions compared.

Photographs of the embedded world are written to a temporary folder; every run is a `captune adapt` of its own.
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
    "feature_adapter": ["--preset", "quick"],
    "maple": ["--preset", "full"],
}


def adapt(images: Path, out: Path, words: list[str], devices: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run one adaptation and return what it left behind."""
    short = {"epochs": options.epochs, "iterations": options.iterations, "grow_every": 2, "train_batch": 16, "k": 4}
    settings = [word for key, value in short.items() for word in ("--set", f"{key}={value}")]
    where = ["--devices", str(devices), "--accelerator", "cpu", "--strategy", "ddp" if devices > 1 else "auto"]
    command = [sys.executable, "-m", "captune.cli", "adapt", str(images), "--classes", ",".join(class_names())]
    command += ["--backbone", "embedded:patterns", "--method", "cap", "--out", str(out), "--workers", "1"]
    started = time.perf_counter()
    cache = ["--set", f"cache={out}-cache"]
    subprocess.run([*command, *words, *settings, *cache, *where], check=True, capture_output=True)
    card = json.loads((out / "run.json").read_text())
    return {
        "losses": [facts["loss"] for facts in card["rounds"] if facts["step"] == "epoch"],
        "margins": [facts["largest_margin"] for facts in card["rounds"] if facts["step"] == "epoch"],
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--images", type=int, default=8, help="images of each class")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=5)
    options = parser.parse_args()
    is_same = True
    print("tuner            largest difference of the loss (of)   pseudo-labels   accepted   predictions   seconds")
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder, "images")
        write_world(images, options.images, seed=0)
        for tuner, words in RUNS.items():
            one = adapt(images, Path(folder, f"{tuner}-1"), words, 1, options)
            many = adapt(images, Path(folder, f"{tuner}-many"), words, options.processes, options)
            assert many["processes"] == options.processes
            worst = max(abs(a - b) for a, b in zip(one["losses"], many["losses"], strict=True))
            same = {what: one[what] == many[what] for what in ("labels", "accepted", "predictions")}
            is_same &= worst < 1e-5 * max(1.0, *one["losses"]) and all(same.values())
            shown = {what: "same" if equal else "DIFFERENT" for what, equal in same.items()}
            print(
                f"{tuner:<16} {worst:.1e} ({min(one['losses']):.2f} to {max(one['losses']):.2f})"
                f"{shown['labels']:>18} ({len(one['labels'])}) {shown['accepted']:>9} {shown['predictions']:>8} "
                f"({len(one['predictions'])}) {one['seconds']:7.0f} / {many['seconds']:.0f}"
            )
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
