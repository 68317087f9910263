"""captune adapt: train a classifier from images and class names."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captune.commands._shared import IMAGES_HELP, add_device_options, add_run_options, read_settings
from captune.core import registry
from captune.core.errors import CaptuneError

if TYPE_CHECKING:
    from captune.results.run import AdaptationRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "Settings can also be given in a --config file or with --set.\n"
        "captune adapt --help-settings METHOD lists all of them."
    )
    parser.add_argument("images", metavar="IMAGES", help=IMAGES_HELP)
    parser.add_argument("--labels", metavar="CSV", help="table (path, label) of labeled images")
    parser.add_argument(
        "--complete-classes",
        dest="target_classes",
        action="store_const",
        const="auto",
        help="every image of the classes in --labels is labeled, so the others belong to the remaining classes",
    )
    parser.add_argument("--method", help="adaptation method (see: captune list methods)")
    parser.add_argument("--preset", metavar="quick|full", help="full follows the paper, quick needs no GPU")
    parser.add_argument(
        "--keep-better",
        action="store_const",
        const=True,
        help="keep the zero-shot classifier if a check without labels finds adaptation harmful",
    )
    add_run_options(parser, "run folder (default: captune-METHOD)")
    add_device_options(parser)
    parser.add_argument("--resume", action="store_true", help="continue the interrupted run in --out")
    parser.add_argument(
        "--help-settings", action=_SettingsHelp, metavar="METHOD", help="explain the settings of a method"
    )


def run(options: argparse.Namespace) -> None:
    """Adapt, save the run and print a summary."""
    from captune.core.launching import launch

    values = read_settings(options)  # checked before heavy imports
    counts = [values.get(name, 1) for name in ("devices", "num_nodes")]
    if all(type(count) is int and count > 0 for count in counts):
        launch(*counts, _adapt, options, values)
    else:
        _adapt(options, values)  # reports everything that is wrong


def _adapt(options: argparse.Namespace, values: dict[str, Any]) -> None:
    from captune.core import distributed
    from captune.core.settings import RunSettings
    from captune.pipeline import adapt

    out = options.out or f"captune-{values.get('method', RunSettings.method)}"
    adapted = adapt(
        options.images,
        options.classes,
        labels=options.labels,
        out=out,
        overwrite=options.overwrite,
        resume=options.resume,
        **values,
    )
    if distributed.rank() == 0:
        _print_summary(adapted, Path(out))


def settings_help(method: str) -> str:
    """Return the settings of a method and of every run, with defaults and explanations."""
    from captune.core.settings import RunSettings, explain

    own = registry.load("methods", method).Settings
    lines = []
    for title, cls in ((f"Settings of {method}", own), ("Settings of every run", RunSettings)):
        help_texts, fields = explain(cls), dataclasses.fields(cls)
        lines.append(f"{title}:" if fields else f"{title}: none")
        lines += [f"  {field.name} = {field.default!r}\n      {help_texts.get(field.name, '')}" for field in fields]
    return "\n".join(lines) + "\n"


class _SettingsHelp(argparse.Action):
    """Print the settings of a method and exit, like --help."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,  # noqa: ANN401 (argparse's own signature)
        option_string: str | None = None,
    ) -> None:
        """Print and exit."""
        try:
            sys.stdout.write(settings_help(str(values)))
        except CaptuneError as error:
            parser.exit(2, f"error: {error}\n")
        parser.exit(0)


def _print_summary(run: AdaptationRun, out: Path) -> None:
    import numpy as np

    from captune.commands._screen import Screen

    counts = np.bincount(run.predictions.labels, minlength=len(run.classifier.names))
    order = np.argsort(-counts, kind="stable")
    console = Screen(highlight=False)
    n_images, method = len(run.predictions.image_index), run.settings["method"]
    console.print(f"{n_images} images, {len(counts)} classes, method {method}.", markup=False)
    most = ", ".join(f"{run.classifier.names[c]} {counts[c]}" for c in order[:3])
    never = int((counts == 0).sum())
    console.print(f"Most often predicted: {most}. Never predicted: {never} classes.", markup=False)
    if run.skipped:
        console.print(f"{len(run.skipped)} unreadable images are listed in {out / 'skipped.csv'}", markup=False)
    console.print(f"Run folder: {out}", markup=False)
