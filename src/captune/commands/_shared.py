"""How a command is declared, arguments that several commands share, and printing to standard output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captune.core.text import printable

if TYPE_CHECKING:
    from captune.review.session import Session

Argument = tuple[tuple[str, ...], dict[str, Any]]
"""What argparse's `add_argument` takes."""


def argument(*names: str, **options: Any) -> Argument:  # noqa: ANN401 (as argparse takes them)
    """Return an argument of a command."""
    return names, options


flag = partial(argument, action="store_true")
several = partial(argument, action="append", default=[])
out = partial(argument, "--out", metavar="FOLDER")


@dataclass
class Command:
    """A command of the command line: what does it, and may return an exit code; the first sentence is the help."""

    run: Callable[[argparse.Namespace], int | None]
    arguments: Sequence[Argument]
    epilog: str | None = None
    open_ended: str | None = None
    """Name of an argument that may go on after flags."""

    @property
    def summary(self) -> str:
        """Return what the command does, in one sentence."""
        return (self.run.__doc__ or "").partition("\n")[0].rstrip(".")


def command(*arguments: Argument, **more: str) -> Callable[[Callable[[argparse.Namespace], int | None]], Command]:
    """Return a decorator that makes a function a command."""
    return lambda run: Command(run, arguments, **more)


IMAGES_HELP = "folder, .tar shards, CSV/Parquet manifest, text file of paths, or embeddings (.npy, .npz:KEY, ...)"
LABELS_HELP = "'folders' (folder names are classes), a table (path, label), or an array (.npy, .npz:KEY)"
RENAME_HELP = "or a CSV file with the columns old and new"
RUN = argument("run", metavar="RUN", help="run folder")
ANY_RUN = argument("run", metavar="RUN", help="run folder, or an ONNX export (model.onnx)")
MOVED = "images of the run, if they moved or were in memory"
MOVED_IMAGES = argument("--images", dest="moved_images", metavar="IMAGES", help=MOVED)
RUN_AND_IMAGES = (RUN, MOVED_IMAGES)
METHOD = argument("--method", help="adaptation method (see: captune list methods)")
SEED = argument("--seed", type=int, help="random seed")
WORKERS = argument("--workers", type=int, help="number of processes that decode images")
QUIET = flag("--quiet", help="show results only: no progress, no messages")
OVERWRITE = flag("--overwrite", help="replace existing results in --out")
JSON = flag("--json", help="print JSON")
BACKBONE = argument("--backbone", metavar="ID", help="encoder as source:name (see: captune list backbones)")
ACCELERATOR = argument("--accelerator", metavar="auto|cpu|cuda|mps", help="device type (default: auto)")
DEVICE_OPTIONS = (
    ACCELERATOR,
    argument("--precision", metavar="32-true|bf16-mixed|16-mixed", help="precision of the encoders"),
)
DEVICES = argument("--devices", type=int, metavar="N", help="number of processes, one per GPU")
RUN_OPTIONS = (
    argument(
        "--classes",
        metavar="FILE|a,b,c",
        help="text or YAML file, table, comma-separated list, folder with a subfolder per class, or embeddings (.npz)",
    ),
    BACKBONE,
    argument("--second-encoder", metavar="ID", help="second image encoder, as in hf:facebook/dinov2-small"),
    argument("--template", help="sentence with {} for the class name, or {column} of a table of classes"),
    argument(
        "--describer", metavar="ID", help="source of descriptions for misleading names: openai:MODEL, file:YAML, none"
    ),
    argument("--domain", metavar="PHRASE", help="what the images show, e.g. 'a satellite photo of {}'"),
    SEED,
    WORKERS,
    QUIET,
    argument("--root", help="folder that all image paths must be in"),
    argument("--config", metavar="YAML", help="file with settings, and with images, classes, labels and out"),
    several("--set", help="one setting; can be repeated", metavar="key=value"),
    OVERWRITE,
)
"""The options of adapt, audit and review."""


def say(text: object) -> None:
    """Print to standard output; control characters are escaped, since names and paths come from anywhere."""
    sys.stdout.write(printable(str(text)) + "\n")
    sys.stdout.flush()


def print_table(rows: Iterable[Sequence[object]], *header: str) -> None:
    """Print a table without markup; its last column is wrapped."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    columns = (Column(name, overflow="fold") for name in header)
    shown = Table(*columns, box=None, pad_edge=False, show_header=bool(header))
    for row in rows:
        shown.add_row(*(Text(printable(str(cell))) for cell in row))
    screen = Console(highlight=False)
    with screen.capture() as drawn:
        screen.print(shown)
    sys.stdout.write(drawn.get())


def write_lines(lines: Iterable[str], path: str | None) -> None:
    """Write lines to a file, or to standard output."""
    from captune.core.files import write_whole

    if path is not None:
        write_whole(Path(path), lines)
    else:
        is_screen = sys.stdout.isatty()
        sys.stdout.writelines(printable(text) if is_screen else text for text in lines)


def open_run(options: argparse.Namespace, **settings: Any) -> Session:  # noqa: ANN401
    """Return a session on the run of a command."""
    from captune.review.opening import open_session

    return open_session(options.run, images=getattr(options, "moved_images", None), **settings)
