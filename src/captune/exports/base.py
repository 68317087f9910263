"""Exporting a run: the base class of all formats, and `export`, which never leaves a partly written target."""

from __future__ import annotations

import dataclasses
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from captune.core import registry
from captune.core.errors import CaptuneError, InputError
from captune.core.files import write_json
from captune.core.restoring import unchanged
from captune.core.settings import Positive, Share, build
from captune.core.wording import option
from captune.results.run import Run
from captune.results.run_folder import EXPORTS

MARK = "captune-export.json"
"""A file in every exported folder, so that --overwrite never removes any other folder."""


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
    """Whether the target is a folder."""

    takes: ClassVar[frozenset[str]] = frozenset()
    """The settings of this format; any other setting is an error."""

    @abstractmethod
    def write(self, run: Run, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write the target (an empty folder, if it is one) and return remarks about what was written."""


PLUGIN_BASE = ExportFormat


@dataclass(frozen=True)
class Exported:
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
    writer: ExportFormat = registry.load("exports", name)()
    checked = build(ExportSettings, settings, "export settings")
    _check_settings(writer, name, checked)
    finished = Run.read(run, images=checked.images if "splits" in writer.takes else None)
    target = Path(out) if out is not None else finished.folder / EXPORTS / writer.target
    _check_target(writer, target, overwrite)
    if writer.is_folder:
        return Exported(target, _write_folder(writer, finished, target, checked, name))
    return Exported(target, writer.write(finished, target, checked))


def _check_settings(writer: ExportFormat, name: str, settings: ExportSettings) -> None:
    changed = [field.name for field in dataclasses.fields(settings) if getattr(settings, field.name) != field.default]
    wrong = [key for key in changed if key not in writer.takes]
    if wrong:
        listed = [", ".join(map(option, keys)) for keys in (wrong, sorted(writer.takes))]
        raise InputError(
            f"The format {name.replace('_', '-')} does not take {listed[0]}. It takes: {listed[1] or 'none'}."
        )


def _check_target(writer: ExportFormat, target: Path, overwrite: bool) -> None:
    try:
        if writer.is_folder:
            is_export = (target / MARK).is_file()
            is_taken = target.is_file() or (target.is_dir() and any(target.iterdir()))
            if is_taken and not (is_export and overwrite):
                replace = f"pass {option('overwrite', True)} to replace it, or choose"
                hint = replace if is_export else "it is not an export. Choose"
                raise InputError(f"The folder {str(target)!r} already exists: {hint} another {option('out')}.")
        elif target.is_dir():
            raise InputError(f"{str(target)!r} is a folder, expected a file such as {str(target / writer.target)!r}.")
        elif target.exists() and not overwrite:
            raise InputError(
                f"The file {str(target)!r} already exists: pass {option('overwrite', True)} to replace it, or choose "
                f"another {option('out')}."
            )
    except OSError as error:
        raise InputError(
            f"{str(target)!r} cannot be used: {error.strerror}. Choose another {option('out')}."
        ) from error


def _write_folder(writer: ExportFormat, run: Run, target: Path, settings: ExportSettings, name: str) -> Sequence[str]:
    """Write beside the target and rename, so that a kill or an error leaves the old folder or the new one."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".captune-", ignore_cleanup_errors=True) as beside:
            new, old = Path(beside) / "new", Path(beside) / "old"
            new.mkdir()
            remarks = writer.write(run, new, settings)
            write_json(new / MARK, {"format": "captune-export", "kind": name, "run": str(run.folder)})
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
            f"The folder {str(target)!r} cannot be written: {error.strerror or error}. Check its permissions and the "
            "free disk space."
        ) from error
    return remarks
