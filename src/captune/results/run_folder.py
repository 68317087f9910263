"""The run folder: its files and tables, its run.json, and the lock on it while a run is written."""

from __future__ import annotations

import csv
import os
import shutil
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from captune.core import files
from captune.core.arrays import Floats, Ints
from captune.core.errors import RunFolderError
from captune.core.files import LEFTOVERS, NEW, is_file
from captune.core.text import option
from captune.data.images import ImageCollection
from captune.data.vocabulary import NONE
from captune.training.checkpoint import drop_checkpoints, holds_checkpoints

FORMAT, VERSION = "captune-run", 1
CARD = "run.json"
CLASSIFIER = "classifier"
EVIDENCE = "evidence.safetensors"
PSEUDO_LABELS = "pseudo_labels.csv"
CHECKPOINTS = "checkpoints"
REPORT = "report.html"
DESCRIPTIONS = "descriptions.yaml"
EXPORTS = "exports"
CORRECTIONS = "corrections.jsonl"
OF_AN_OLD_RUN = (EVIDENCE, PSEUDO_LABELS, "pseudo_label_history.csv", DESCRIPTIONS, REPORT, EXPORTS)
"""What a run may leave in its folder that the next one does not always replace."""
FILES = (
    *("classifier/classifier.json", "classifier/classifier.safetensors", "predictions.csv", "skipped.csv"),
    *("settings.yaml", EVIDENCE, PSEUDO_LABELS, DESCRIPTIONS, CARD),
)
"""Everything that a run writes at once, run.json last."""
LOCK = ".captune-lock"
"""Present while a run is active; without an owner, it means that the run was killed."""


def is_inside(name: str) -> bool:
    """Return whether the name of an image stays in its folder: relative, without `..`."""
    return not name.startswith("/") and ".." not in PurePath(name).parts and not PurePath(name).is_absolute()


def read_run_card(folder: str | Path) -> dict[str, Any]:
    """Return the content of run.json, or raise an error if the folder is not a complete run."""
    missing = f"{str(folder)!r} is not a run folder: {CARD} is missing. Make one: captune adapt ... --out {folder}"
    path = Path(folder)
    files.refuse_links(path, FILES, follow=True)
    files.refuse_links(path, (CORRECTIONS,))
    if is_file(path / NEW / CARD):  # a killed process completed its files; one that is still writing moves them itself
        lock = path / LOCK
        was_there = lock.exists()
        with suppress(RunFolderError), files.locked(lock, ""):
            files.finish_replacing(path, FILES, OF_AN_OLD_RUN)
            if not was_there:
                lock.unlink(missing_ok=True)
    return files.read_card(path / CARD, FORMAT, VERSION, missing)


def mark_of_own(folder: Path, root: str) -> Path:
    """Return the file in the cache by which the user's own runs of images in `root` are told from those of others."""
    place = os.fsencode(folder.resolve()) + b"\0" + root.encode("utf-8", "replace")
    return files.cache_folder() / "runs" / files.digest(place)


@contextmanager
def claim_folder(folder: str | Path, overwrite: bool, resume: bool | None = False) -> Iterator[Path]:
    """Lock an output folder, after checking that it can be written and that nothing of value would be replaced.

    Pass None for `resume` if the command cannot resume.
    """
    target = Path(folder)
    lock, checkpoints = target / LOCK, target / CHECKPOINTS
    with ExitStack() as stack:
        try:
            files.refuse_links(target, (*FILES, CLASSIFIER, CHECKPOINTS, EXPORTS, CORRECTIONS, LOCK, NEW))
            was_killed = lock.exists()
            if not was_killed:  # check first: no lock file is left in a folder that cannot be used
                _check_claim(target, overwrite, resume, was_killed)
            target.mkdir(parents=True, exist_ok=True)
            stack.enter_context(files.locked(lock, f"Another captune is writing to the output folder {str(target)!r}"))
            files.finish_replacing(target, FILES, OF_AN_OLD_RUN)
            _check_claim(target, overwrite, resume, was_killed)
            for part in (target, target / CLASSIFIER, checkpoints):
                for leftover in part.glob(LEFTOVERS):
                    leftover.unlink(missing_ok=True)
            shutil.rmtree(target / NEW, ignore_errors=True)  # incomplete files of a killed process
            if overwrite and holds_checkpoints(checkpoints):
                drop_checkpoints(checkpoints)
        except OSError as error:
            raise RunFolderError(f"The output folder {str(target)!r} cannot be written: {error.strerror}.") from error
        try:
            yield target
        except BaseException:
            is_complete = (target / CARD).is_file() and not holds_checkpoints(checkpoints)
            if is_complete or not _content(target):  # unchanged: there is nothing to resume
                lock.unlink(missing_ok=True)
            raise
        with suppress(OSError):
            lock.unlink(missing_ok=True)


def _check_claim(target: Path, overwrite: bool, resume: bool | None, was_killed: bool) -> None:
    is_run, is_started = (target / CARD).is_file(), was_killed or holds_checkpoints(target / CHECKPOINTS)
    if is_run and resume and not was_killed:
        raise RunFolderError(f"The run in {str(target)!r} is finished: there is nothing to resume.")
    may_write = (overwrite and (is_run or is_started)) or (resume and is_started)
    if target.exists() and (not target.is_dir() or _content(target)) and not may_write:
        problem = "is not empty and does not contain a run:"
        if is_started and (was_killed or not is_run):
            resuming = "" if resume is None else f"{option('resume', True)} to continue it, "
            problem = f"contains an interrupted run: pass {resuming}{option('overwrite', True)} to start over, or"
        elif is_run:
            problem = f"contains a run: pass {option('overwrite', True)} to replace it, or"
        raise RunFolderError(f"The output folder {str(target)!r} {problem} choose another {option('out')}.")


def _content(target: Path) -> list[Path]:
    """Return the files in a folder, apart from lock and temporary files."""
    ignored = {target / LOCK, target / NEW, *target.glob(LEFTOVERS)}
    return [path for path in target.iterdir() if path not in ignored]


def read_predictions(
    path: Path, root: Path, names: tuple[str, ...]
) -> tuple[ImageCollection, Ints, Floats, Floats | None]:
    """Return images, labels, confidences and fits in predictions.csv, which is read row by row."""
    ids, paths = {name: i for i, name in enumerate(names)}, list[str]()
    labels, confidence, fits = array("q"), array("f"), array("f")
    for row in read_rows(path):
        paths.append(row["path"])
        labels.append(ids[row["nearest"] if row["label"] == NONE else row["label"]])
        confidence.append(float(row["confidence"]))
        fits.append(float(row.get("fits") or np.nan))  # runs of captune 0.2 have no such column
    known = None if np.isnan(fits).any() else np.asarray(fits)
    return ImageCollection((root / name for name in paths), root), np.asarray(labels), np.asarray(confidence), known


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a table by column name."""
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
