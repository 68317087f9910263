"""What others see of a run, and what there is: report, card, export, distill and list."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from captune.commands import _shared
from captune.commands._shared import argument, command, flag, out, print_table, say, write_lines
from captune.core import registry
from captune.core.errors import CaptuneError, InputError

ROLES = ("methods", "backbones", "tuners", "describers", "datasets", "exports")
CHOICES = (*ROLES, "models", "suites")


@command(
    argument("runs", nargs="+", metavar="RUN", help="run or audit folder; several runs are compared"),
    argument("--labels", metavar="folders|CSV", help="true labels: 'folders' or a table (path, label)"),
    out(help="output file (default: RUN/report.html)", metavar="HTML"),
    argument("--images", metavar="FOLDER", help="folder of the images, if it moved or the run is not yours"),
    argument("--figures", metavar="FOLDER", help="also write the figures as PNG, SVG and CSV files"),
)
def report(options: argparse.Namespace) -> None:
    """Write the report of a run or audit, or compare runs."""
    from captune.report.page import write_report

    page = write_report(options.runs, options.out, options.labels, options.figures, options.images)
    say(f"Report: {page}")


@command(
    _shared.RUN,
    argument("--format", required=True, metavar="NAME", help="see captune list exports"),
    out(help="output file or folder (default: in RUN/exports)", metavar="PATH"),
    flag("--overwrite", help="replace an earlier export"),
    argument("--min-confidence", type=float, metavar="P", help="only images with at least this confidence"),
    argument("--precision", type=float, metavar="P", help="only labels that captune accept certifies"),
    argument(
        "--source",
        choices=("predictions", "pseudo-labels"),
        help="labels of all images (default), or those used for training",
    ),
    argument("--prefix", help="prefix of all image names, such as s3://bucket/"),
    argument("--splits", metavar="A,B,C", help="imagefolder: shares of training, validation, test (default: 80,10,10)"),
    flag("--link", help="imagefolder: link to the images instead of copying them", default=None),
    flag("--int8", help="onnx: also write name.int8.onnx", default=None),
    argument("--images", metavar="IMAGES", help="images to verify a model with, or the folder of the images"),
    argument("--labels", metavar="folders|CSV", help="onnx: measure accuracy; cleanlab: use these labels"),
    argument("--check", dest="n_checked", type=int, metavar="N", help="number of images to verify with (default: 64)"),
    epilog="captune list exports describes the formats.",
)
def export(options: argparse.Namespace) -> None:
    """Write the model (onnx, hf) or the labels of a run for other tools."""
    from captune.exports.base import ExportSettings, export

    given = {f.name: value for f in fields(ExportSettings) if (value := getattr(options, f.name)) is not None}
    made = export(options.run, options.format, options.out, options.overwrite, **given)
    for remark in made.remarks:
        say(remark)
    say(f"Written: {made.path}")


@command(_shared.RUN, out(help="file (default: standard output)", metavar="MD"))
def card(options: argparse.Namespace) -> None:
    """Write the model card of a run: data, method, precision, limits, licenses and versions."""
    from captune.report.card import model_card
    from captune.results.run import Run

    write_lines([model_card(Run.read(options.run))], options.out)


@command(
    _shared.RUN,
    argument("--student", default="small", metavar="ID", help="small (default), timm:NAME, or hf:NAME of transformers"),
    out(help="ONNX file, or its folder (default: RUN/exports/student.onnx)", metavar="PATH"),
    argument("--test", metavar="IMAGES", help="labeled images to measure student and teacher with"),
    argument("--test-labels", default="folders", metavar="folders|CSV", help="their labels"),
    argument("--image-size", type=int, default=0, metavar="N", help="side of the student's images in pixels"),
    argument("--epochs", type=int, default=300, metavar="N", help="number of epochs (default: 300)"),
    argument("--seed", type=int, default=0, help="random seed"),
    argument("--workers", type=int, default=-1, help="number of processes that decode images"),
    _shared.MOVED_IMAGES,
    _shared.OVERWRITE,
    _shared.QUIET,
)
def distill(options: argparse.Namespace) -> None:
    """Train a small image classifier on the labels of a run, which works without its backbone."""
    from captune.results.run import Run

    names = ("student", "test", "test_labels", "image_size", "epochs", "seed", "workers", "overwrite", "quiet")
    given = {name: getattr(options, name) for name in names}
    made = Run.read(options.run).distill(options.out, images=options.moved_images, **given)
    say(str(made))
    say(f"Written: {made.path}")


@command(
    argument("what", choices=CHOICES, metavar="|".join(CHOICES), nargs="?", help="default: everything"),
    argument("--data", metavar="ROOT", help="datasets: folder to look in"),
)
def list_(options: argparse.Namespace) -> None:
    """Show the available methods, backbones and other plug-ins, and models with short names."""
    if options.what != "datasets" and options.data:
        raise InputError("--data applies to datasets: captune list datasets --data ROOT")
    if options.what == "datasets":
        header = ("name", "found", "classes", "pool", "test", "license and source")
        print_table(_datasets(Path(options.data) if options.data else None), *header)
        if options.data is None:
            say("With --data ROOT, the column 'found' shows which ones exist there.")
        return
    for what in CHOICES if options.what is None else (options.what,):
        if options.what is None:
            say(f"{what}:")
        print_table(_sentences(what), "name", "description")


def _sentences(what: Any) -> list[tuple[str, str]]:  # noqa: ANN401 (one of CHOICES, which argparse has checked)
    if what == "models":
        from captune.core.settings import named_models

        # Each fact on a line of its own, without those that are empty.
        return [(name, "\n".join(filter(None, vars(model).values()))) for name, model in named_models().items()]
    if what == "suites":
        from captune.benchmark.suite import shipped_suites, suite_title

        return [(name, suite_title(path)) for name, path in shipped_suites().items()]
    return [(name, registry.summary(what, name)) for name in registry.names(what)]


def _datasets(root: Path | None) -> Iterator[tuple[str, ...]]:
    for name in registry.names("datasets"):
        try:
            dataset = registry.load("datasets", name)()
            facts = dataset.facts
            found = "?" if root is None else "yes" if dataset.is_found(root) else "no"
        except CaptuneError as error:  # a broken third-party plug-in must not hide the others
            yield name, "no", "", "", "", str(error)
            continue
        sizes = ("any" if size is None else f"{size:,}" for size in (facts.n_classes, facts.n_pool, facts.n_test))
        yield name, found, *sizes, f"{facts.license}\n{facts.source}"
