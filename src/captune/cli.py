"""The command line: thin words over the Python API; errors are sentences, never tracebacks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from captune import __version__
from captune.errors import CaptuneError

ROLES = ("methods", "backbones", "tuners", "describers", "datasets")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 wrong input, 1 unexpected, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except CaptuneError as error:
        _complain(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("CAPTUNE_DEBUG"):
            raise
        _complain(
            f"unexpected error: {type(error).__name__}: {error}\n"
            "This is a defect of captune. Set CAPTUNE_DEBUG=1 to see where, and please report it."
        )
        return 1


def _run(options: argparse.Namespace) -> int:
    from captune import commands

    command: Any = getattr(commands, f"run_{options.command}")
    command(options)
    sys.stdout.flush()  # here and not at exit, so that a closed pipe is noticed where it is handled
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="captune", description="Adapt CLIP to your own images, without labels.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"captune {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="show the whole story on embedded images, offline", allow_abbrev=False)
    demo.add_argument("--out", default="captune-demo", metavar="FOLDER", help="folder to write (default: captune-demo)")
    demo.add_argument("--seed", type=int, default=0, help="seed of the images and of everything else random")
    _add_audit(commands)
    _add_adapt(commands)
    _add_predict(commands)
    _add_evaluate(commands)
    _add_report(commands)
    listing = commands.add_parser("list", help="show what can be chosen", allow_abbrev=False)
    listing.add_argument("what", choices=ROLES, metavar="|".join(ROLES))
    return parser


def _add_audit(commands: Any) -> None:  # noqa: ANN401
    words = commands.add_parser(
        "audit", help="find names that mislead and classes that collide, without training", allow_abbrev=False
    )
    words.add_argument("images", metavar="IMAGES", help="folder, CSV/Parquet manifest, or text file of paths")
    words.add_argument("--labels", metavar="folders|CSV", help="known classes, to measure the audit against")
    _add_common(words, "audit folder to write (default: captune-audit)")


def _add_common(words: argparse.ArgumentParser, out: str) -> None:
    words.add_argument(
        "--classes", required=True, metavar="FILE|a,b,c", help="text or YAML file, comma list, or folder of sub-folders"
    )
    words.add_argument("--backbone", metavar="ID", help="encoder pair as source:name (see: captune list backbones)")
    words.add_argument("--template", help="sentence with one {} for the class name")
    words.add_argument(
        "--describer", metavar="ID", help="who describes misleading names: openai:MODEL, file:YAML, none"
    )
    words.add_argument("--domain", metavar="PHRASE", help="what the images show, e.g. 'a satellite photo of {}'")
    words.add_argument("--seed", type=int, help="seed of everything random")
    words.add_argument("--workers", type=int, help="processes that decode images")
    words.add_argument("--root", help="folder that manifest paths may not lead out of")
    words.add_argument("--config", metavar="YAML", help="settings file")
    words.add_argument("--set", action="append", default=[], metavar="key=value", help="one setting; may be repeated")
    words.add_argument("--out", metavar="FOLDER", help=out)
    words.add_argument("--overwrite", action="store_true", help="replace what is in --out")


def _add_adapt(commands: Any) -> None:  # noqa: ANN401 (argparse keeps this class private)
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
    _add_common(words, "run folder to write (default: captune-METHOD)")
    words.add_argument("--resume", action="store_true", help="go on with the interrupted run in --out")
    words.add_argument("--help-settings", action=_SettingsHelp, metavar="METHOD", help="explain a method's settings")


def _add_predict(commands: Any) -> None:  # noqa: ANN401
    words = commands.add_parser("predict", help="classify images with a run", allow_abbrev=False)
    words.add_argument("run", metavar="RUN", help="run folder")
    words.add_argument("images", metavar="IMAGES", help="image, folder, manifest, or text file of paths")
    words.add_argument("--top-k", type=int, default=1, metavar="K", help="classes to show for each image")
    words.add_argument("--out", metavar="CSV", help="table to write (default: standard output)")
    words.add_argument("--workers", type=int, help="processes that decode images")


def _add_evaluate(commands: Any) -> None:  # noqa: ANN401
    words = commands.add_parser("evaluate", help="measure a run on labeled images", allow_abbrev=False)
    words.add_argument("run", metavar="RUN", help="run folder")
    words.add_argument("images", metavar="IMAGES", help="folder, manifest, or text file of paths")
    words.add_argument("--labels", required=True, metavar="folders|CSV", help="folder names, or a table (path, label)")
    words.add_argument("--json", action="store_true", help="print JSON instead of a table")
    words.add_argument("--workers", type=int, help="processes that decode images")


def _add_report(commands: Any) -> None:  # noqa: ANN401
    words = commands.add_parser("report", help="write the page of a run, or compare several", allow_abbrev=False)
    words.add_argument("runs", nargs="+", metavar="RUN", help="run folder; several are compared side by side")
    words.add_argument("--labels", metavar="folders|CSV", help="folder names, or a table (path, label), to measure by")
    words.add_argument("--out", metavar="HTML", help="page to write (default: RUN/report.html)")


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
        from captune import commands

        try:
            sys.stdout.write(commands.settings_help(str(values)))
        except CaptuneError as error:
            parser.exit(2, f"error: {error}\n")
        parser.exit(0)


def _complain(message: str) -> None:
    sys.stderr.write(message + "\n")


if __name__ == "__main__":
    sys.exit(main())
