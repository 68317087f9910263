"""Export a run: what a format is, and one call for all formats that writes a whole target or none."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from captune.core import registry
from captune.core.errors import CaptuneError, InputError, raise_all
from captune.core.files import write_json
from captune.report.reading import RunRecord, read_run
from captune.results.run import CLASSIFIER, EXPORTS

if TYPE_CHECKING:
    from captune.results.classifier import Classifier

Source = Literal["predictions", "pseudo-labels"]


@dataclass(frozen=True)
class ExportSettings:
    """What a person may ask of an export; a format takes those that it names in `takes`.

    Attributes:
        min_confidence: Leave out images that the model is less sure of, from 0 to 1.
        source: Labels of all images (predictions), or only those that the training used (pseudo-labels).
        prefix: What stands before each image's name; None for the format's own.
        images: Where the images to check with are; the run's own by default.
        labels: Known classes: `folders`, or a table (path, label).
        n_checked: Images to compare the export with the run on.
        int8: Write a smaller model with 8-bit weights too.
    """

    min_confidence: float = 0.0
    source: Source = "predictions"
    prefix: str | None = None
    images: str | None = None
    labels: str | None = None
    n_checked: int | None = None
    int8: bool = False

    def __post_init__(self) -> None:
        problems = []
        if not 0.0 <= self.min_confidence <= 1.0:
            problems.append(f"--min-confidence is {self.min_confidence}, expected a number from 0 to 1")
        if self.source not in ("predictions", "pseudo-labels"):
            problems.append(f"--source is {self.source!r}, expected predictions or pseudo-labels")
        if self.n_checked is not None and self.n_checked < 1:
            problems.append(f"--check is {self.n_checked}, expected at least 1")
        raise_all(problems, "This export cannot be made")


class FinishedRun:
    """A run folder; its tables and its classifier are read when they are first asked for."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @cached_property
    def record(self) -> RunRecord:
        """Return the tables of the run."""
        return read_run(self.folder)

    @cached_property
    def classifier(self) -> Classifier:
        """Return the run's classifier, with its backbone."""
        from captune.results.classifier import Classifier

        return Classifier.load(self.folder / CLASSIFIER)


class ExportFormat(ABC):
    """Writes a run in one format."""

    target: ClassVar[str]
    """Name of the file or folder that is written, below RUN/exports."""

    is_folder: ClassVar[bool] = False
    """Whether the target is a folder."""

    takes: ClassVar[frozenset[str]] = frozenset()
    """The settings that have a meaning for this format; others are refused, not ignored."""

    @abstractmethod
    def write(self, run: FinishedRun, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write the target and return sentences about what was written; a folder is empty and waiting."""


PLUGIN_BASE = ExportFormat


MARK = "captune-export.json"
"""Stands in every exported folder, so that --overwrite never removes a folder of other origin."""


@dataclass(frozen=True)
class Exported:
    """Where an export is, and sentences about it."""

    path: Path
    remarks: Sequence[str]


def export(
    run: str | Path,
    format: str,
    out: str | Path | None = None,
    overwrite: bool = False,
    **settings: Any,  # noqa: ANN401
) -> Exported:
    """Write a run folder in another tool's format; `settings` are those of `ExportSettings` that the format takes."""
    name = format.replace("-", "_")
    writer: ExportFormat = registry.load("exports", name)()
    _check_settings(writer, name, settings)
    finished = FinishedRun(run)
    _ = finished.record  # a folder that is no run is found before anything is written
    target = Path(out) if out is not None else finished.folder / EXPORTS / writer.target
    _check_target(writer, target, overwrite)
    made = ExportSettings(**settings)
    if not writer.is_folder:
        return Exported(target, writer.write(finished, target, made))
    return Exported(target, _write_folder(writer, finished, target, made, name))


def _check_settings(writer: ExportFormat, name: str, settings: dict[str, Any]) -> None:
    known = {field.name for field in dataclasses.fields(ExportSettings)}
    wrong = [key for key in settings if key not in known]
    if wrong:
        raise InputError(f"Unknown settings {', '.join(wrong)}, expected some of {', '.join(sorted(known))}.")
    foreign = [key for key, value in settings.items() if key not in writer.takes and value != _default(key)]
    if foreign:
        words = ", ".join(f"--{WORDS.get(key, key.replace('_', '-'))}" for key in foreign)
        takes = ", ".join(sorted(f"--{WORDS.get(key, key.replace('_', '-'))}" for key in writer.takes)) or "none"
        raise InputError(f"The format {name.replace('_', '-')} does not take {words}. It takes: {takes}.")


WORDS = {"n_checked": "check"}
"""Where the word of the command line is another than the setting's name."""


def _default(key: str) -> Any:  # noqa: ANN401
    return next(field.default for field in dataclasses.fields(ExportSettings) if field.name == key)


def _check_target(writer: ExportFormat, target: Path, overwrite: bool) -> None:
    try:
        if writer.is_folder:
            is_ours = (target / MARK).is_file()
            is_taken = target.is_file() or (target.is_dir() and any(target.iterdir()))
            if is_taken and not (is_ours and overwrite):
                hint = "pass --overwrite to replace it, or choose" if is_ours else "it is no export; choose"
                raise InputError(f"The folder {str(target)!r} is there already: {hint} another --out.")
        elif target.is_dir():
            raise InputError(f"{str(target)!r} is a folder, expected a file such as {str(target / writer.target)!r}.")
        elif target.exists() and not overwrite:
            raise InputError(
                f"The file {str(target)!r} is there already: pass --overwrite to replace it, or choose another --out."
            )
    except OSError as error:
        raise InputError(f"{str(target)!r} cannot be used: {error.strerror}. Choose another --out.") from error


def _write_folder(
    writer: ExportFormat, run: FinishedRun, target: Path, settings: ExportSettings, name: str
) -> Sequence[str]:
    """Write aside and rename, so that a kill leaves the old folder or the new one."""
    aside = old = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=".captune-"))
        remarks = writer.write(run, aside, settings)
        write_json(aside / MARK, {"format": "captune-export", "kind": name, "run": str(run.folder)})
        aside.chmod(0o755)
        if target.is_dir():
            old = Path(tempfile.mkdtemp(dir=target.parent, prefix=".captune-old-"))
            target.replace(old)
        aside.replace(target)
    except OSError as error:
        raise CaptuneError(
            f"The folder {str(target)!r} cannot be written: {error.strerror or error}. Check its rights and free space."
        ) from error
    finally:
        for leftover in (aside, old):
            if leftover is not None and leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
    return remarks
