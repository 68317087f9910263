"""captune demo: run zero-shot, audit and CAP on generated images, offline."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from captune.results.metrics import Metrics
    from captune.results.run import AdaptationRun

BACKBONE = "embedded:patterns"
TRAIN_IMAGES, TEST_IMAGES = 50, 25


@dataclass(frozen=True)
class Demo:
    """The results of the demo, measured on images not used for adaptation."""

    before: Metrics
    after: Metrics
    mismatched: tuple[str, ...]
    run_folder: Path
    seconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--out", default="captune-demo", metavar="FOLDER", help="output folder (default: captune-demo)")
    parser.add_argument("--seed", type=int, default=0, help="random seed")


def run(options: argparse.Namespace) -> None:
    """Run the demo and print the accuracy before and after adaptation."""
    from rich.table import Table

    from captune.commands._screen import Screen

    found = run_demo(Path(options.out), options.seed)
    shown = Table(f"on {found.after.n_images} new images", "zero-shot", "CAP", box=None, pad_edge=False)
    for label, before, after in (
        ("accuracy", f"{found.before.accuracy:.1%}", f"{found.after.accuracy:.1%}"),
        ("balanced accuracy", f"{found.before.balanced_accuracy:.1%}", f"{found.after.balanced_accuracy:.1%}"),
        ("mean of the lowest five classes", f"{found.before.lowest_five:.1%}", f"{found.after.lowest_five:.1%}"),
        ("classes never predicted", str(len(found.before.never_predicted)), str(len(found.after.never_predicted))),
    ):
        shown.add_row(label, before, after)
    console = Screen(highlight=False, markup=False)
    console.print(shown)
    console.print(f"Done in {found.seconds:.0f} s. Report: {found.run_folder / 'report.html'}", soft_wrap=True)


def run_demo(out: Path, seed: int = 0, train_images: int = TRAIN_IMAGES, quiet: bool = False, **settings: Any) -> Demo:  # noqa: ANN401
    """Generate images of textile patterns, run zero-shot, audit the names, adapt with CAP and measure."""
    from captune.auditing.audit import audit
    from captune.pipeline import adapt
    from captune.report.page import write_report
    from captune.world import class_names, descriptions_path, write_world

    started = time.monotonic()
    train, test = out / "images" / "train", out / "images" / "test"
    names = list(class_names())
    _print(quiet, f"1/4  Generating images of {len(names)} textile patterns, {train_images} each")
    write_world(train, train_images, seed, split="train")
    write_world(test, TEST_IMAGES, seed, split="test")
    common: dict[str, Any] = {"backbone": BACKBONE, "seed": seed, "cache": str(out / "cache"), "quiet": quiet}

    _print(quiet, "2/4  Zero-shot: the class whose name is closest to the image")
    zero_shot = adapt(train, names, method="zero_shot", out=out / "zero_shot", overwrite=True, **common)

    _print(quiet, "3/4  Audit: which class names are misleading?")
    describer = f"file:{descriptions_path()}"
    found = audit(train, names, describer=describer, out=out / "audit", overwrite=True, **common)
    mismatched = tuple(found.facts["mismatched"])
    _print(quiet, f"     {', '.join(mismatched) or 'none'}")

    _print(quiet, "4/4  CAP: describe those classes, then train on pseudo-labels with the calibrated margin")
    cap_settings = {"method": "cap", "preset": "quick", "describer": describer, **common, **settings}
    adapted = adapt(train, names, out=out / "run", overwrite=True, **cap_settings)
    write_report([out / "run"], labels="folders")  # the folder names are the true classes
    before, after = (_measure(run, test, out / "cache", seed) for run in (zero_shot, adapted))
    return Demo(before, after, mismatched, out / "run", time.monotonic() - started)


def _measure(run: AdaptationRun, folder: Path, cache: Path, seed: int) -> Metrics:
    from captune.core import runtime
    from captune.data.images import find_images
    from captune.data.labels import read_labels
    from captune.embeddings.cache import EmbeddingCache
    from captune.results.classifier import predict_collection
    from captune.results.metrics import summarize

    images = find_images(folder)
    labels = read_labels("folders", images, run.classifier.names)
    engine = runtime.start(seed=seed, quiet=True)
    predictions, _ = predict_collection(run.classifier, images, EmbeddingCache(cache), engine)
    return summarize(predictions.probabilities, labels[predictions.image_index], n_classes=len(run.classifier.names))


def _print(quiet: bool, text: str) -> None:
    from captune.core.progress import console

    if not quiet:
        console.print(text)
