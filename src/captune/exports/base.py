"""Exporting a run: the labels to export, the base class of all formats, and `export`, which replaces whole targets."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from captune.core import registry
from captune.core.arrays import Floats, Ints, Rows
from captune.core.errors import CaptuneError, InputError, RunFolderError
from captune.core.files import refuse_links, write_json
from captune.core.runtime import unchanged
from captune.core.settings import Positive, Share, build
from captune.core.text import option
from captune.results.run import Run
from captune.results.run_folder import EXPORTS, PSEUDO_LABELS, read_rows
from captune.review.accept import accepted_rows
from captune.review.opening import open_session

MARK = "captune-export.json"
"""A file in every exported folder, so that --overwrite never removes any other folder."""
READERS_OF_FOLDERS = ("yolo_cls", "timm", "hf_dataset")
"""Other names of the format `imagefolder`: one folder is read by all of them."""
OF_LABELS = frozenset({"min_confidence", "source", "precision"})
"""Settings of all formats that export labels."""


@dataclass(frozen=True)
class ExportSettings:
    """Settings of exports; each format accepts those in its `takes`.

    Attributes:
        min_confidence: Leave out images with a lower confidence, from 0 to 1.
        precision: Only export labels of which this share is right with 95 % certainty, by the checks of people.
        source: Export the predictions for all images, or only the pseudo-labels used in training.
        prefix: Text to put in front of each image path; None for the default of the format.
        images: Images to check the exported model with, or the folder of the images of a data set; by default those of
            the run.
        labels: Known labels: `folders`, or a table (path, label).
        n_checked: Number of images to check the exported model with.
        int8: Also write a smaller model with 8-bit weights.
        splits: Shares of the images for training, validation and test.
        link: Whether a data set has links to the images instead of copies.
    """

    min_confidence: Share = 0.0
    precision: Share | None = None
    source: Literal["predictions", "pseudo-labels"] = "predictions"
    prefix: str | None = None
    images: str | None = None
    labels: str | None = None
    n_checked: Positive | None = None
    int8: bool = False
    splits: str = "80,10,10"
    link: bool = False


class ExportFormat(ABC):
    """Writes a run in one format."""

    target: ClassVar[str]
    """Default name of the file or folder, in RUN/exports."""
    is_folder: ClassVar[bool] = False
    takes: ClassVar[frozenset[str]] = frozenset()
    """The settings of this format; any other setting is an error."""

    @abstractmethod
    def write(self, run: Run, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write the target (an empty folder, if it is one) and return remarks about what was written."""


PLUGIN_BASE = ExportFormat


