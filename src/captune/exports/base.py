"""What an export format is: one file that writes a finished run the way another tool reads it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from captune.errors import raise_all
from captune.report.reading import RunRecord, read_run
from captune.results.run import CLASSIFIER

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
