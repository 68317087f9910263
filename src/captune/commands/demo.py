"""captune demo: run zero-shot, audit, CAP and twelve simulated answers on generated images, offline."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from captune.results.classifier import Classifier
    from captune.results.metrics import Metrics
    from captune.review.session import Session

BACKBONE = "embedded:patterns"
TRAIN_IMAGES, TEST_IMAGES = 50, 25
N_ANSWERS = 12


@dataclass(frozen=True)
class Demo:
    """The results of the demo, measured on images not used for adaptation."""

    before: Metrics
    after: Metrics
    answered: Metrics
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
    columns = ("zero-shot", "CAP", f"{N_ANSWERS} answers")
    shown = Table(f"on {found.after.n_images} new images", *columns, box=None, pad_edge=False)
    measured = (found.before, found.after, found.answered)
    shown.add_row("accuracy", *(f"{metrics.accuracy:.1%}" for metrics in measured))
    shown.add_row("balanced accuracy", *(f"{metrics.balanced_accuracy:.1%}" for metrics in measured))
    shown.add_row("mean of the lowest five classes", *(f"{metrics.lowest_five:.1%}" for metrics in measured))
    shown.add_row("classes never predicted", *(str(len(metrics.never_predicted)) for metrics in measured))
    console = Screen(highlight=False, markup=False)
    console.print(shown)
    console.print(f"Done in {found.seconds:.0f} s. Report: {found.run_folder / 'report.html'}", soft_wrap=True)


def run_demo(out: Path, seed: int = 0, train_images: int = TRAIN_IMAGES, quiet: bool = False, **settings: Any) -> Demo:  # noqa: ANN401
    """Generate images of textile patterns, run zero-shot, audit the names, adapt with CAP, answer, and measure."""
    from captune.pipeline import adapt, audit
    from captune.report.page import write_report
    from captune.review.opening import open_session
    from captune.world import class_names, descriptions_path, write_world

    started = time.monotonic()
    train, test = out / "images" / "train", out / "images" / "test"
    names = list(class_names())
    _print(quiet, f"1/5  Generating images of {len(names)} textile patterns, {train_images} each")
    write_world(train, train_images, seed, split="train")
    write_world(test, TEST_IMAGES, seed, split="test")
    common: dict[str, Any] = {"backbone": BACKBONE, "seed": seed, "cache": str(out / "cache"), "quiet": quiet}

    _print(quiet, "2/5  Zero-shot: the class whose name is closest to the image")
    zero_shot = adapt(train, names, method="zero_shot", out=out / "zero_shot", overwrite=True, **common)

    _print(quiet, "3/5  Audit: which class names are misleading?")
    describer = f"file:{descriptions_path()}"
    found = audit(train, names, describer=describer, out=out / "audit", overwrite=True, **common)
    mismatched = tuple(found.alignment["mismatched"])
    _print(quiet, f"     {', '.join(mismatched) or 'none'}")

    _print(quiet, "4/5  CAP: describe those classes, then train on pseudo-labels with the calibrated margin")
    cap_settings = {"method": "cap", "preset": "quick", "describer": describer, **common, **settings}
    adapted = adapt(train, names, out=out / "run", overwrite=True, **cap_settings)
    write_report([out / "run"], labels="folders")  # the folder names are the true classes

    _print(quiet, f"5/5  Or ask a person, without descriptions: {N_ANSWERS} names for groups of images that look alike")
    session = open_session(train, names, backbone=BACKBONE, seed=seed, cache=str(out / "cache"))
    n_changed = _answer_groups(session, N_ANSWERS)
    _print(quiet, f"     {n_changed} of {len(session.images)} predictions changed")
    classifiers = (zero_shot.classifier, adapted.classifier, session.classifier)
    before, after, answered = (_measure(classifier, test, out / "cache", seed) for classifier in classifiers)
    return Demo(before, after, answered, mismatched, out / "run", time.monotonic() - started)


def _answer_groups(session: Session, count: int) -> int:
    """Name the groups with the most unclear images as a person would, and return how many predictions changed."""
    import numpy as np

    from captune.data.labels import read_labels

    truth = read_labels("folders", session.images, session.names)
    start = session.predictions.labels
    for group in sorted(session.groups(), key=lambda group: -len(group) * (1.0 - group.confidence))[:count]:
        most_common = int(np.bincount(truth[group.images]).argmax())
        session.name_group(group.number, session.names[most_common])
    return int(np.sum(session.predictions.labels != start))


def _measure(classifier: Classifier, folder: Path, cache: Path, seed: int) -> Metrics:
    from captune.core.settings import RunSettings

    return classifier.evaluate(folder, "folders", settings=RunSettings(seed=seed, cache=str(cache)))


def _print(quiet: bool, text: str) -> None:
    from captune.core.progress import console

    if not quiet:
        console.print(text)
