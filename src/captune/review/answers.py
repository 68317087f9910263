"""What follows from corrections: the classes as they are now, and what is known about each image."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from captune.core.errors import InputError, nearest
from captune.core.text import one_form, shown, speaks_flags
from captune.data.tables import first_few
from captune.data.vocabulary import NONE, name_problems
from captune.review.corrections import CHECK, PRECISION, Correction

MOST_TYPICAL, TYPICAL_SHARE = 5, 0.25
"""Of a group that was named as a whole, at most so many images count as labeled, and at most this share of them."""


@dataclass(frozen=True)
class Answer:
    """The class that a person gave to an image, or `captune.NONE`.

    Attributes:
        part: The part of a merged class that the image was labeled as before the merge; empty if it is not known.
        is_group: Whether the image was named with its whole group, which is weaker than an answer about the image.
        is_typical: Whether it counts for its group: the name of a group is sure for its most typical images only.
    """

    label: str
    part: str = ""
    is_group: bool = False
    suggestion: str = ""
    person: str = ""
    is_typical: bool = True

    @property
    def is_check(self) -> bool:
        """Return whether the image was drawn at random; such answers are kept out of adaptation."""
        return self.suggestion in (CHECK, PRECISION)


@dataclass
class Answers:
    """Classes and labels after all corrections.

    Attributes:
        names: Names of the classes, in the order of class ids.
        descriptions: Sentences by part of a class.
        labels: The answer for each labeled image, by image name.
        excluded: Classes that an image does not have, by image name.
        skipped: Images that a person could not name, and why they were shown.
        problems: What could not be used, or was answered differently by several people; nothing is dropped silently.
    """

    names: list[str]
    descriptions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    labels: dict[str, Answer] = field(default_factory=dict)
    excluded: dict[str, frozenset[str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _origins: dict[str, str] = field(default_factory=dict)
    _renamed: dict[str, str] = field(default_factory=dict)
    _n_marks: dict[tuple[int, str], int] = field(default_factory=dict)

    def parts(self, name: str) -> tuple[str, ...]:
        """Return the parts of a class, each with texts of its own: several if classes were merged."""
        return self._parts.get(name, (name,))

    def origins(self, name: str) -> tuple[str, ...]:
        """Return the names that the parts of a class had at the start."""
        return tuple(self._origins.get(part, part) for part in self.parts(name))

    def apply(self, made: Correction) -> None:
        """Apply one correction."""
        if made.kind in ("label", "not", "skip"):
            self._apply_to_images(made)
        elif wrong := self.wrong_names(made):
            self.problems.append(f"{made.kind} {shown(made.label)} was not applied: {wrong}")
        elif made.kind == "add":
            if made.label not in self.names:
                self.names.append(made.label)
                self._parts.pop(made.label, None)
                self._renamed.pop(made.label, None)
            self.descriptions |= {made.label: made.sentences} if made.sentences else {}
        elif made.kind in ("rename", "merge"):
            self._rename(made)
        elif made.label not in self.names:
            self.problems.append(f"{made.label!r} is not a class any more: {made.kind} was not applied")
        elif made.kind == "remove":
            self.names.remove(made.label)
        elif made.kind == "describe":  # a merged class has one text from now on
            self._parts.pop(made.label, None)
            self.labels = {i: replace(a, part="") if a.label == made.label else a for i, a in self.labels.items()}
            self.descriptions[made.label] = made.sentences

    def wrong_names(self, made: Correction) -> str:
        """Return what is wrong with the classes that a correction would leave, or an empty string."""
        gone = {made.label} if made.kind == "remove" else set(made.names)
        if made.kind not in ("add", "remove") and not gone & set(self.names):
            return ""  # nothing is renamed
        new = [] if made.kind == "remove" else [made.label]
        kept = [name for name in self.names if name not in gone]
        wholes = [other for other in kept if other not in new and set(new) & set(self.parts(other))]
        problems = name_problems(list(dict.fromkeys([*kept, *new])))
        return "; ".join([*problems, *(f"{made.label!r} is a part of the merged class {name!r}" for name in wholes)])

    def _apply_to_images(self, made: Correction) -> None:
        label = made.label
        while label not in self.names and label in self._renamed:  # whoever answered did not know the new name
            label = self._renamed[label]
        made = replace(made, label=label)
        place = (made.group, made.label)
        # A person saw the most typical images of a group: those marked as odd do not make room for others.
        n_marks = self._n_marks.get(place, 0)
        if made.kind == "not" and made.group >= 0:
            self._n_marks[place] = n_marks + len(made.images)
        n_members = n_marks + len(made.images)
        n_typical = min(MOST_TYPICAL, round(TYPICAL_SHARE * n_members)) - n_marks
        for rank, image in enumerate(made.images):
            if made.kind == "skip":
                self.skipped[image] = made.suggestion
            elif made.kind == "not":
                self.excluded[image] = self.excluded.get(image, frozenset()) | {made.label}
                if image in self.labels and self.labels[image].label == made.label:
                    del self.labels[image]
            else:
                self._label(image, rank < max(1, n_typical), made)

    def _label(self, image: str, is_typical: bool, made: Correction) -> None:
        before = self.labels.get(image)
        is_group, suggestion = made.group >= 0, made.suggestion
        if before is not None and is_group and not before.is_group:
            return  # an answer about the image itself is more precise
        if is_group and made.label in self.excluded.get(image, ()):
            return
        if before is not None and before.label != made.label and before.person != made.person and not before.is_group:
            self.problems.append(
                f"{image!r} is {before.label!r} for {before.person or 'somebody'} and {made.label!r} for "
                f"{made.person or 'somebody'}: the later answer is used"
            )
        if before is not None and not before.is_group:  # an image that was chosen on purpose never becomes a check
            suggestion = before.suggestion
        part = made.label if len(self.parts(made.label)) == 1 else ""
        self.labels[image] = Answer(made.label, part, is_group, suggestion, made.person, is_typical)
        if not is_group and made.label in self.excluded.get(image, ()):
            self.excluded[image] -= {made.label}

    def _rename(self, made: Correction) -> None:
        """Rename classes; several of them, or one that gets the name of another class, become parts of one class."""
        new = made.label
        self._renamed |= {name: new for name in made.names if name != new}
        self._renamed.pop(new, None)
        self.labels = {
            i: replace(a, label=new) if a.label in made.names and (a.label in self.names or new in self.names) else a
            for i, a in self.labels.items()
        }
        old = [name for name in made.names if name in self.names]
        missing = [name for name in made.names if name not in self.names]
        if missing and new not in self.names:
            self.problems.append(f"{missing[0]!r} is not a class any more: {made.kind} to {new!r} skipped it")
        if not old:
            return
        joined = list(dict.fromkeys([*old, new] if new in self.names else old))
        parts = tuple(dict.fromkeys(part for name in joined for part in self.parts(name)))
        if len(parts) == 1:  # a new name is a new text
            self._origins[new] = self._origins.get(parts[0], parts[0])
            if parts[0] in self.descriptions:
                self.descriptions[new] = self.descriptions.pop(parts[0])
            self.labels = {i: replace(a, part=new) if a.part == parts[0] else a for i, a in self.labels.items()}
            parts = (new,)
        place = min(self.names.index(name) for name in joined)
        kept = [name for name in self.names if name not in joined]
        self.names = [*kept[:place], new, *kept[place:]]
        for name in joined:
            self._parts.pop(name, None)
        self._parts[new] = parts
        for image, names in self.excluded.items():
            # That an image is not a pug does not mean that it is no dog: only a renamed class stays excluded.
            kept_names = names - set(old)
            self.excluded[image] = kept_names | {new} if names & set(old) and len(joined) == 1 else kept_names

    def used(self) -> dict[str, Answer]:
        """Return the labels whose class still exists, and those of images that fit none."""
        known = {*self.names, NONE}
        return {image: answer for image, answer in self.labels.items() if answer.label in known}

    def training(self) -> dict[str, Answer]:
        """Return the labels that adaptation may use: all but checks, and of groups the most typical images."""
        used = self.used().items()
        return {image: a for image, a in used if not a.is_check and (not a.is_group or a.is_typical)}

    def check_class(self, name: str, may_add: bool = False) -> None:
        """Raise an error if there is no such class; one that may be added is told how."""
        if one_form(str(name)) not in (*self.names, *([NONE] if may_add else [])):
            add = f"captune label RUN --add {shlex.quote(str(name))}" if speaks_flags() else f"add({name!r})"
            hint = (
                f" Add it first if it is a new one: {add}."
                if may_add
                else f" Classes: {', '.join(first_few(self.names))}."
            )
            raise InputError(f"{name!r} is not a class.{nearest(name, self.names)}{hint}")


def collect_answers(
    corrections: Iterable[Correction],
    names: Sequence[str],
    descriptions: Mapping[str, Sequence[str]] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Answers:
    """Apply corrections, in their logical order, to the classes and labels that a run started with."""
    answers = Answers(list(names), {name: tuple(texts) for name, texts in (descriptions or {}).items()})
    answers.labels = {image: Answer(label, label) for image, label in (labels or {}).items()}
    for made in corrections:
        answers.apply(made)
    used = answers.used()
    unused = Counter(answer.label for image, answer in answers.labels.items() if image not in used)
    answers.problems += [f"{n} labels of {name!r} are kept but not used: no such class" for name, n in unused.items()]
    return answers
