"""How often the health check is right, for every registered method, on balanced and long-tailed images.

    python benchmarks/health.py                                  # UC Merced in CAPTUNE_TESTBED, with its descriptions
    python benchmarks/health.py --names-only                     # the same without descriptions
    python benchmarks/health.py --world --methods transductive   # the embedded world; needs no files

Long tails are drawn by `captune.benchmark.splits`; a seed draws the tail and is the seed of the method too. Accuracy
is measured on the images adapted to. The check is right if its verdict is harmful exactly when accuracy fell.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from captune.benchmark.splits import long_tail
from captune.core import registry
from captune.data.images import ImageCollection, find_images
from captune.data.labels import read_labels
from captune.data.task import AdaptationTask
from captune.data.vocabulary import Vocabulary, read_class_names
from captune.pipeline import carry_out
from captune.plan import plan_for_task
from captune.results.metrics import summarize
from captune.world import descriptions_path, write_world


@dataclass(frozen=True)
class Scene:
    """Images with their true labels, and the settings of every run."""

    images: ImageCollection
    labels: np.ndarray[Any, np.dtype[np.int64]]
    names: tuple[str, ...]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The result of one run, and the verdict of the check."""

    before: float
    after: float
    balanced_before: float
    balanced_after: float
    verdict: str
    seconds: float

    @property
    def is_right(self) -> bool | None:
        """Return whether the verdict matches the accuracy; None for an unclear verdict."""
        return None if self.verdict == "unclear" else (self.verdict == "harmful") == (self.after < self.before)


def measure(scene: Scene, method: str, ratio: float, seed: int) -> Outcome:
    """Adapt to a long-tailed part of the images and compare with zero-shot."""
    chosen = long_tail(scene.labels, ratio, seed)
    images, truth = scene.images.subset(chosen), scene.labels[chosen]
    task = AdaptationTask(Vocabulary(scene.names, ("a photo of a {}",)), images)
    started = time.time()
    run = carry_out(plan_for_task(task, {**scene.settings, "method": method, "seed": seed}), quiet=True)
    assert run.evidence is not None
    truth = truth[run.predictions.image_index]
    n_classes = len(scene.names)
    before = summarize(np.eye(n_classes, dtype=np.float32)[run.evidence.arrays["before_labels"]], truth, n_classes)
    after = summarize(run.predictions.probabilities, truth, n_classes)
    check = run.evidence.health
    return Outcome(
        before.accuracy,
        after.accuracy,
        before.balanced_accuracy,
        after.balanced_accuracy,
        check.verdict if check is not None else "unclear",
        time.time() - started,
    )


def row(method: str, ratio: float, outcomes: Sequence[Outcome]) -> str:
    """Return one line of the table: means over the seeds, and counts of them."""
    changes = [
        f"{np.mean([getattr(o, old) for o in outcomes]):.1%} -> {np.mean([getattr(o, new) for o in outcomes]):.1%}"
        for old, new in (("before", "after"), ("balanced_before", "balanced_after"))
    ]
    n = len(outcomes)
    fell = sum(o.after < o.before for o in outcomes)
    said = {what: sum(o.verdict == what for o in outcomes) for what in ("harmful", "unclear")}
    right = sum(o.is_right is True for o in outcomes)
    seconds = np.mean([o.seconds for o in outcomes])
    return (
        f"| {method} | {ratio:g} | {changes[0]} | {changes[1]} | {fell} of {n} | {said['harmful']} of {n} "
        f"| {said['unclear']} of {n} | {right} of {n} | {seconds:.0f} s |"
    )


def scenes(words: argparse.Namespace) -> Iterator[Scene]:
    """Yield the requested scene; images of the world are written to a temporary folder."""
    common: dict[str, Any] = {"preset": "quick"}
    if words.world:
        with tempfile.TemporaryDirectory() as folder:
            write_world(Path(folder), 50, 0, split="train")
            descriptions, backbone = descriptions_path(), "embedded:patterns"
            yield _scene(Path(folder), {**common, "backbone": backbone}, None if words.names_only else descriptions)
        return
    data = Path(words.testbed, "data", "ucmerced")
    common["backbone"] = f"dual:{Path(words.testbed, 'models', 'aerial-dual')}"
    yield _scene(data / "train", common, None if words.names_only else data / "descriptions.yaml")


def _scene(folder: Path, settings: dict[str, Any], descriptions: Path | None) -> Scene:
    names, images = read_class_names(folder), find_images(folder)
    if descriptions is not None:
        settings = {**settings, "describer": f"file:{descriptions}"}
    return Scene(images, read_labels("folders", images, names), names, settings)


def main() -> int:
    """Print the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--testbed", default=os.environ.get("CAPTUNE_TESTBED"), help="default: CAPTUNE_TESTBED")
    parser.add_argument("--world", action="store_true", help="the embedded world instead of UC Merced")
    parser.add_argument("--names-only", action="store_true", help="without descriptions")
    parser.add_argument("--methods", nargs="+", help="default: all that are registered and adapt")
    parser.add_argument("--imbalance", nargs="+", type=float, default=[1, 10, 50])
    parser.add_argument("--seeds", type=int, default=3)
    words = parser.parse_args()
    if not words.world and not (words.testbed and Path(words.testbed, "models", "aerial-dual").is_dir()):
        print("skipped: set CAPTUNE_TESTBED to the folder with data/ucmerced and models/aerial-dual, or use --world")
        return 0
    print("| method | imbalance | accuracy | balanced accuracy | fell | said harmful | left open | right | time |")
    print("|---" * 9 + "|", flush=True)
    everything: list[Outcome] = []
    for scene in scenes(words):
        for method in words.methods or [name for name in registry.names("methods") if not name.startswith("zero_shot")]:
            for ratio in words.imbalance:
                outcomes = [measure(scene, method, ratio, seed) for seed in range(words.seeds)]
                everything += outcomes
                print(row(method, ratio, outcomes), flush=True)
    judged = [outcome.is_right for outcome in everything if outcome.is_right is not None]
    print(f"\n{sum(judged)} of {len(judged)} verdicts were right; {len(everything) - len(judged)} runs were left open.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
