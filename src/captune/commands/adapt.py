"""captune adapt: a classifier from images and class names."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captune.commands._options import add_settings, add_where, values
from captune.core import registry
from captune.core.errors import CaptuneError

if TYPE_CHECKING:
    from captune.results.run import AdaptationRun


def add(commands: Any) -> None:  # noqa: ANN401 (argparse keeps this class private)
    """Declare the command."""
    words = commands.add_parser(
        "adapt",
        help="make a classifier from images and class names",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Every setting can also stand in the --config file or be given with --set.\n"
        "captune adapt --help-settings METHOD explains them.",
    )
    words.add_argument("images", metavar="IMAGES", help="folder, CSV/Parquet manifest, or text file of paths")
    words.add_argument("--labels", metavar="CSV", help="table (path, label) of the images whose class is known")
    words.add_argument("--method", help="adaptation method (see: captune list methods)")
    words.add_argument("--preset", metavar="quick|full", help="full is the paper, quick needs no GPU")
    words.add_argument(
        "--keep-better",
        action="store_const",
        const=True,
        help="keep zero-shot as the classifier where adaptation looks harmful, judged without labels",
    )
    add_settings(words, "run folder to write (default: captune-METHOD)")
    add_where(words)
    words.add_argument("--resume", action="store_true", help="go on with the interrupted run in --out")
    words.add_argument("--help-settings", action=_SettingsHelp, metavar="METHOD", help="explain a method's settings")


def run(options: argparse.Namespace) -> None:
    """Adapt, save the run and say in a few lines what came out."""
    from captune.core import distributed, settings

    given = values(options)  # checked before heavy imports
    from captune.pipeline import adapt

    out = options.out or f"captune-{given.get('method', settings.RunSettings.method)}"
    adapted = adapt(
        options.images,
        options.classes,
        labels=options.labels,
        out=out,
        overwrite=options.overwrite,
        resume=options.resume,
        **given,
    )
    if distributed.rank() == 0:
        _print_summary(adapted, Path(out))


def settings_help(method: str) -> str:
    """Return a method's settings and those of every run, with defaults and sentences."""
    from captune.core.settings import RunSettings, explain

    own = registry.load("methods", method).Settings
    lines = []
    for title, cls in ((f"Settings of {method}", own), ("Settings of every run", RunSettings)):
        sentences = explain(cls)
        fields = dataclasses.fields(cls)
        lines.append(f"{title}:" if fields else f"{title}: none")
        lines += [f"  {field.name} = {field.default!r}\n      {sentences.get(field.name, '')}" for field in fields]
    return "\n".join(lines) + "\n"


class _SettingsHelp(argparse.Action):
    """Prints the settings of a method and ends, like --help."""

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
