"""A session: embeddings in memory, and everything that a person says has its effect within a second."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from captune.core.arrays import Bools, Floats, Ints
from captune.core.errors import InputError, nearest, raise_all
from captune.core.text import one_form, shown
from captune.core.wording import speaks_flags
from captune.data.images import ImageCollection
from captune.data.tables import first_few
from captune.data.vocabulary import name_problems
from captune.embeddings.predictions import Predictions
from captune.results.classifier import Classifier
from captune.review.answers import Answer, Answers, collect_answers
from captune.review.changes import Change, compare
from captune.review.corrections import Correction, Corrections, Kind
from captune.review.engine import Engine, applied
from captune.review.estimate import AccuracyEstimate, describe_accuracy, estimate_accuracy
from captune.review.exchange import read_answers
from captune.review.groups import Group, cluster, count_groups, describe_groups
from captune.review.suggestions import CHECK_SHARE, Suggestion, choose_with_checks, sentence

Image = int | str
"""An image: its position or its name."""


class Session:
    """Images with their embeddings in memory, classes that can be changed, and what people said so far.

    Every change returns what it did to the predictions. Answers are recorded at once (`corrections`); `adapt` is
    called after every change, with the method that was used last.
    """

    def __init__(self, engine: Engine, corrections: Corrections | None = None, seed: int = 0) -> None:
        self.engine, self.seed = engine, seed
        self.corrections = Corrections() if corrections is None else corrections
        self._owners: tuple[Ints, Floats] | None = None
        self._by_name: dict[str, int] | None = None
        self.answers = self._collect()
        if not hasattr(engine, "probabilities"):
            engine.adapt(self.answers, self._training())
        self._applied = applied(self.corrections.active())
        self._predictions = self._pinned(engine.probabilities)

    @property
    def images(self) -> ImageCollection:
        """Return the readable images; an image is its position in this collection."""
        return self.engine.images

    @property
    def names(self) -> tuple[str, ...]:
        """Return the class names."""
        return tuple(self.answers.names)

    @property
    def descriptions(self) -> dict[str, tuple[str, ...]]:
        """Return the descriptions of the classes that have some, by people or by a describer."""
        every = {**self.engine.start.offered, **self.answers.descriptions}
        return {name: every[name] for name in self.names if name in every}

    @property
    def predictions(self) -> Predictions:
        """Return the class probabilities of all images; an image that a person labeled has its label."""
        return self._predictions

    @property
    def labels(self) -> dict[int, Answer]:
        """Return the labels of images by position, those of whole groups included."""
        return {self.position(image): answer for image, answer in self.answers.used().items() if self.knows(image)}

    @property
    def classifier(self) -> Classifier:
        """Return the current classifier, which also classifies new images."""
        return self.engine.with_encoder()

    # What people say

    def label(self, images: Image | Sequence[Image], name: str, *, suggestion: str = "") -> Change:
        """Record that images are of a class; `suggestion` is the kind of the suggestion that showed them."""
        self._check_class(name, may_add=True)
        found = self._image_names(images)
        what = f"labeled {len(found)} image{'s' if len(found) != 1 else ''} as {name!r}"
        return self._say(what, "label", name, images=found, suggestion=suggestion)

    def label_many(self, answers: Mapping[Image, str], *, suggestions: Mapping[Image, str] | None = None) -> Change:
        """Record the classes of several images, and adapt once."""
        for name in answers.values():
            self._check_class(name, may_add=True)
        shown = suggestions or {}
        said = [
            Correction("label", name, self._image_names(image), suggestion=shown.get(image, ""), person=self.person)
            for image, name in answers.items()
        ]
        self.corrections.extend(said)
        return self._update(f"labeled {len(said)} images")

    def take_answers(self, path: str | Path) -> Change:
        """Record the answers in a filled table, a table of labels or a Label Studio export, and adapt once."""
        filled = read_answers(path)
        missing = first_few(repr(f.image) for f in filled if f.image and not self.knows(f.image))
        unknown = [name for name in dict.fromkeys(f.label for f in filled) if name and name not in self.names]
        problems = [f"no image {image}" for image in missing]
        problems += [f"{name!r} is not a class.{nearest(name, self.names)}" for name in first_few(unknown)]
        raise_all(problems, f"Cannot use the answers in {str(path)!r} (new classes must be added first)")
        said = [
            Correction("label", f.label, self._group_names(f.group), group=f.group, person=self.person)
            for f in filled
            if f.group >= 0 and f.label
        ]
        said += [
            Correction("label" if f.label else "skip", f.label, (f.image,), suggestion=f.suggestion, person=self.person)
            for f in filled
            if f.image
        ]
        self.corrections.extend(said)
        return self._update(f"took {len(filled)} answers from {path}")

    def take(self, files: Sequence[str | Path]) -> Change:
        """Add the corrections files of other people, and adapt once."""
        return self._update(f"took {self.corrections.merge(files)} corrections of other people")

    def exclude(self, images: Image | Sequence[Image], name: str) -> Change:
        """Record that images are not of a class."""
        self._check_class(name)
        found = self._image_names(images)
        return self._say(f"{len(found)} images are not {name!r}", "not", name, images=found)

    def skip(self, images: Image | Sequence[Image], *, suggestion: str = "") -> None:
        """Record that a person cannot name images, so that they are not suggested again."""
        self.corrections.add("skip", images=self._image_names(images), suggestion=suggestion)
        self.answers = self._collect()

    def name_group(self, group: int, name: str, *, besides: Image | Sequence[Image] = ()) -> Change:
        """Record that a whole group is of a class, besides some of its images, which do not belong to it."""
        self._check_class(name, may_add=True)
        others = self._image_names(besides) if isinstance(besides, (int, str)) or len(besides) else ()
        belonging = tuple(image for image in self._group_names(group) if image not in others)
        if others:
            self.corrections.add("not", name, images=others, group=group)
        what = f"named group {group} ({len(belonging)} images) {name!r}"
        return self._say(what, "label", name, images=belonging, group=group)

    def rename(self, old: str, new: str) -> Change:
        """Give a class another name; the name of another class merges them."""
        self._check_class(old)
        if new in self.names:
            return self.merge([old, new], new)
        return self._say(f"renamed {old!r} to {new!r}", "rename", self._new_name(new), names=(old,))

    def merge(self, names: Sequence[str], into: str) -> Change:
        """Make one class of several."""
        for name in names:
            self._check_class(name)
        if len(set(names)) < 2:
            raise InputError(f"Expected at least two classes to merge, got {list(names)}.")
        target = into if into in self.names else self._new_name(into)
        if len(set(self.names) - set(names) | {target}) < 2:
            raise InputError("This would leave fewer than two classes.")
        return self._say(f"merged {', '.join(names)} into {into!r}", "merge", target, names=tuple(dict.fromkeys(names)))

    def add(self, name: str, descriptions: Sequence[str] = ()) -> Change:
        """Add a class."""
        self.engine.check_texts()
        return self._say(f"added {name!r}", "add", self._new_name(name), sentences=_sentences(descriptions))

    def remove(self, name: str) -> Change:
        """Remove a class that does not occur; labels of it are kept, but not used."""
        self._check_class(name)
        if len(self.names) < 3:
            raise InputError(f"Cannot remove {name!r}: at least two classes are needed.")
        return self._say(f"removed {name!r}", "remove", name)

    def describe(self, name: str, descriptions: Sequence[str]) -> Change:
        """Replace the descriptions of a class."""
        self._check_class(name)
        self.engine.check_texts()
        return self._say(f"described {name!r}", "describe", name, sentences=_sentences(descriptions))

    def undo(self) -> Change:
        """Take back the last correction of this person that still holds."""
        last = self.corrections.last()
        if last is None:
            raise InputError("There is nothing to undo.")
        self.corrections.undo(last)
        return self._update(f"took back {last.kind!r} {last.label or ''}".rstrip())

    def refresh(self) -> Change | None:
        """Read what others wrote to the corrections file, and adapt if there is something new."""
        return self._update("read corrections of others") if self.corrections.refresh() else None

    # What captune says

    def adapt(self, method: str | None = None, **settings: Any) -> Change:  # noqa: ANN401 (checked by the method)
        """Adapt again, with another method or other settings; they are kept for later changes."""
        if method is not None or settings:
            self.engine.set_method(method, settings)
        return self._update(f"adapted with {self.engine.method}", force=True)

    def suggest(
        self, count: int = 20, *, checks: float = CHECK_SHARE, besides: Sequence[Image] = ()
    ) -> list[Suggestion]:
        """Return images worth looking at; a share of `checks` is drawn at random, to estimate accuracy.

        The same state gives the same suggestions. `besides` are images that are being shown already.
        """
        if count < 1 or not 0 <= checks <= 1:
            raise InputError(f"Expected count of at least 1 and checks from 0 to 1, got {count} and {checks}.")
        ids = {name: class_id for class_id, name in enumerate(self.names)}
        labels = np.full(len(self.images), -1)
        for image, answer in self._training(groups=False).items():
            labels[self.position(image)] = ids[answer.label]
        hidden = {*self.answers.labels, *self.answers.skipped, *self._image_names(besides)}
        may_choose = np.flatnonzero(~self._mask(hidden))
        shown = [self.position(image) for image in besides if not isinstance(image, int)]
        probabilities = self._predictions.probabilities
        n_before = sum(answer.is_check for answer in self.answers.labels.values()) + len(shown)
        found = choose_with_checks(
            self.engine.vectors, probabilities, labels, may_choose, count, n_before, checks, self.seed
        )
        owners = self._group_of()[0]
        predicted, confidence = self._predictions.labels, self._predictions.confidence
        return [
            Suggestion(
                position=int(position),
                image=self.images.name(int(position)),
                label=self.names[predicted[position]],
                confidence=float(confidence[position]),
                group=int(owners[position]),
                represents=int(size),
                kind=kind,
                reason=sentence(kind, int(size), float(confidence[position])),
            )
            for position, size, kind in zip(found.positions, found.represents, found.kinds, strict=True)
        ]

    def groups(self) -> list[Group]:
        """Return the groups of images that belong together, with their current names."""
        is_labeled = self._mask([image for image, answer in self.answers.used().items() if not answer.is_group])
        return describe_groups(*self._group_of(), self._predictions.probabilities, self.names, is_labeled)

    def group(self, number: int) -> Group:
        """Return one group."""
        found = next((group for group in self.groups() if group.number == number), None)
        if found is None:
            raise InputError(f"There is no group {number}. Groups: 0 to {int(self._group_of()[0].max())}.")
        return found

    def estimate(self) -> AccuracyEstimate | None:
        """Return the accuracy on images that nobody labeled, from the checks; None without checks."""
        checks = {self.position(i): a for i, a in self.answers.used().items() if a.is_check and self.knows(i)}
        rows = np.asarray(sorted(checks), dtype=np.int64)
        truth = np.asarray([self.names.index(checks[row].label) for row in rows.tolist()], dtype=np.int64)
        probabilities = self.engine.probabilities[rows]
        return estimate_accuracy(probabilities.argmax(axis=1), probabilities.max(axis=1), truth) if len(rows) else None

    def verification(self) -> str:
        """Return what is known about accuracy as a sentence, and what to do if nothing is."""
        return describe_accuracy(self.estimate(), "RUN" if self.engine.folder is None else str(self.engine.folder))

    def save(self, folder: str | Path | None = None, *, overwrite: bool = False) -> Path:
        """Write the run folder: the one that was opened, or a new one, with a copy of the corrections."""
        return self.engine.save(folder, overwrite, self.answers, self.corrections, self._predictions, self.estimate())

    # Names and positions

    @property
    def person(self) -> str:
        """Return who is answering."""
        return self.corrections.person

    def knows(self, image: str) -> bool:
        """Return whether there is an image of this name."""
        return image in self._positions()

    def position(self, image: Image) -> int:
        """Return the position of an image."""
        if isinstance(image, str):
            found = self._positions().get(image)
            if found is None:
                raise InputError(f"No image {image!r}.{nearest(image, list(self._positions())[:5000])}")
            return found
        if not 0 <= image < len(self.images):
            raise InputError(f"No image {image}: expected a position from 0 to {len(self.images) - 1}.")
        return int(image)

    def __repr__(self) -> str:
        found = self.estimate()
        accuracy = "names not verified" if found is None else found.sentence
        return f"Session({len(self.images)} images, {len(self.names)} classes, {len(self.labels)} labels; {accuracy})"

    # Inside

    def _say(self, what: str, kind: Kind, name: str = "", **details: Any) -> Change:  # noqa: ANN401
        self.corrections.add(kind, name, **details)
        renamed = dict.fromkeys(details["names"], name) if kind in ("rename", "merge") else {}
        return self._update(what, renamed)

    def _update(self, what: str, renamed: dict[str, str] | None = None, force: bool = False) -> Change:
        """Apply all corrections, adapt, and return what changed."""
        before, problems = (self._predictions.labels, self.names), self.answers.problems
        self.answers = self._collect()
        now_applied = applied(self.corrections.active())
        if force or now_applied != self._applied:  # checks and skipped images change nothing
            self.engine.adapt(self.answers, self._training())
            self._applied = now_applied
        self._predictions = self._pinned(self.engine.probabilities)
        notes = [*self.engine.notes, *(problem for problem in self.answers.problems if problem not in problems)]
        owners = None if self._owners is None else self._owners[0]
        return compare(what, before, (self._predictions.labels, self.names), owners, notes, renamed)

    def _collect(self) -> Answers:
        start = self.engine.start
        answers = collect_answers(self.corrections.active(), start.names, start.descriptions, start.labels)
        missing = [image for image in answers.labels if not self.knows(image)]
        if missing:
            answers.problems.append(
                f"{len(missing)} answers are about images that are not here, the first is {missing[0]!r}"
            )
        return answers

    def _training(self, groups: bool = True) -> dict[str, Answer]:
        """Return the labels that adaptation may use: all but checks."""
        return {
            image: answer
            for image, answer in self.answers.used().items()
            if not answer.is_check and self.knows(image) and (not answer.is_group or (groups and answer.is_typical))
        }

    def _excluded(self) -> list[tuple[int, int]]:
        """Return pairs of an image and a class that it does not have."""
        ids = {name: i for i, name in enumerate(self.names)}
        return [
            (self.position(image), ids[name])
            for image, names in self.answers.excluded.items()
            if self.knows(image)
            for name in names
            if name in ids
        ]

    def _pinned(self, probabilities: Floats) -> Predictions:
        """Return predictions in which images have the names that a person gave them, and none that a person denied."""
        pinned = np.array(probabilities)
        ids = {name: i for i, name in enumerate(self.names)}
        for position, class_id in self._excluded():
            pinned[position, class_id] = 0.0
            pinned[position] /= max(float(pinned[position].sum()), 1e-12)
        for image, answer in self.answers.used().items():
            if not answer.is_group and self.knows(image):
                pinned[self.position(image)] = 0.0
                pinned[self.position(image), ids[answer.label]] = 1.0
        return Predictions(np.arange(len(pinned)), pinned)

    def _group_of(self) -> tuple[Ints, Floats]:
        if self._owners is None:
            # By the number of classes at the start: groups keep their numbers when classes change.
            n_groups = count_groups(len(self.images), len(self.engine.start.names))
            self._owners = cluster(self.engine.vectors, n_groups, self.seed)
        return self._owners

    def _positions(self) -> dict[str, int]:
        if self._by_name is None:
            self._by_name = {self.images.name(i): i for i in range(len(self.images))}
        return self._by_name

    def _mask(self, images: Mapping[str, Answer] | Sequence[str] | set[str]) -> Bools:
        mask = np.zeros(len(self.images), dtype=np.bool_)
        mask[[self.position(image) for image in images if self.knows(image)]] = True
        return mask

    def _image_names(self, images: Image | Sequence[Image]) -> tuple[str, ...]:
        several = [images] if isinstance(images, (int, str, np.integer)) else list(images)
        return tuple(dict.fromkeys(self.images.name(self.position(image)) for image in several))

    def _group_names(self, group: int) -> tuple[str, ...]:
        return tuple(self.images.name(position) for position in self.group(group).images.tolist())

    def _check_class(self, name: str, may_add: bool = False) -> None:
        if one_form(str(name)) not in self.names:
            add = f"captune label RUN --add {shlex.quote(str(name))}" if speaks_flags() else f"add({name!r})"
            hint = (
                f" Add it first if it is a new one: {add}."
                if may_add
                else f" Classes: {', '.join(first_few(self.names))}."
            )
            raise InputError(f"{name!r} is not a class.{nearest(name, self.names)}{hint}")

    def _new_name(self, name: str) -> str:
        tidy = one_form(name) if isinstance(name, str) else ""
        taken = {known.casefold(): known for known in self.names}
        if not tidy:
            raise InputError(f"Expected the name of a class, got {name!r}.")
        if tidy.casefold() in taken:
            raise InputError(f"There is already a class {taken[tidy.casefold()]!r}.")
        raise_all(name_problems([*self.names, tidy]), f"Cannot use the name {shown(tidy)}")
        return tidy


def _sentences(descriptions: Sequence[str]) -> tuple[str, ...]:
    listed = [descriptions] if isinstance(descriptions, str) else list(descriptions)
    wrong = next((text for text in listed if not isinstance(text, str) or not text.strip()), None)
    if wrong is not None:
        raise InputError(f"Expected descriptions as sentences, got {wrong!r}.")
    return tuple(text.strip() for text in listed)
