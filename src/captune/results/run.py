"""The run folder: claimed before a run starts, written when it ends, read by reports and exports."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save as save_arrays

from captune.core.cards import read_card
from captune.core.errors import RunFolderError
from captune.core.files import LEFTOVERS, is_file, is_folder, table, write_json, write_whole
from captune.core.locking import hold
from captune.core.replacing import NEW, finish_replacing, replaced
from captune.core.settings import resolve_paths
from captune.core.wording import option
from captune.data.images import ImageCollection
from captune.data.precomputed import split_key
from captune.embeddings.predictions import Predictions
from captune.results.classifier import Classifier
from captune.results.evidence import FILE, HISTORY, PSEUDO_LABELS, Evidence
from captune.training.checkpoint import drop_checkpoints, holds_checkpoints

FORMAT, VERSION = "captune-run", 1
CARD = "run.json"
CLASSIFIER = "classifier"
CHECKPOINTS = "checkpoints"
REPORT = "report.html"
EXPORTS = "exports"
OF_AN_OLD_RUN = (FILE, PSEUDO_LABELS, HISTORY, REPORT, EXPORTS)
"""What a run may leave in its folder that the next one does not always replace."""
LOCK = ".captune-lock"
"""Present while a run is active; without an owner, it means that the run was killed."""


@dataclass(frozen=True)
class AdaptationRun:
    """The results of a run.

    Attributes:
        settings: All settings, flat, as in a settings file.
        images: The images that the model was adapted to.
        predictions: Class probabilities of the readable images.
        skipped: Why the other images were skipped, by position.
        classifier: The adapted classifier.
        environment: Versions, random seed, data fingerprint, times.
        rounds: What the method recorded during training.
        evidence: Data for the report, and the health check.
        kept: `adapted`, or `zero_shot` if adaptation looked harmful and was discarded.
        sources: The images, classes and labels arguments.
        review: What people's answers say: accuracy and number of labels; None if nobody was asked.
        discarded: The adapted classifier, if zero-shot is kept.
    """

    settings: Mapping[str, Any]
    images: ImageCollection
    predictions: Predictions
    skipped: Mapping[int, str]
    classifier: Classifier
    environment: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]] = field(default_factory=list)
    evidence: Evidence | None = None
    kept: str = "adapted"
    sources: Mapping[str, str] = field(default_factory=dict)
    review: Mapping[str, Any] | None = None
    discarded: Classifier | None = None

    def save(self, folder: str | Path) -> Path:
        """Write the run folder; a run that is already there stays until the new one is complete."""
        target = Path(folder)
        with replaced(target, CARD, OF_AN_OLD_RUN) as staging:
            self._write(staging)
        return target

    def _write(self, target: Path) -> None:
        """Write all files, run.json last."""
        self.classifier.save(target / CLASSIFIER)
        write_whole(target / "predictions.csv", table(("path", "label", "confidence"), self._predicted_rows()))
        rows = ((self.images.name(position), reason) for position, reason in sorted(self.skipped.items()))
        write_whole(target / "skipped.csv", table(("path", "reason"), rows))
        write_whole(target / "settings.yaml", yaml.safe_dump(self._project(), sort_keys=False, allow_unicode=True))
        if self.evidence is not None:
            arrays = {name: np.ascontiguousarray(array) for name, array in self.evidence.arrays.items()}
            write_whole(target / FILE, save_arrays(arrays))
            for name, (header, rows_of_table) in self.evidence.tables(self.classifier.names).items():
                write_whole(target / name, table(header, rows_of_table))
        write_json(target / CARD, self._card())

    def _card(self) -> dict[str, Any]:
        """Return the content of run.json."""
        health = self.evidence.health if self.evidence is not None else None
        reviewed = {} if self.review is None else {"review": dict(self.review)}
        return {
            "format": FORMAT,
            "version": VERSION,
            "settings": dict(self.settings),
            "classes": list(self.classifier.names),
            "n_images": len(self.images),
            "n_skipped": len(self.skipped),
            "unused": readable(self.images.unused),
            "environment": dict(self.environment),
            "sources": {what: readable(source) for what, source in self.sources.items()},
            "image_source": self.images.kind,
            "images_in_root": all(is_inside(self.images.name(i)) for i in self.predictions.image_index),
            "image_root": readable(str(self.images.root.absolute())),
            "kept": self.kept,
            "health": health.as_dict() if health is not None else None,
            "rounds": [dict(facts) for facts in self.rounds],
            **reviewed,
        }

    def _project(self) -> dict[str, Any]:
        """Return inputs and settings as --config takes them, with absolute paths; inputs in memory are left out."""
        inputs: dict[str, Any] = {what: readable(source) for what, source in self.sources.items() if source[:1] != "<"}
        path = split_key(inputs.get("classes", ""))[0]
        if "classes" in inputs and not (is_file(path) or is_folder(path)):  # names, which may be too long for a path
            inputs["classes"] = list(self.classifier.names)
        return resolve_paths({**inputs, **self.settings}, Path.cwd())

    def _predicted_rows(self) -> Iterator[Sequence[object]]:
        names, index = self.classifier.names, self.predictions.image_index
        labels, confidence = self.predictions.labels, self.predictions.confidence
        for row, position in enumerate(index):
            yield self.images.name(position), names[labels[row]], f"{confidence[row]:.6f}"


def is_inside(name: str) -> bool:
    """Return whether the name of an image stays in its folder: relative, without `..`."""
    return not name.startswith("/") and ".." not in PurePath(name).parts and not PurePath(name).is_absolute()


def readable(path: str) -> str:
    """Return a path as valid UTF-8, with other bytes escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def read_run_card(folder: str | Path) -> dict[str, Any]:
    """Return the content of run.json, or raise an error if the folder is not a complete run."""
    missing = f"{str(folder)!r} is not a run folder: {CARD} is missing. Make one: captune adapt ... --out {folder}"
    finish_replacing(Path(folder), CARD, OF_AN_OLD_RUN)
    return read_card(Path(folder) / CARD, FORMAT, VERSION, missing)


