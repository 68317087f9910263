"""The command line: thin words over the Python API; errors are sentences, never tracebacks."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from captune import __version__
from captune.core.errors import CaptuneError, ToldElsewhereError

COMMANDS = ("demo", "audit", "adapt", "predict", "evaluate", "report", "export", "serve", "benchmark", "list")
"""In the order of --help; each is a file in captune/commands."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 wrong input, 1 unexpected, 130 interrupted."""
    options = _parser().parse_args(arguments)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch's remarks to developers are not for the screen
    try:
        return _run(options)
    except ToldElsewhereError:
        return 2
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="captune", description="Adapt CLIP to your own images, without labels.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"captune {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        _module(name).add(commands)
    return parser


def _run(options: argparse.Namespace) -> int:
    code: int | None = _module(options.command).run(options)
    sys.stdout.flush()  # here and not at exit, so that a closed pipe is noticed where it is handled
    return code or 0


def _module(command: str) -> Any:  # noqa: ANN401 (modules with `add` and `run`)
    return importlib.import_module(f"captune.commands.{command}")


def _complain(message: str) -> None:
    sys.stderr.write(message + "\n")


if __name__ == "__main__":
    sys.exit(main())
