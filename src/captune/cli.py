"""The command line, a thin layer over the Python API; errors are printed as messages, never as tracebacks."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from captune import __version__
from captune.core import distributed
from captune.core.errors import CaptuneError, ProcessLostError, ToldElsewhereError
from captune.core.text import printable, speaking_flags

COMMANDS = {
    "demo": ("demo",),
    "adapt": ("audit", "adapt"),
    "answers": ("suggest", "find", "label", "estimate", "accept", "update"),
    "predict": ("embed", "predict", "evaluate"),
    "serve": ("review", "serve"),
    "output": ("report", "card", "export", "distill", "list_"),
    "benchmark": ("benchmark",),
}
"""The modules in captune/commands with their commands, in the order of --help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 2 invalid input, 1 unexpected error, 130 interrupted."""
    _prepare_streams()
    try:
        return _run(arguments)
    finally:
        try:
            sys.stderr.flush()
        except OSError:  # a full disk; Python would flush again when it exits, and change the exit code
            _discard(sys.stderr)


def _run(arguments: Sequence[str] | None) -> int:  # noqa: PLR0911 (one for every way to end)
    options = _parse(arguments)
    options.words = list(sys.argv[1:] if arguments is None else arguments)
    distributed.follow_launcher()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # hide messages for torch developers
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # older tokenizers warn about every forked worker
    try:
        with speaking_flags():
            code: int | None = options.command.run(options)
        sys.stdout.flush()  # not at exit, so that a closed pipe raises where it is handled
        return code or 0
    except ToldElsewhereError:
        return 2
    except CaptuneError as error:
        distributed.wait_for_launcher(isinstance(error, ProcessLostError))
        _print_error(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        _print_error("interrupted")
        return 130
    except MemoryError:
        _print_error("error: There is not enough memory. Close other programs, or use fewer images or classes at once.")
        return 2
    except BrokenPipeError:
        _discard(sys.stdout)
        return 0
    except OSError as error:
        _discard(sys.stdout)
        place = f"{os.fsdecode(error.filename)!r}" if error.filename is not None else "The output"
        _print_error(f"error: {place} cannot be read or written: {error.strerror or error}.")
        return 2
    except Exception as error:
        if os.environ.get("CAPTUNE_DEBUG"):
            raise
        _print_error(
            f"unexpected error: {type(error).__name__}: {error}\n"
            "This is a bug in captune. Set CAPTUNE_DEBUG=1 to see the traceback, and please report it."
        )
        return 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; a command's `open_ended` argument may go on after flags, which argparse alone refuses."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    open_ended = options.command.open_ended
    if rest and (open_ended is None or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        setattr(options, open_ended, [*getattr(options, open_ended), *rest])
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="captune", description="Adapt CLIP to your own images, without labels.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"captune {__version__}")
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")
    for module, names in COMMANDS.items():
        for name in names:
            command = getattr(importlib.import_module(f"captune.commands.{module}"), name)
            looks = {"epilog": command.epilog, "formatter_class": argparse.RawDescriptionHelpFormatter}
            own = commands.add_parser(name.rstrip("_"), help=command.summary, allow_abbrev=False, **looks)
            for words, how in command.arguments:
                own.add_argument(*words, **how)
            own.set_defaults(command=command)
    return parser


def _print_error(message: str) -> None:
    with suppress(OSError):  # a full or closed standard error has nowhere to complain to
        sys.stderr.write(printable(message) + "\n")


def _prepare_streams() -> None:
    """Open closed streams, whose numbers the next files would get, and escape what a stream cannot encode."""
    if sys.stdout is None or sys.stderr is None:
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(number)
        sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path may have bytes that are not UTF-8
            stream.reconfigure(errors="backslashreplace")


def _discard(stream: TextIO) -> None:
    """Send what is left of the output nowhere, so that Python does not fail again when it exits."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