def update_review(folder: str | Path, **facts: Any) -> None:  # noqa: ANN401 (JSON values)
    """Change what run.json says about people's answers."""
    card = read_run_card(folder)
    write_json(Path(folder) / CARD, {**card, "review": {**card.get("review", {}), **facts}})


@contextmanager
def claim_folder(folder: str | Path, overwrite: bool, resume: bool | None = False, card: str = CARD) -> Iterator[Path]:
    """Lock an output folder, after checking that it can be written and that nothing of value would be replaced.

    Pass None for `resume` if the command cannot resume.
    """
    target = Path(folder)
    lock, checkpoints = target / LOCK, target / CHECKPOINTS
    with ExitStack() as stack:
        try:
            was_killed = lock.exists()
            if not was_killed:  # check first: no lock file is left in a folder that cannot be used
                _check_claim(target, overwrite, resume, card, was_killed)
            target.mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold(lock, f"Another captune is writing to the output folder {str(target)!r}"))
            finish_replacing(target, card, OF_AN_OLD_RUN if card == CARD else ())
            _check_claim(target, overwrite, resume, card, was_killed)
            for leftover in (*target.glob(LEFTOVERS), *target.glob(f"*/{LEFTOVERS}")):
                leftover.unlink(missing_ok=True)
            shutil.rmtree(target / NEW, ignore_errors=True)  # incomplete files of a killed process
            if overwrite and holds_checkpoints(checkpoints):
                drop_checkpoints(checkpoints)
        except OSError as error:
            raise RunFolderError(f"The output folder {str(target)!r} cannot be written: {error.strerror}.") from error
        try:
            yield target
        except BaseException:
            is_complete = (target / card).is_file() and not holds_checkpoints(checkpoints)
            if is_complete or not _content(target):  # unchanged: there is nothing to resume
                lock.unlink(missing_ok=True)
            raise
        with suppress(OSError):
            lock.unlink(missing_ok=True)


def _check_claim(target: Path, overwrite: bool, resume: bool | None, card: str, was_killed: bool) -> None:
    is_run, is_started = (target / card).is_file(), was_killed or holds_checkpoints(target / CHECKPOINTS)
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
