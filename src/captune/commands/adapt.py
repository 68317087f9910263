"""captune adapt: train a classifier from images and class names."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from captune.commands._project import read_project
from captune.commands._shared import IMAGES_HELP, add_device_options, add_run_options
from captune.core import launching, registry
from captune.core.errors import InputError

if TYPE_CHECKING:
    from captune.results.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "Everything can also be given in a --config file, and settings with --set.\n"
        "captune adapt --help-settings METHOD [--preset NAME] lists all settings."
    )
    parser.add_argument("images", metavar="IMAGES", nargs="?", help=IMAGES_HELP)
    parser.add_argument("--embeddings", metavar="FOLDER", help="partitions of captune embed, instead of IMAGES")
    parser.add_argument("--labels", metavar="CSV", help="table (path, label) of labeled images")
    parser.add_argument(
        "--complete-classes",
        dest="target_classes",
        action="store_const",
        const="auto",
        help="every image of the classes in --labels is labeled, so the others belong to the remaining classes",
    )
    parser.add_argument(
        "--rename",
        dest="renames",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="rename a class; or a CSV file with the columns old and new",
    )
    parser.add_argument(
        "--merge",
        dest="merges",
        action="append",
        default=[],
        metavar="NEW=A,B",
        help="make one class of several; --labels may have the old names",
    )
    parser.add_argument("--method", help="adaptation method (see: captune list methods)")
    parser.add_argument("--preset", metavar="quick|full", help="full follows the paper, quick needs no GPU")
    parser.add_argument(
        "--keep-better",
        action=argparse.BooleanOptionalAction,
        help="keep zero-shot unless adaptation looks helpful, judged without labels (the default)",
    )
    add_run_options(parser, "run folder (default: captune-METHOD)")
    add_device_options(parser)
    parser.add_argument("--resume", action="store_true", help="continue the interrupted run in --out")
    parser.add_argument(
        "--help-settings", metavar="METHOD", help="explain the settings of a method, with the values of --preset"
    )


def run(options: argparse.Namespace) -> int:
    """Adapt, save the run and print a summary."""
    if options.help_settings is not None:
        sys.stdout.write(settings_help(options.help_settings, options.preset))
        return 0
    if options.images and options.embeddings:
        raise InputError(f"Expected IMAGES or --embeddings, got both: {options.images!r} and {options.embeddings!r}.")
    options.images = options.images or options.embeddings
    inputs, values = read_project(options)  # checked before heavy imports
    if options.renames or options.merges:
        from captune.data.labels import parse_merges, parse_renames

        values |= {"rename": parse_renames(options.renames), "merge": parse_merges(options.merges)}
    if (code := launching.run_again(options.words, values.get("devices"))) is not None:
        return code
    from captune.core import distributed
    from captune.core.settings import RunSettings
    from captune.pipeline import adapt

    inputs["out"] = inputs["out"] or f"captune-{values.get('method', RunSettings.method)}"
    ways = {name: getattr(options, name) for name in ("overwrite", "resume", "quiet")}
    adapted = adapt(**inputs, **ways, **values)
    if distributed.rank() == 0:
        _print_summary(adapted, Path(inputs["out"]))
    return 0


def settings_help(method: str, preset: str | None = None) -> str:
    """Return the settings of a method and of every run with explanations, and their values in a preset."""
    from captune.core.settings import RunSettings, explain
    from captune.plan import with_preset

    method_class = registry.load("methods", method)
    changed = with_preset(method_class, {"preset": preset}) if preset else {}
    lines = []
    for what, cls in ((method, method_class.Settings), ("every run", RunSettings)):
        help_texts, fields = explain(cls), dataclasses.fields(cls)
        title = f"Settings of {what}{f', preset {preset}' if preset and what == method else ''}"
        lines.append(f"{title}:" if fields else f"{title}: none")
        for field in fields:
            value = changed.get(field.name, field.default)
            default = f"  (default: {field.default!r})" if value != field.default else ""
            lines.append(f"  {field.name} = {value!r}{default}\n      {help_texts.get(field.name, '')}")
    return "\n".join(lines) + "\n"


def _print_summary(run: Run, out: Path) -> None:
    import numpy as np

    from captune.commands._screen import Screen
    from captune.review.estimate import describe_accuracy

    counts = np.bincount(run.predictions.labels, minlength=len(run.classifier.names))
    order = np.argsort(-counts, kind="stable")
    console = Screen(highlight=False)
    choice = next((facts for facts in run.rounds if facts.get("step") == "choice"), run.settings)
    n_images, method = len(run.predictions.image_index), choice["method"]
    console.print(f"{n_images} images, {len(counts)} classes, method {method}.", markup=False)
    most = ", ".join(f"{run.classifier.names[c]} {counts[c]}" for c in order[:3])
    never = int((counts == 0).sum())
    console.print(f"Most often predicted: {most}. Never predicted: {never} classes.", markup=False)
    if run.skipped:
        console.print(f"{len(run.skipped)} unreadable images are listed in {out / 'skipped.csv'}", markup=False)
    console.print(f"Run folder: {out}", markup=False)
    console.print(describe_accuracy(None, str(out)), markup=False, soft_wrap=True)
