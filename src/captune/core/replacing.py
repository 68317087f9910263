"""Replacing the files of a folder all at once: until the new ones are complete, the old ones stay."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from captune.core.errors import CaptuneError
from captune.core.files import sync_folder

NEW = ".captune-new"
"""Folder inside the target in which the new files are written; the target itself may be a mount point or a link."""


@contextmanager
def replaced(target: Path, card: str, others: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a folder for new files, which replace those of `target` when the block has ended without an error.

    The block writes `card` last: with it, the new files are complete. `others` are deleted with the old files.
    """
    staging = target / NEW
    try:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        yield staging
    except BaseException as error:
        shutil.rmtree(staging, ignore_errors=True)
        if isinstance(error, OSError):
            raise _cannot_write(target, error) from error
        raise
    finish_replacing(target, card, others)


def finish_replacing(target: Path, card: str, others: Sequence[str] = ()) -> None:
    """Move complete new files into place; call it before reading, in case the process that wrote them was killed.

    Until the card exists among the new files, the old ones are untouched. From then on, the new ones count: they are
    moved here, now or later, in one process or another, and the card last.
    """
    staging = target / NEW
    if not (staging / card).is_file():
        return
    try:
        if (target / card).exists():  # the old card goes last: without it, everything old that must go is gone
            for name in others:
                _remove(target / name)
            (target / card).unlink(missing_ok=True)
            sync_folder(target)
        for path in sorted(path for path in staging.rglob("*") if path.is_file() and path != staging / card):
            place = target / path.relative_to(staging)
            place.parent.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):  # moved by another process
                path.replace(place)
        with suppress(FileNotFoundError):
            (staging / card).replace(target / card)
        sync_folder(target)
    except OSError as error:
        raise _cannot_write(target, error) from error
    shutil.rmtree(staging, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _cannot_write(target: Path, error: OSError) -> CaptuneError:
    return CaptuneError(
        f"The folder {str(target)!r} cannot be written: {error.strerror or error}. Check permissions and free space."
    )
