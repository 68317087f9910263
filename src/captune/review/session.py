"""A session: embeddings in memory, and every answer has its effect within a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from captune.core.arrays import Bools, Floats, Ints, Positions
from captune.core.errors import InputError, nearest
from captune.data.inputs import Images
from captune.data.task import NONE_ID
from captune.embeddings.embed import embed_classes
from captune.embeddings.predictions import Predictions
from captune.mixture.open_world import fit_to_names
from captune.results.classifier import Classifier
from captune.results.run import Run
from captune.results.run_folder import claim_folder
from captune.review import suggestions
from captune.review.accept import Acceptance, accept_labels, population_of
from captune.review.answers import Answer, Answers, as_corrections, collect_answers, read_answers
from captune.review.changes import Change, Update, compare, update
from captune.review.corrections import CHECK, FILE, PRECISION, Correction, Corrections, Kind
from captune.review.engine import Engine, applied
from captune.review.estimate import AccuracyEstimate, describe_accuracy, draw_checks, estimate_accuracy, random_numbers
from captune.review.suggestions import CHECK_SHARE, Found, Group, Suggestion, find_images

Image = int | str
"""An image: its position or its name."""


class Session:
    """Images with their embeddings in memory, classes that can be changed, and the answers so far.

    Every change first reads what others answered meanwhile, and returns what it did to the predictions. Answers are
    recorded at once (`corrections`); `adapt` is called after every change, with the method that was used last.
    """

    def __init__(self, engine: Engine, corrections: Corrections, seed: int) -> None:
        self.engine, self.corrections, self.seed = engine, corrections, seed
        self.images, self.person = engine.images, corrections.person
        self.answers = self._collect()
        if not hasattr(engine, "probabilities") or engine.classifier.names != self.names:
            engine.adapt(self.answers)
        self.predictions = self._pinned()
        """The class probabilities of all images; an image that a person labeled has its label."""
        self._opened = self.predictions.labels, [self.answers.origins(name)[0] for name in self.names]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the class names."""
        return tuple(self.answers.names)

    @property
    def ids(self) -> dict[str, int]:
        """Return the class ids by name."""
        return {name: class_id for class_id, name in enumerate(self.names)}

    @property
    def descriptions(self) -> dict[str, tuple[str, ...]]:
        """Return the descriptions of the classes that have some, by people or by a describer."""
        every = {**self.engine.start.offered, **self.answers.descriptions}
        return {name: every[name] for name in self.names if name in every}

    @property
    def labels(self) -> dict[int, Answer]:
        """Return the labels of images by position, those of whole groups included."""
        return self.engine.here(self.answers.used())

    @property
    def skipped(self) -> dict[int, str]:
        """Return the images that a person could not name by position, and why they were shown."""
        return self.engine.here(self.answers.skipped)

    @property
    def classifier(self) -> Classifier:
        """Return the current classifier, which also classifies new images."""
        return self.engine.with_encoder()

    # Answers of people

    def label(
        self,
        answers: Image | Sequence[Image] | Mapping[Image, str] | Path | Sequence[Path],
        name: str | None = None,
        *,
        suggestion: str | Mapping[Image, str] = "",
    ) -> Change:
        """Record the classes of images and adapt once.

        `answers` are images of the class `name` (or `captune.NONE`), a mapping from images to classes, or, without a
        name, files with answers: filled tables, tables of labels, Label Studio exports (.json), or corrections of other
        people (.jsonl). `suggestion` is the kind of the suggestion that showed the images, or one for each of them.
        """
        if isinstance(answers, Mapping):
            kinds = dict.fromkeys(answers, suggestion) if isinstance(suggestion, str) else suggestion
            self._check(*answers.values(), may_add=True)
            self.corrections.extend(
                Correction("label", label, self.names_of(image), suggestion=kinds.get(image, ""), person=self.person)
                for image, label in answers.items()
            )
            return self._update(f"labeled {len(answers)} images")
        if name is None:  # files
            self.refresh()
            every: list[Any] = [answers] if isinstance(answers, (str, Path)) else list(answers)  # type: ignore[arg-type]
            theirs = [file for file in every if Path(file).suffix.lower() == ".jsonl"]
            filled = [(file, one) for file in every if file not in theirs for one in read_answers(file)]
            made, left = as_corrections(filled, self)
            n_theirs = self.corrections.merge(theirs)
            self.corrections.extend(made)
            return self._update(f"imported {len(made) + n_theirs} answers", notes=left)
        self._check(name, may_add=True)
        if not isinstance(suggestion, str):
            raise InputError("Expected one suggestion for images of one class.")
        found = self.names_of(answers)  # type: ignore[arg-type]
        what = f"labeled {len(found)} image{'s' * (len(found) != 1)} as {name!r}"
        return self._record(what, "label", name, images=found, suggestion=suggestion)

    def exclude(self, images: Image | Sequence[Image], name: str) -> Change:
        """Record that images are not of a class."""
        self._check(name)
        found = self.names_of(images)
        return self._record(f"{len(found)} images are not {name!r}", "not", name, images=found)

    def skip(self, images: Image | Sequence[Image], *, suggestion: str = "") -> Change:
        """Record that a person cannot name images, so that they are not suggested again."""
        self.refresh()
        found = self.names_of(images)
        return self._record(f"skipped {len(found)} images", "skip", images=found, suggestion=suggestion)

    def name_group(self, group: int, name: str, *, except_: Image | Sequence[Image] = ()) -> Change:
        """Record that a whole group is of a class, except for some of its images."""
        self._check(name, may_add=True)
        found = next((one for one in self.groups() if one.number == group), None)
        if found is None:
            raise InputError(f"There is no group {group}. Groups: 0 to {int(self.clusters[0].max())}.")
        others = self.names_of(except_)
        belonging = tuple(image for image in self.names_of(found.images.tolist()) if image not in others)
        if others:
            self.corrections.add("not", name, images=others, group=group)
        what = f"named group {group} ({len(belonging)} images) {name!r}"
        return self._record(what, "label", name, images=belonging, group=group)

    def rename(self, old: str, new: str) -> Change:
        """Give a class another name; the name of another class merges them."""
        self._check(old)
        if new in self.names:
            return self.merge([old, new], new)
        return self._record(f"renamed {old!r} to {new!r}", "rename", new, names=(old,))

    def merge(self, names: Sequence[str], into: str) -> Change:
        """Make one class of several, which keeps their texts and labels: images leave it for no other reason."""
        self._check(*names)
        if len(set(names)) < 2:
            raise InputError(f"Expected at least two classes to merge, got {list(names)}.")
        what = f"merged {', '.join(names)} into {into!r}"
        return self._record(what, "merge", into, names=tuple(dict.fromkeys(names)))

    def add(self, name: str, descriptions: Sequence[str] = ()) -> Change:
        """Add a class."""
        self._check()
        self.engine.check_texts()
        if name in self.names:
            raise InputError(f"There is already a class {name!r}.")
        return self._record(f"added {name!r}", "add", name, sentences=_sentences(descriptions))

    def remove(self, name: str) -> Change:
        """Remove a class that does not occur; labels of it are kept, but not used."""
        self._check(name)
        return self._record(f"removed {name!r}", "remove", name)

    def describe(self, name: str, descriptions: Sequence[str]) -> Change:
        """Replace the descriptions of a class; one that was merged is one text from now on."""
        self._check(name)
        self.engine.check_texts()
        return self._record(f"described {name!r}", "describe", name, sentences=_sentences(descriptions))

    def undo(self) -> Change:
        """Undo the last correction of this person that still holds."""
        self.refresh()
        last = self.corrections.last()
        if last is None:
            others = self.corrections.active()
            whose = f" The last answer is of {others[-1].person or 'somebody'!r}, who can undo it." if others else ""
            raise InputError(f"There is nothing of {self.person!r} to undo.{whose}")
        return self._update(self.corrections.undo(last))

    def refresh(self) -> Change | None:
        """Read what others wrote to the corrections file, and adapt if there is something new."""
        return self._update("read answers of others") if self.corrections.refresh() else None

    # Suggestions and results

    def adapt(self, method: str | None = None, **settings: Any) -> Change:  # noqa: ANN401 (checked by the method)
        """Adapt again, with another method or other settings; they are kept for later changes."""
        self.refresh()
        if method is not None or settings:
            self.engine.set_method(method, settings)
        return self._update(f"adapted with {self.engine.plan.settings.method}", force=True)

    def suggest(
        self, count: int = 20, *, checks: float = CHECK_SHARE, except_: Sequence[Image] = ()
    ) -> list[Suggestion]:
        """Return images worth looking at; a share of `checks` is drawn at random, to estimate accuracy.

        The same state gives the same suggestions. `except_` are images that are being shown already.
        """
        if count < 1 or not 0 <= checks <= 1:
            raise InputError(f"Expected count of at least 1 and checks from 0 to 1, got {count} and {checks}.")
        labels, is_free, ids = np.full(len(self.images), -1), np.ones(len(self.images), dtype=np.bool_), self.ids
        for row, answer in self.engine.here(self.answers.training()).items():
            labels[row] = -1 if answer.is_group else ids.get(answer.label, -1)
        answered = self.engine.here({**self.answers.labels, **self.answers.skipped})
        is_free[[*answered, *map(self.position, except_)]] = False
        drawn = draw_checks(self.random_numbers, is_free, round(checks * count))
        rest = np.setdiff1d(np.flatnonzero(is_free), drawn)
        n_rest = min(count - len(drawn), len(rest))
        typical = suggestions.choose_images(
            self.engine.vectors, self.predictions.probabilities, labels, rest, n_rest, self.seed
        )
        return suggestions.as_suggestions(suggestions.spread_checks(typical, drawn), self)

    def suggest_checks(self, precision: float = 0.95, *, except_: Sequence[Image] = ()) -> list[Suggestion]:
        """Return the images that must be checked before labels are accepted at a precision, drawn at random."""
        missing = population_of(self).progress(precision)[1]
        shown = {self.position(image) for image in except_}
        return suggestions.as_suggestions([(row, 1, PRECISION) for row in missing.tolist() if row not in shown], self)

    def find(
        self,
        words: str = "",
        *,
        like: Image | None = None,
        label: str | None = None,
        confidence: tuple[float, float] = (0.0, 1.0),
        only: Sequence[str] = (),
        count: int = 20,
    ) -> list[Found]:
        """Return images by words or like an example, the most similar first, or else the least confident first.

        `label` is their predicted class, `confidence` the lowest and highest one, and `only` names filters: `changed`
        (since the session was opened), `unlabeled`, `outliers`, `duplicates`, `none of these`, `disagreed`.
        """
        return find_images(self, words, like, label, confidence, only, count)[0]

    def changed(self) -> Bools:
        """Return which images have another class than when the session was opened, `(images,)`."""
        labels, origins = self._opened
        now = {origin: c for c, name in enumerate(self.names) for origin in self.answers.origins(name)}
        return np.asarray([now.get(origin, -1) for origin in origins])[labels] != self.predictions.labels

    def groups(self) -> list[Group]:
        """Return the groups of images that belong together, with their current names."""
        return suggestions.describe_groups(self, self._first_fits if self.engine.fits is None else self.engine.fits)

    def estimate(self) -> AccuracyEstimate:
        """Return the accuracy on images that nobody labeled, from the checks; without checks, it says so."""
        checks = {row: answer for row, answer in sorted(self.labels.items()) if answer.is_check}
        if not checks:
            return AccuracyEstimate()
        # Checks that were drawn among confident predictions count as far as they would have been drawn anyway.
        numbers = self.random_numbers
        last = max((numbers[row] for row, a in checks.items() if a.suggestion == CHECK), default=-(2**63))
        rows = [row for row, a in checks.items() if a.suggestion == CHECK or numbers[row] <= last]
        ids, found = self.ids, self.predictions_without_checks()
        truth = np.asarray([ids.get(checks[row].label, NONE_ID) for row in rows], dtype=np.int64)
        return estimate_accuracy(np.where(found.is_rejected, NONE_ID, found.labels)[rows], truth)

    def accept(self, precision: float = 0.95, certainty: float = 0.95) -> Acceptance:
        """Return the largest set of labels of which this share is right, with certainty, from the checks so far.

        A look that accepts nothing is remembered, and makes the next one stricter.
        """
        self.refresh()
        return accept_labels(self, precision, certainty)

    def update(self, images: Images | None = None) -> Update:
        """Add new images; answers, names and checks stay, and only new images are encoded.

        Without images, the folder that the run was made from is searched for new ones.
        """
        self.refresh()
        return update(self, images)

    def run(self) -> Run:
        """Return the current state as a run."""
        return self.engine.run(self.answers, self.predictions, self.estimate())

    def verification(self) -> str:
        """Return what is known about accuracy as a sentence, and what to do if nothing is."""
        return describe_accuracy(self.estimate(), "RUN" if self.engine.folder is None else str(self.engine.folder))

    def save(self, folder: str | Path | None = None, *, overwrite: bool = False) -> Path:
        """Write the run folder: the one that was opened, or a new one, with a copy of the corrections."""
        self.refresh()
        own = self.engine.folder
        target = own if folder is None else Path(folder)
        if target is None:
            raise InputError("Where should the run be saved? Pass a folder.")
        is_own = own is not None and target.resolve() == own.resolve()
        if self.engine.last is None:  # nothing changed but the estimate
            if not is_own:
                raise InputError(f"Nothing changed yet. Copy the run folder {str(own)!r} instead.")
            estimate = self.estimate()
            self.engine.remember(accuracy=estimate.as_dict() if estimate else None)
            return target
        run = self.run()
        with claim_folder(target, overwrite or is_own, None):
            run.write(target)
        Corrections(target / FILE, self.person).extend(self.corrections)
        self.engine.folder = target
        return target

    # Names and positions

    def find_row(self, image: str) -> int | None:
        """Return the position of an image, given by name or, as the shell completes it, by any path to it."""
        if image not in self.engine.rows and self.images.kind == "files":
            path, root = Path(image).absolute(), self.images.root.absolute()
            image = (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()
        return self.engine.rows.get(image)

    def position(self, image: Image) -> int:
        """Return the position of an image that is given by position or as in `find_row`."""
        found = self.find_row(image) if isinstance(image, str) else int(image)
        if found is None:
            raise InputError(f"No image {image!r}.{nearest(str(image), list(self.engine.rows)[:5000])}")
        if not 0 <= found < len(self.images):
            raise InputError(f"No image {found}: expected a position from 0 to {len(self.images) - 1}.")
        return found

    def names_of(self, images: Image | Sequence[Image]) -> tuple[str, ...]:
        """Return the names of images, each once."""
        listed = [images] if isinstance(images, (int, str, np.integer)) else images
        return tuple(dict.fromkeys(self.images.name(self.position(image)) for image in listed))

    def __repr__(self) -> str:
        found = self.estimate()
        counts = f"{len(self.images)} images, {len(self.names)} classes, {len(self.labels)} labels"
        return f"Session({counts}; {found.sentence})"

    # Inside

    def _check(self, *names: str, may_add: bool = False) -> None:
        """Read what others answered meanwhile, and raise an error if there is no such class."""
        self.refresh()
        for name in names:
            self.answers.check_class(name, may_add)

    def _record(self, what: str, kind: Kind, name: str = "", **details: Any) -> Change:  # noqa: ANN401
        if not isinstance(name, str):
            raise InputError(f"Expected the name of a class, got {name!r}.")
        made = Correction(kind, name, person=self.person, **details)
        if wrong := self.answers.wrong_names(made):
            raise InputError(f"This {kind} is not possible: {wrong}.")
        self.corrections.extend([made])
        return self._update(what, dict.fromkeys(made.names, made.label))

    def _update(
        self, what: str, renamed: dict[str, str] | None = None, force: bool = False, notes: Sequence[str] = ()
    ) -> Change:
        """Apply all corrections, adapt, and return what changed; names and predictions are replaced together."""
        before, problems = (self.predictions.labels, self.names), self.answers.problems
        answers = self._collect()
        if force or applied(answers) != applied(self.answers):  # checks and skipped images change nothing
            self.engine.adapt(answers)
        self.answers = answers
        self.predictions = self._pinned()
        told = [*notes, *self.engine.notes, *(problem for problem in answers.problems if problem not in problems)]
        self.engine.notes = []
        return compare(what, before, (self.predictions.labels, self.names), told, renamed)

    def _collect(self) -> Answers:
        start = self.engine.start
        answers = collect_answers(self.corrections.active(), start.names, start.descriptions, start.labels)
        if missing := [image for image in answers.labels if image not in self.engine.rows]:
            told = f"{len(missing)} answers are about images that are not here, the first is {missing[0]!r}"
            answers.problems.append(told)
        answers.problems += self.corrections.problems
        return answers

    def _pinned(self, checks: bool = True) -> Predictions:
        """Return predictions in which images have the names that a person gave them, and none that a person denied."""
        pinned, fits = np.array(self.engine.probabilities), self.engine.fits
        fits = None if fits is None else fits.copy()
        ids = self.ids
        for row, names in self.engine.here(self.answers.excluded).items():
            if denied := [ids[name] for name in names if name in ids]:
                pinned[row, denied] = 0.0
                pinned[row] /= max(float(pinned[row].sum()), 1e-12)
        for row, answer in self.labels.items():
            if answer.is_group or (answer.is_check and not checks):
                continue
            if answer.label in ids:
                pinned[row] = 0.0
                pinned[row, ids[answer.label]] = 1.0
            if fits is not None:
                fits[row] = float(answer.label in ids)
        reject = self.engine.plan.settings.reject
        return Predictions(Positions(np.arange(len(pinned))), pinned, fits=fits, reject=reject)

    def predictions_without_checks(self) -> Predictions:
        """Return the predictions as if nobody had checked: what checks are compared with."""
        return self._pinned(checks=False)

    @cached_property
    def _first_fits(self) -> Floats:
        """Return how well images fit the names of the classifier that was opened, without answers."""
        own = self.engine.classifier
        return fit_to_names(self.engine.vectors, embed_classes(own.backbone, own.vocabulary))

    @cached_property
    def clusters(self) -> tuple[Ints, Floats]:
        """Return the group of each image and its distance to the middle, both `(images,)`."""
        # By the number of classes at the start: groups keep their numbers when classes change.
        n_groups = suggestions.GROUPS_PER_CLASS * len(self.engine.start.names)
        n_groups = min(n_groups, len(self.images) // suggestions.FEWEST_PER_GROUP)
        return suggestions.cluster(self.engine.vectors, n_groups, self.seed)

    @cached_property
    def random_numbers(self) -> Ints:
        """Return the random number of each image, by which checks are drawn."""
        return random_numbers(self.engine.vectors, self.seed)


def _sentences(descriptions: Sequence[str]) -> tuple[str, ...]:
    listed = [descriptions] if isinstance(descriptions, str) else list(descriptions)
    if not all(isinstance(text, str) and text.strip() for text in listed):
        raise InputError(f"Expected descriptions as sentences, got {listed}.")
    return tuple(text.strip() for text in listed)
