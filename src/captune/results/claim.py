"""Claiming an output folder: nothing of value is replaced, and no two runs write into one folder at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from captune.core.errors import RunFolderError
from captune.core.files import LEFTOVERS
from captune.core.locking import hold
from captune.results.run import CARD, CHECKPOINTS
from captune.training.checkpoint import drop_checkpoints, holds_checkpoints

LOCK = ".captune-lock"
"""In a folder from a run's first moment to its last: one that nobody holds tells of a run that was killed."""


@contextmanager
def claim_folder(folder: str | Path, overwrite: bool, resume: bool | None = False, card: str = CARD) -> Iterator[Path]:
    """Make sure early that a run can be written here and that nothing of value is in the way; hold it meanwhile.

    A `resume` of None is for what cannot be resumed.
    """
    target = Path(folder)
    lock, checkpoints = target / LOCK, target / CHECKPOINTS
    with ExitStack() as stack:
        try:
            was_killed = lock.exists()
            if not was_killed:
                _check(target, overwrite, resume, card, was_killed)  # before a lock is put into someone's folder
            target.mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold(lock, f"Another captune is writing into the output folder {str(target)!r}"))
            _check(target, overwrite, resume, card, was_killed)
            for leftover in (*target.glob(LEFTOVERS), *target.glob(f"*/{LEFTOVERS}")):
                leftover.unlink(missing_ok=True)
            if overwrite and holds_checkpoints(checkpoints):
                drop_checkpoints(checkpoints)
        except OSError as error:
            raise RunFolderError(f"The output folder {str(target)!r} cannot be written: {error.strerror}.") from error
        try:
            yield target
        except BaseException:
            is_whole = (target / card).is_file() and not holds_checkpoints(checkpoints)
            if is_whole or not _content(target):  # as it was before: there is nothing to resume
                lock.unlink(missing_ok=True)
            raise
        with suppress(OSError):
            lock.unlink(missing_ok=True)


def _check(target: Path, overwrite: bool, resume: bool | None, card: str, was_killed: bool) -> None:
    """Raise an error where a run may not be written into a folder."""
    is_run, is_begun = (target / card).is_file(), was_killed or holds_checkpoints(target / CHECKPOINTS)
    if is_run and resume and not was_killed:
        raise RunFolderError(f"The run in {str(target)!r} is finished: there is nothing to resume.")
    may_write = (overwrite and (is_run or is_begun)) or (resume and is_begun)
    if target.exists() and (not target.is_dir() or _content(target)) and not may_write:
        what = "is not empty and holds no run:"
        if is_begun and (was_killed or not is_run):
            going_on = "" if resume is None else "--resume to go on, "
            what = f"holds an interrupted run: pass {going_on}--overwrite to start anew, or"
        elif is_run:
            what = "holds a run: pass --overwrite to replace it, or"
        raise RunFolderError(f"The output folder {str(target)!r} {what} choose another --out.")


def _content(target: Path) -> list[Path]:
    """Return what is in a folder, besides what a kill in its first moments leaves behind."""
    leftovers = {target / LOCK, *target.glob(LEFTOVERS)}
    return [path for path in target.iterdir() if path not in leftovers]
