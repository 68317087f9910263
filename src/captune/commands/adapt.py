"""Making runs: audit and adapt, with inputs and settings from a project file, flags and --set."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captune.commands import _shared
from captune.commands._shared import argument, command, flag, out, print_table, say, several
from captune.core import distributed, registry
from captune.core.errors import InputError, raise_all
from captune.core.text import shown

if TYPE_CHECKING:
    from captune.report.measures import Measures
    from captune.results.run import Run

INPUTS = ("images", "classes", "labels", "out")
FLAGS = ("overwrite", "resume", "quiet")
"""What one command does, and no settings of a run."""
MOST_GROUPS = 5


@command(
    argument("images", metavar="IMAGES", nargs="?", help=_shared.IMAGES_HELP),
    argument("--labels", metavar="folders|CSV", help=f"labels to measure the audit: {_shared.LABELS_HELP}"),
    *_shared.RUN_OPTIONS,
    out(help="audit folder (default: captune-audit)"),
)
def audit(options: argparse.Namespace) -> None:
    """Find misleading class names and confused classes, without training."""
    inputs, settings = read_project(options)  # checked before heavy imports
    from captune.pipeline import audit
    from captune.report.measures import Measures
    from captune.results.run import Run

    folder = Path(inputs.pop("out") or "captune-audit")
    audit(**inputs, out=folder, overwrite=options.overwrite, quiet=options.quiet, **settings)
    print_audit(Measures(Run.read(folder, inputs["labels"])))


def print_audit(measures: Measures) -> None:
    """Print the findings of an audit, with misleading class names first."""
    import numpy as np

    from captune.report.class_table import class_columns
    from captune.report.summary import next_steps
    from captune.results.run_folder import REPORT

    found, folder = measures.run, measures.run.folder
    columns = [column for column in class_columns(measures) if column.kind in ("name", "number")]
    order = np.lexsort((measures.counts(after=True), -np.nan_to_num(measures.frequency)))
    print_table(([column.text(c) for column in columns] for c in order), *(column.title.lower() for column in columns))
    say(f"\nMisleading class names: {', '.join(measures.mismatched_names) or 'none'}.")
    for group in measures.groups[:MOST_GROUPS]:
        say(f"Confused classes: {', '.join(found.names[c] for c in group.classes)}.")
    for title, share in measures.first_labels_precision().items():
        say(f"First pseudo-labels right {title}: {share:.1%}.")
    if measures.has_truth:
        say(f"Zero-shot accuracy {measures.metrics[1].accuracy:.1%}.")
    say("\nNext steps:")
    for step in next_steps(measures):
        say(f"- {step['why']}\n    {step['command']}")
    say(f"Audit folder: {folder}")
    if (folder / REPORT).is_file():
        say(f"Report: {folder / REPORT}")


@command(
    argument("images", metavar="IMAGES", nargs="?", help=_shared.IMAGES_HELP),
    argument("--embeddings", metavar="FOLDER", help="partitions of captune embed, instead of IMAGES"),
    argument("--labels", metavar="CSV", help="table (path, label) of labeled images"),
    argument(
        "--complete-classes",
        dest="target_classes",
        action="store_const",
        const="auto",
        help="every image of the classes in --labels is labeled, so the others belong to the remaining classes",
    ),
    several("--rename", help=f"rename a class; {_shared.RENAME_HELP}", metavar="OLD=NEW", dest="renames"),
    several(
        "--merge", help="make one class of several; --labels may have the old names", metavar="NEW=A,B", dest="merges"
    ),
    _shared.METHOD,
    argument("--preset", metavar="quick|full", help="full follows the paper, quick needs no GPU"),
    argument(
        "--keep-better",
        action=argparse.BooleanOptionalAction,
        help="keep zero-shot unless adaptation looks helpful, judged without labels (the default)",
    ),
    *_shared.RUN_OPTIONS,
    out(help="run folder (default: captune-METHOD)"),
    *_shared.DEVICE_OPTIONS,
    _shared.DEVICES,
    flag("--resume", help="continue the interrupted run in --out"),
    argument("--help-settings", metavar="METHOD", help="explain the settings of a method, with the values of --preset"),
    epilog="Everything can also be given in a --config file, and settings with --set.\n"
    "captune adapt --help-settings METHOD [--preset NAME] lists all settings.",
)
def adapt(options: argparse.Namespace) -> int:
    """Train a classifier from images and class names."""
    if options.help_settings is not None:
        sys.stdout.write(_settings_help(options.help_settings, options.preset))
        return 0
    if options.images and options.embeddings:
        raise InputError(f"Expected IMAGES or --embeddings, got both: {options.images!r} and {options.embeddings!r}.")
    options.images = options.images or options.embeddings
    inputs, values = read_project(options)  # checked before heavy imports
    if options.renames or options.merges:
        from captune.data.labels import parse_merges, parse_renames

        values |= {"rename": parse_renames(options.renames), "merge": parse_merges(options.merges)}
    if (code := distributed.run_again(options.words, values.get("devices"))) is not None:
        return code
    from captune.core.settings import RunSettings
    from captune.pipeline import adapt

    inputs["out"] = inputs["out"] or f"captune-{values.get('method', RunSettings.method)}"
    ways = {name: getattr(options, name) for name in FLAGS}
    adapted = adapt(**inputs, **ways, **values)
    if distributed.rank() == 0:
        _print_summary(adapted, Path(inputs["out"]))
    return 0


def _settings_help(method: str, preset: str | None) -> str:
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


def _print_summary(run: Run, folder: Path) -> None:
    import numpy as np

    from captune.review.estimate import describe_accuracy

    names = run.classifier.names
    counts = np.bincount(run.predictions.labels, minlength=len(names))
    say(f"{len(run.predictions.image_index)} images, {len(counts)} classes, method {run.choice['method']}.")
    most = ", ".join(f"{names[c]} {counts[c]}" for c in np.argsort(-counts, kind="stable")[:3])
    say(f"Most often predicted: {most}. Never predicted: {int((counts == 0).sum())} of {len(counts)} classes.")
    if run.skipped:
        say(f"{len(run.skipped)} unreadable images are listed in {folder / 'skipped.csv'}")
    say(f"Run folder: {folder}\n{describe_accuracy(None, str(folder))}")


def read_project(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs and settings from --config, then flags, then --set; later ones take precedence."""
    from captune.core import settings

    values: dict[str, Any] = {}
    if options.config:
        values = settings.resolve_paths(settings.read_yaml(options.config), Path(options.config).parent)
    values |= given_settings(options, *INPUTS) | settings.parse_overrides(options.set)
    inputs = {name: values.pop(name, None) for name in INPUTS}
    unwanted = [name for name in (*FLAGS, "progress") if name in values]
    problems = [f"{name!r} is not a setting: pass --{name.replace('progress', 'quiet')}." for name in unwanted]
    if not isinstance(inputs["out"] or "", str) or "\0" in (inputs["out"] or ""):
        problems.append(f"out = {shown(inputs['out'])}: expected the path of a folder.")
    raise_all(problems, "These settings cannot be used")
    if missing := [name for name in ("images", "classes") if inputs[name] is None]:
        raise InputError(
            f"Nothing to work on: no {' and no '.join(missing)}. Pass IMAGES and --classes, or write them in the "
            "--config file."
        )
    return inputs, values


def given_settings(options: argparse.Namespace, *others: str) -> dict[str, Any]:
    """Return the run settings, and others, that were given as flags."""
    from captune.core.settings import RunSettings

    names = (*others, *(field.name for field in dataclasses.fields(RunSettings)))
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}
