"""A finished run, in memory or in its folder: to look at, to measure, to save, and what reports and exports read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors.numpy import load_file
from safetensors.numpy import save as save_arrays

from captune.core.arrays import Bools, Floats, Ints, Positions, Rows
from captune.core.errors import CaptuneError, InputError, RunFolderError
from captune.core.files import is_file, is_folder, replaced, table, write_json, write_whole
from captune.core.settings import resolve_paths
from captune.core.text import Displayed, shortened
from captune.data.images import ImageCollection, escaped
from captune.data.labels import read_labels
from captune.data.precomputed import split_key
from captune.data.vocabulary import NONE, write_descriptions
from captune.embeddings.predictions import Predictions
from captune.labeling.pseudo_labels import PseudoLabels, Source
from captune.results import run_folder
from captune.results.classifier import Classifier
from captune.results.metrics import Metrics, summarize
from captune.results.run_folder import CARD, EVIDENCE, PSEUDO_LABELS, is_inside, read_rows

if TYPE_CHECKING:
    from captune.data.inputs import Images
    from captune.distill import Distilled
    from captune.report.page import Report
    from captune.results.finishing import Evidence
    from captune.review.accept import Acceptance


@dataclass(eq=False, repr=False, kw_only=True)
class Run(Displayed):
    """The results of a run; what `read` finds in a folder is loaded when it is first used.

    Attributes:
        settings: All settings, flat, as in a settings file.
        images: All images that the model was adapted to; those read from a folder begin with the readable ones.
        skipped: Why the images that are not readable were skipped, by position in `images`.
        environment: Versions, random seed, data fingerprint, times.
        rounds: What the method recorded during training.
        evidence: Data for the report, and the health check; None if the run was read from a folder.
        kept: `adapted`, or `zero_shot` if adaptation looked harmful and was discarded.
        sources: The images, classes and labels arguments.
        review: What people's answers say: accuracy and number of labels; None if nobody was asked.
        discarded: The adapted classifier, if zero-shot is kept.
        saved_in: The folder that the run was read from; None for a run in memory.
        truth: True class ids of the readable images, -1 where unknown; None without labels.
        is_given: Whether the user named the folder of the images when the run was read.
        is_theirs: Whether somebody else made the run, and the user did not name that folder.
        made: The classifier and its predictions, unless the run was read from a folder.
    """

    settings: Mapping[str, Any]
    images: ImageCollection
    skipped: Mapping[int, str]
    environment: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]] = ()
    evidence: Evidence | None = None
    kept: str = "adapted"
    sources: Mapping[str, str] = field(default_factory=dict)
    review: Mapping[str, Any] | None = None
    discarded: Classifier | None = None
    saved_in: Path | None = None
    truth: Ints | None = None
    is_given: bool = False
    is_theirs: bool = False
    made: InitVar[tuple[Classifier, Predictions] | None] = None

    def __post_init__(self, made: tuple[Classifier, Predictions] | None) -> None:
        health = None if self.evidence is None else self.evidence.health
        self.health: dict[str, Any] | None = None if health is None else health.as_dict()
        if made is not None:
            self.classifier, self.predictions = made
            self.names, self.readable = self.classifier.names, self.images.subset(self.predictions.image_index)
            self.labels, self.confidence = self.predictions.labels, self.predictions.confidence
            self.fits, self.arrays = self.predictions.fits, {} if self.evidence is None else self.evidence.arrays

    @classmethod
    def read(cls, folder: str | Path, labels: Any = None, images: str | Path | None = None) -> Run:  # noqa: ANN401
        """Read a run folder; `labels` are `folders`, a table (path, label), or one label for each readable image.

        `images` is the folder of the images, if it is not where it was, or if the run was made by somebody else.
        """
        path = Path(folder)
        card = run_folder.read_run_card(path)
        with noticing_damage(path):
            names, root = tuple(card["classes"]), Path(card.get("image_root", ".")) if images is None else Path(images)
            inside, predicted, confidence, fits = run_folder.read_predictions(path / "predictions.csv", root, names)
            n = len(inside)
            outside = (inside.name(i) for i in range(n) if not is_inside(inside.name(i)))
            if card.get("images_in_root") and (first := next(outside, None)) is not None:
                raise InputError(
                    f"{str(path / 'predictions.csv')!r} was changed: {first!r} is outside the folder of the images. "
                    "Adapt again, or correct the table."
                )
            skipped = [(row["path"], row["reason"]) for row in read_rows(path / "skipped.csv")]
            run = cls(
                settings=card["settings"],
                images=inside + ImageCollection((root / name for name, _ in skipped), root),
                skipped={n + i: reason for i, (_, reason) in enumerate(skipped)},
                environment=card["environment"],
                rounds=card["rounds"],
                kept=card.get("kept", "adapted"),
                sources=card.get("sources", {}),
                review=card.get("review"),
                saved_in=path,
                is_given=images is not None,
            )
            run.card, run.names, run.readable = card, names, inside
            run.labels, run.confidence, run.fits, run.health = predicted, confidence, fits, card.get("health")
        if labels is not None:
            run.truth = read_labels(labels, run.readable, names)
            if not np.any(run.truth >= 0):
                raise InputError(f"None of the {n} images of the run has a label in {str(labels)!r}.")
        return run

    @property
    def folder(self) -> Path:
        """Return the folder that the run was read from, or raise an error."""
        if self.saved_in is None:
            raise InputError("This run is in memory. Save it first: run.save(folder)")
        return self.saved_in

    # Read from the folder when it is first used

    @cached_property
    def classifier(self) -> Classifier:
        """Return the adapted classifier, with its backbone."""
        return Classifier.load(self.folder / run_folder.CLASSIFIER)

    @cached_property
    def predictions(self) -> Predictions:
        """Return class probabilities of the readable images; those of a large folder are computed again."""
        rows, reject = np.arange(len(self.labels)), float(self.settings.get("reject", 0.0))
        found = self.probabilities_of(Rows(rows))
        return Predictions(Positions(rows), found, self.names, self.images, self.fits, reject=reject)

    @cached_property
    def card(self) -> dict[str, Any]:
        """Return the content of run.json."""
        reviewed = {} if self.review is None else {"review": dict(self.review)}
        return {
            "format": run_folder.FORMAT,
            "version": run_folder.VERSION,
            "settings": dict(self.settings),
            "classes": list(self.names),
            "n_images": len(self.images),
            "n_skipped": len(self.skipped),
            "unused": escaped(self.images.unused),
            "environment": dict(self.environment),
            "sources": {what: escaped(source) for what, source in self.sources.items()},
            "image_source": self.images.kind,
            "images_in_root": all(is_inside(self.images.name(i)) for i in self.predictions.image_index),
            "image_root": escaped(str(self.images.root.absolute())),
            "kept": self.kept,
            "health": self.health,
            "rounds": [dict(facts) for facts in self.rounds],
            **reviewed,
        }

    @cached_property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return the evidence that reports are made from; may be empty."""
        with noticing_damage(self.folder):
            return load_file(self.folder / EVIDENCE) if (self.folder / EVIDENCE).is_file() else {}

    @cached_property
    def history(self) -> Sequence[tuple[int, PseudoLabels]]:
        """Return epochs that changed the pseudo-labels, with those of readable images afterward (not how confident)."""
        changes = np.asarray(self.arrays.get("history", np.empty((0, 3))), dtype=np.int64)
        labels, states = np.full_like(self.labels, -1), []
        with noticing_damage(self.saved_in):
            for part in np.split(changes, np.flatnonzero(np.diff(changes[:, 0])) + 1) if len(changes) else ():
                labels[part[:, 1]] = part[:, 2]
                rows = np.flatnonzero(labels >= 0)
                unknown = np.zeros(len(rows), dtype=np.float32)
                states.append((int(part[0, 0]), PseudoLabels.create(rows, labels[rows], unknown, self.n_classes)))
        return states

    @property
    def pseudo_labels(self) -> Ints | None:
        """Return the final number of pseudo-labels of each class; None if the method makes none."""
        return self.history[-1][1].counts() if self.history else None

    # What follows from it

    @property
    def n_classes(self) -> int:
        """Return the number of classes."""
        return len(self.names)

    @property
    def method(self) -> str:
        """Return the method's id."""
        return str(self.settings.get("method", "?"))

    @property
    def choice(self) -> Mapping[str, Any]:
        """Return the method and preset that were used: those that `auto` chose, or those of the settings."""
        return next(iter(self._recorded("choice")), self.settings)

    @property
    def skipped_files(self) -> list[tuple[str, str]]:
        """Return the names of the skipped images, and the reasons."""
        return [(self.images.name(position), reason) for position, reason in sorted(self.skipped.items())]

    @property
    def is_rejected(self) -> Bools:
        """Return which readable images are predicted as none of the classes."""
        if self.fits is None:
            return np.zeros(len(self.labels), dtype=np.bool_)
        return (self.fits < float(self.settings.get("reject", 0.0))) | (self.fits == 0)

    @property
    def absent_names(self) -> list[str]:
        """Return the class names that no image seems to show, as far as the method looked for them."""
        return next((list(facts["absent"]) for facts in reversed(self.rounds) if "absent" in facts), [])

    @cached_property
    def is_adapted(self) -> bool:
        """Return whether adaptation changed the probabilities."""
        return "before" in self.arrays and not np.allclose(self.arrays["before"], self.arrays["after"], atol=1e-4)

    @cached_property
    def before_labels(self) -> Ints:
        """Return the zero-shot prediction for each readable image."""
        return np.asarray(self.arrays.get("before_labels", self.labels), dtype=np.int64)

    @property
    def epochs(self) -> list[Mapping[str, Any]]:
        """Return what the method recorded for each epoch."""
        return self._recorded("epoch")

    @property
    def alignment(self) -> Mapping[str, Any]:
        """Return what the detection of misleading names recorded, empty if there was none."""
        return next(iter(self._recorded("concept_alignment")), {})

    def _recorded(self, step: str) -> list[Mapping[str, Any]]:
        return [facts for facts in self.rounds if facts.get("step") == step]

    def probabilities_of(self, rows: Rows) -> Floats:
        """Return the probabilities `(rows, classes)` of some readable images, as saved or else predicted again."""
        kept = np.asarray(self.arrays.get("rows", ()), dtype=np.int64)
        if np.isin(rows, kept).all():
            return np.asarray(self.arrays["after"][np.searchsorted(kept, rows)], dtype=np.float32)
        images = self.readable.subset(rows)
        predictions = self.classifier.predictions(images)
        if predictions.skipped:
            first, why = next(iter(predictions.skipped.items()))
            lost = f"{len(predictions.skipped)} images of the run can no longer be read"
            raise InputError(f"{lost}, the first is {images.name(first)!r}: {why}. Move them to {str(images.root)!r}.")
        return predictions.probabilities

    # For people

    def evaluate(self, labels: Any) -> Metrics:  # noqa: ANN401
        """Compare the predictions with labels: `folders`, a path, a mapping or one label per image."""
        truth = self._classes_of(labels)
        known = truth >= 0
        if not known.any():
            raise InputError(f"None of the {len(truth)} readable images has a label.")
        return summarize(self.predictions.probabilities[known], truth[known], n_classes=self.n_classes)

    def report(self, labels: Any = None) -> Report:  # noqa: ANN401
        """Return the report, which a notebook shows inline; with labels, it shows accuracies."""
        from captune.report.page import report_of

        return report_of(self, None if labels is None else self._classes_of(labels))

    def _classes_of(self, labels: Any) -> Ints:  # noqa: ANN401
        return read_labels(labels, self.images, self.names)[self.predictions.image_index]

    def accept(self, precision: float = 0.95, certainty: float = 0.95) -> Acceptance:
        """Return the largest set of labels of which this share is right, with certainty, from the checks so far."""
        from captune.review.opening import open_session

        return open_session(self, quiet=True).accept(precision, certainty)

    def distill(self, out: str | Path | None = None, student: str = "small", **settings: Any) -> Distilled:  # noqa: ANN401
        """Train a small classifier on the labels of the run; `settings` are arguments of `captune.distill.distill`."""
        from captune.distill import distill

        return distill(self, out, student, **settings)

    def update(self, images: Images) -> Run:
        """Return the run with new images; answers, names and checks stay. A run folder is written again."""
        from captune.review.opening import open_session

        session = open_session(self, quiet=True)
        session.update(images)
        return session.run() if self.saved_in is None else Run.read(session.save())

    def summary(self) -> dict[str, object]:
        """Return what matters most about the run."""
        health = self.health or {}
        change = health.get("expected_change")
        return {
            "method": self.method,
            "images": len(self.labels),
            "skipped": len(self.skipped),
            "classes": self.n_classes,
            "never_predicted": self.n_classes - len(np.unique(self.labels)),
            "mean_confidence": round(float(self.confidence.mean()), 3),
            **({"misleading_names": shortened(list(self.alignment["mismatched"]))} if self.alignment else {}),
            "kept": self.kept,
            "health": health.get("verdict"),
            "expected_change": None if change is None else round(change, 4),
        }

    # Writing

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the run folder with its report; a run that is there already is replaced only with `overwrite`."""
        from captune.report.page import write_report

        with run_folder.claim_folder(folder, overwrite) as target:
            self.write(target)
            write_report([target])
            return target

    def write(self, folder: str | Path) -> Path:
        """Write a folder that is claimed already; a run that is there stays until the new one is complete."""
        with replaced(Path(folder), run_folder.FILES, run_folder.OF_AN_OLD_RUN) as target:
            self.classifier.save(target / run_folder.CLASSIFIER)
            columns = ("path", "label", "confidence", "fits", "nearest")
            write_whole(target / "predictions.csv", table(columns, self._predicted_rows()))
            write_whole(target / "skipped.csv", table(("path", "reason"), self.skipped_files))
            write_whole(target / "settings.yaml", yaml.safe_dump(self._project(), sort_keys=False, allow_unicode=True))
            if self.evidence is not None:
                arrays = {name: np.ascontiguousarray(array) for name, array in self.evidence.arrays.items()}
                write_whole(target / EVIDENCE, save_arrays(arrays))
                for _, labels in self.evidence.history[-1:]:
                    columns = ("path", "label", "confidence", "round", "source")
                    kinds = (Source(kind).name.lower() for kind in labels.source.tolist())
                    names = (self.readable.name(row) for row in labels.image_index.tolist())
                    classes = (self.names[label] for label in labels.labels.tolist())
                    shares = (f"{share:.6f}" for share in labels.confidence)
                    rows = zip(names, classes, shares, labels.round.tolist(), kinds, strict=True)
                    write_whole(target / PSEUDO_LABELS, table(columns, rows))
            described = self.alignment.get("descriptions", {})
            if described := {name: texts for name, texts in described.items() if texts}:
                write_descriptions(target / run_folder.DESCRIPTIONS, described)  # to edit and reuse
            write_json(target / CARD, self.card)  # last
        if not self.is_theirs:
            with suppress(CaptuneError):  # without a cache, the user is asked for the folder of the images again
                write_whole(run_folder.mark_of_own(Path(folder), self.card["image_root"]), "")
        return Path(folder)

    def shown_file(self, row: int) -> Path | None:
        """Return the file of a readable image, or None if it is not in a folder that the user of this machine named.

        A run folder that somebody else made could name any folder, and its report would show private pictures.
        """
        path = self.readable.paths[row]
        if self.is_given:
            return path if path.resolve().is_relative_to(self.readable.root.resolve()) else None
        return path if self.is_own else None

    @cached_property
    def is_own(self) -> bool:
        """Return whether the user of this machine made the run in its folder, of images in that folder."""
        return is_file(run_folder.mark_of_own(self.folder, self.card.get("image_root", ".")))

    def _project(self) -> dict[str, Any]:
        """Return inputs and settings as --config takes them, with absolute paths; inputs in memory are left out."""
        inputs: dict[str, Any] = {what: escaped(source) for what, source in self.sources.items() if source[:1] != "<"}
        path = split_key(inputs.get("classes", ""))[0]
        if "classes" in inputs and not (is_file(path) or is_folder(path)):  # names, which may be too long for a path
            inputs["classes"] = list(self.names)
        return resolve_paths({**inputs, **self.settings}, Path.cwd())

    def _predicted_rows(self) -> Iterator[Sequence[object]]:
        rejected = self.is_rejected
        for row, nearest in enumerate(self.names[label] for label in self.labels):
            fits = "" if self.fits is None else f"{self.fits[row]:.6f}"
            label = NONE if rejected[row] else nearest
            yield self.readable.name(row), label, f"{self.confidence[row]:.6f}", fits, nearest


@contextmanager
def noticing_damage(folder: Path | None) -> Iterator[None]:
    """Raise one error for a folder that was edited by hand, which can fail in any way."""
    try:
        yield
    except (CaptuneError, MemoryError):
        raise
    except Exception as error:
        raise RunFolderError(f"The run {str(folder)!r} is damaged: {type(error).__name__}: {error}.") from error
