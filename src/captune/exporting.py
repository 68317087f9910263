"""Export a run: one call for every format, and folders that appear whole or not at all."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captune import registry
from captune.errors import CaptuneError, InputError
from captune.exports.base import ExportFormat, ExportSettings, FinishedRun
from captune.files import write_json
from captune.results.run import EXPORTS

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
