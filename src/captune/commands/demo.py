"""The demo: zero-shot, audit, CAP and twelve simulated answers on generated images, offline."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captune.commands._shared import argument, command, out, print_table, say

if TYPE_CHECKING:
    from captune.results.metrics import Metrics
    from captune.review.session import Session

BACKBONE = "embedded:patterns"
TRAIN_IMAGES, TEST_IMAGES = 50, 25
N_ANSWERS = 12


@command(
    out(help="output folder (default: captune-demo)", default="captune-demo"),
    argument("--seed", type=int, default=0, help="random seed"),
)
def demo(options: argparse.Namespace) -> None:
    """Run zero-shot, audit, CAP and twelve simulated answers on generated images, offline."""
    started, folder = time.monotonic(), Path(options.out)
    measured, _ = run_demo(folder, options.seed)
    rows = (
        ("accuracy", *(f"{metrics.accuracy:.1%}" for metrics in measured)),
        ("balanced accuracy", *(f"{metrics.balanced_accuracy:.1%}" for metrics in measured)),
        ("mean of the lowest five classes", *(f"{metrics.lowest_five:.1%}" for metrics in measured)),
        ("classes never predicted", *(len(metrics.never_predicted) for metrics in measured)),
    )
    print_table(rows, f"on {measured[0].n_images} new images", "zero-shot", "CAP", f"{N_ANSWERS} answers")
    say(f"Done in {time.monotonic() - started:.0f} s. Report: {folder / 'run' / 'report.html'}")


def run_demo(
    folder: Path,
    seed: int = 0,
    train_images: int = TRAIN_IMAGES,
    **settings: Any,  # noqa: ANN401
) -> tuple[list[Metrics], list[str]]:
    """Return metrics on new images after zero-shot, CAP and answers, and the names that the audit calls misleading."""
    from captune.core.runtime import console
    from captune.core.settings import RunSettings
    from captune.pipeline import adapt, audit
    from captune.report.page import write_report
    from captune.review.opening import open_session
    from captune.world import class_names, descriptions_path, write_world

    tell, cache = console.print, str(folder / "cache")
    train, test = folder / "images" / "train", folder / "images" / "test"
    names = list(class_names())
    tell(f"1/5  Generating images of {len(names)} textile patterns, {train_images} each")
    write_world(train, train_images, seed, split="train")
    write_world(test, TEST_IMAGES, seed, split="test")
    common: dict[str, Any] = {"backbone": BACKBONE, "seed": seed, "cache": cache, "overwrite": True}

    tell("2/5  Zero-shot: the class whose name is closest to the image")
    zero_shot = adapt(train, names, method="zero_shot", out=folder / "zero_shot", **common)

    tell("3/5  Audit: which class names are misleading?")
    common["describer"] = f"file:{descriptions_path()}"
    mismatched = list(audit(train, names, out=folder / "audit", **common).alignment["mismatched"])
    tell(f"     {', '.join(mismatched) or 'none'}")

    tell("4/5  CAP: describe those classes, then train on pseudo-labels with the calibrated margin")
    adapted = adapt(train, names, out=folder / "run", method="cap", preset="quick", **common, **settings)
    write_report([folder / "run"], labels="folders")  # the folder names are the true classes

    tell(f"5/5  Or ask a person, without descriptions: {N_ANSWERS} names for groups of images that look alike")
    session = open_session(train, names, backbone=BACKBONE, seed=seed, cache=cache)
    tell(f"     {_answer_groups(session, N_ANSWERS)} of {len(session.images)} predictions changed")
    measured = [
        classifier.evaluate(test, "folders", settings=RunSettings(seed=seed, cache=cache))
        for classifier in (zero_shot.classifier, adapted.classifier, session.classifier)
    ]
    return measured, mismatched


def _answer_groups(session: Session, count: int) -> int:
    """Name the groups with the most unclear images as a person would, and return how many predictions changed."""
    import numpy as np

    from captune.data.labels import read_labels

    truth = read_labels("folders", session.images, session.names)
    for group in sorted(session.groups(), key=lambda group: -len(group) * (1.0 - group.confidence))[:count]:
        most_common = int(np.bincount(truth[group.images]).argmax())
        session.name_group(group.number, session.names[most_common])
    return int(session.changed().sum())