class LabelFormat(ExportFormat):
    """Writes labels to one file, and perhaps others beside it."""

    takes = OF_LABELS | {"prefix"}

    def write(self, run: Run, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write the labels that the settings choose."""
        chosen = choose_labels(run, settings)
        self.write_labels(chosen, target, settings.prefix)
        return [chosen.remark]

    @abstractmethod
    def write_labels(self, chosen: LabelTable, target: Path, prefix: str | None) -> None:
        """Write the target."""


class Exported(NamedTuple):
    """The path of an export, and remarks about it."""

    path: Path
    remarks: Sequence[str]


@unchanged()
def export(
    run: str | Path,
    format: str,
    out: str | Path | None = None,
    overwrite: bool = False,
    **settings: Any,  # noqa: ANN401
) -> Exported:
    """Export a run folder to another tool's format; `settings` are fields of `ExportSettings`."""
    name = format.replace("-", "_")
    name = "imagefolder" if name in READERS_OF_FOLDERS else name
    writer: ExportFormat = registry.load("exports", name)()
    checked = build(ExportSettings, settings, "export settings")
    wrong = [one for one, value in vars(checked).items() if value != getattr(ExportSettings, one)]
    if wrong := [option(one) for one in wrong if one not in writer.takes]:
        known = ", ".join(map(option, sorted(writer.takes)))
        raise InputError(f"The format {format} does not take {', '.join(wrong)}. It takes: {known}.")
    finished = Run.read(run, images=checked.images if "splits" in writer.takes else None)
    refuse_links(finished.folder, (EXPORTS,) if out is None else ())
    target = Path(out) if out is not None else finished.folder / EXPORTS / writer.target
    check_target(target, overwrite, writer.is_folder)
    with _new_folder(target, name, finished) if writer.is_folder else nullcontext(target) as place:
        return Exported(target, writer.write(finished, place, checked))


def check_target(target: Path, overwrite: bool, is_folder: bool) -> None:
    """Raise an error if something else is at the target, or an export that shall not be replaced."""
    other = f"choose another {option('out')}."
    try:
        is_export = (target / MARK).is_file() if is_folder else target.exists()
        if target.is_dir() and not is_folder:
            raise InputError(f"{str(target)!r} is a folder, expected a file such as {str(target / 'labels.csv')!r}.")
        is_taken = any(target.iterdir()) if target.is_dir() else target.exists()
    except OSError as error:
        raise InputError(f"{str(target)!r} cannot be used: {error.strerror}; {other}") from error
    if is_taken and not (is_export and overwrite):
        hint = f"pass {option('overwrite', True)} to replace it, or" if is_export else "it is not an export:"
        raise InputError(f"{str(target)!r} already exists: {hint} {other}")


@contextmanager
def _new_folder(target: Path, kind: str, run: Run) -> Iterator[Path]:
    """Yield an empty folder, which replaces the target at the end; a kill or an error leaves the old one."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".captune-", ignore_cleanup_errors=True) as beside:
            new, old = Path(beside) / "new", Path(beside) / "old"
            new.mkdir()
            yield new
            write_json(new / MARK, {"format": "captune-export", "kind": kind, "run": str(run.folder)})
            if target.is_dir():
                target.replace(old)
            try:
                new.replace(target)
            except OSError:
                if old.is_dir():
                    old.replace(target)
                raise
    except OSError as error:
        raise CaptuneError(
            f"The folder {str(target)!r} cannot be written: {error.strerror or error}. Check permissions and space."
        ) from error


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Labels of some images of a run: their rows in its predictions, class ids and confidences.

    `certificate` says what is certain about the labels, if a precision was asked for.
    """

    run: Run
    rows: Rows
    labels: Ints
    confidence: Floats
    certificate: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the images."""
        return tuple(self.run.readable.name(row) for row in self.rows.tolist())

    def subset(self, kept: Ints) -> LabelTable:
        """Return the labels at some positions."""
        return replace(self, rows=Rows(self.rows[kept]), labels=self.labels[kept], confidence=self.confidence[kept])

    def entries(self, prefix: str | None = None) -> Iterator[tuple[str, int, float]]:
        """Yield the prefixed path, class id and confidence of each image."""
        for name, label, confidence in zip(self.names, self.labels.tolist(), self.confidence.tolist(), strict=True):
            yield f"{prefix or ''}{name}", label, confidence

    @property
    def remark(self) -> str:
        """Return how many images are exported, or the certificate."""
        counted = f"Exported the labels of {len(self)} of {len(self.run.readable)} images."
        return counted if self.certificate is None else str(self.certificate["sentence"])


def choose_labels(run: Run, settings: ExportSettings) -> LabelTable:
    """Return the labels to export, at least one."""
    certificate = None
    if settings.precision is not None:
        session = open_session(run, images=settings.images, quiet=True)
        accepted = session.accept(settings.precision)
        certificate = accepted.as_dict()
        if not len(accepted):
            checks = f"captune suggest {run.folder} --for-precision {settings.precision:g} --out FILE"
            raise InputError(f"{accepted.sentence} Images to check: {checks}")
        found = _find_rows(run, ((path, label, p) for path, label, p, _ in accepted_rows(session, accepted)))
    elif settings.source == "pseudo-labels":
        found = _pseudo_labels(run)
    else:
        found = np.arange(len(run.readable)), run.labels, run.confidence
    rows, labels, confidence = found
    kept = (confidence >= settings.min_confidence) & ~run.is_rejected[rows]
    if not kept.any():
        raise InputError(
            f"None of the {len(confidence)} labels has a confidence of at least {settings.min_confidence}, the highest "
            f"is {confidence.max(initial=0.0):.4f}. Lower {option('min_confidence')}."
        )
    return LabelTable(run, Rows(rows[kept]), labels[kept], confidence[kept], certificate)


def _pseudo_labels(run: Run) -> tuple[Ints, Ints, Floats]:
    path = run.folder / PSEUDO_LABELS
    if not path.is_file():
        raise InputError(f"The run has no pseudo-labels (method {run.method}). Use {option('source', 'predictions')}.")
    try:
        return _find_rows(run, ((row["path"], row["label"], row["confidence"]) for row in read_rows(path)))
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise RunFolderError(f"{str(path)!r} is damaged: {type(error).__name__}: {error}.") from error


def _find_rows(run: Run, table: Iterable[tuple[str, str, str]]) -> tuple[Ints, Ints, Floats]:
    """Return the rows, class ids and confidences of a table; an image that is not in the run any more is left out."""
    row_of = {run.readable.name(row): row for row in range(len(run.readable))}
    ids = {name: i for i, name in enumerate(run.names)}
    entries = [(row_of[path], ids[label], float(confidence)) for path, label, confidence in table if path in row_of]
    rows, labels, confidence = zip(*entries, strict=True) if entries else ((), (), ())
    return np.asarray(rows, np.int64), np.asarray(labels, np.int64), np.asarray(confidence, np.float32)
