"""What follows from corrections: the classes as they are now, and what is known about each image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from captune.core.text import shown
from captune.data.vocabulary import name_problems
from captune.review.corrections import CHECK, Correction

MOST_TYPICAL, TYPICAL_SHARE = 5, 0.25
"""Of a group that was named as a whole, at most so many images count as labeled, and at most this share of them."""


@dataclass(frozen=True)
class Answer:
    """The class that a person gave to an image.

    Attributes:
        label: Name of the class.
        is_group: Whether the image was named with its whole group, which is weaker than an answer about the image.
        is_check: Whether the image was drawn at random to estimate accuracy.
        person: Who said it.
        is_typical: Whether it counts for its group: the name of a group is sure for its most typical images only.
    """

    label: str
    is_group: bool = False
    is_check: bool = False
    person: str = ""
    is_typical: bool = True


@dataclass
class Answers:
    """Classes and labels after all corrections.

    Attributes:
        names: Names of the classes, in the order of class ids.
        descriptions: Sentences by class name.
        labels: The answer for each labeled image, by image name.
        excluded: Classes that an image does not have, by image name.
        skipped: Images that a person could not name.
        problems: What could not be used, or was said differently by several people; nothing is dropped silently.
    """

    names: list[str]
    descriptions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    labels: dict[str, Answer] = field(default_factory=dict)
    excluded: dict[str, frozenset[str]] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    _origins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _n_marks: dict[tuple[int, str], int] = field(default_factory=dict)

    def origins(self, name: str) -> tuple[str, ...]:
        """Return the names that a class had at the start; several if classes were merged."""
        return self._origins.get(name, (name,))

    def apply(self, said: Correction) -> None:
        """Apply one correction."""
        if said.kind in ("label", "not", "skip"):
            self._say_about_images(said)
        elif said.kind in ("add", "rename", "merge", "remove") and (wrong := self._wrong_names(said)):
            self.problems.append(f"{said.kind} {shown(said.label)} was not applied: {wrong}")
        elif said.kind == "add":
            self._add(said)
        elif said.kind in ("rename", "merge"):
            self._rename(said)
        elif said.label not in self.names:
            self.problems.append(f"{said.label!r} is not a class any more: {said.kind} was not applied")
        elif said.kind == "remove":
            self.names.remove(said.label)
        elif said.kind == "describe":
            self.descriptions[said.label] = said.sentences

    def _wrong_names(self, said: Correction) -> str:
        """Return what is wrong with the classes that a correction would leave; files of other people say anything."""
        gone = {said.label} if said.kind == "remove" else set(said.names)
        if said.kind in ("rename", "merge") and not gone & set(self.names):
            return ""  # there is nothing to rename, which is told elsewhere
        names = [name for name in self.names if name not in gone]
        names += [] if said.kind == "remove" else [said.label]
        return "; ".join(name_problems(list(dict.fromkeys(names))))

    def _say_about_images(self, said: Correction) -> None:
        place = (said.group, said.label)
        # A person looked at the most typical images of a group: those marked as odd do not make room for others.
        n_marks = self._n_marks.get(place, 0)
        if said.kind == "not" and said.group >= 0:
            self._n_marks[place] = n_marks + len(said.images)
        n_typical = _count_typical(n_marks + len(said.images)) - n_marks
        for rank, image in enumerate(said.images):
            if said.kind == "skip":
                self.skipped.add(image)
            elif said.kind == "not":
                self.excluded[image] = self.excluded.get(image, frozenset()) | {said.label}
                if image in self.labels and self.labels[image].label == said.label:
                    del self.labels[image]
            else:
                self._label(image, rank < max(1, n_typical), said)

    def _label(self, image: str, is_typical: bool, said: Correction) -> None:
        before = self.labels.get(image)
        is_group, is_check = said.group >= 0, said.suggestion == CHECK
        if before is not None and is_group and not before.is_group:
            return  # what was said about the image itself is more precise
        if is_group and said.label in self.excluded.get(image, ()):
            return
        if before is not None and before.label != said.label and before.person != said.person and not before.is_group:
            self.problems.append(
                f"{image!r} is {before.label!r} for {before.person or 'somebody'} and {said.label!r} for "
                f"{said.person or 'somebody'}: the later answer is used"
            )
        is_check = is_check or (before is not None and before.is_check)
        self.labels[image] = Answer(said.label, is_group, is_check, said.person, is_typical)
        if not is_group and said.label in self.excluded.get(image, ()):
            self.excluded[image] -= {said.label}

    def _add(self, said: Correction) -> None:
        if said.label not in self.names:
            self.names.append(said.label)
        if said.sentences:
            self.descriptions[said.label] = said.sentences

    def _rename(self, said: Correction) -> None:
        """Rename classes; several of them, or one that gets the name of another class, become one class."""
        old = [name for name in said.names if name in self.names]
        missing = [name for name in said.names if name not in self.names]
        if missing:
            self.problems.append(f"{missing[0]!r} is not a class any more: {said.kind} to {said.label!r} skipped it")
        if not old:
            return
        joined = [*old, said.label] if said.label in self.names else old
        self._origins[said.label] = tuple(dict.fromkeys(origin for name in joined for origin in self.origins(name)))
        place = min(self.names.index(name) for name in [*old, *(n for n in self.names if n == said.label)])
        kept = [name for name in self.names if name not in old and name != said.label]
        self.names = [*kept[:place], said.label, *kept[place:]]
        sentences = [s for name in dict.fromkeys([*old, said.label]) for s in self.descriptions.pop(name, ())]
        if sentences:
            self.descriptions[said.label] = tuple(dict.fromkeys(sentences))
        self.labels = {i: replace(a, label=said.label) if a.label in old else a for i, a in self.labels.items()}
        for image, names in self.excluded.items():
            # That an image is not a pug does not mean that it is no dog: only a renamed class stays excluded.
            kept_names = names - set(old)
            self.excluded[image] = kept_names | {said.label} if names & set(old) and len(old) == 1 else kept_names

    def used(self) -> dict[str, Answer]:
        """Return the labels whose class still exists."""
        return {image: answer for image, answer in self.labels.items() if answer.label in self.names}


def _count_typical(group_size: int) -> int:
    return min(MOST_TYPICAL, round(TYPICAL_SHARE * group_size))


def collect_answers(
    corrections: Iterable[Correction],
    names: Sequence[str],
    descriptions: Mapping[str, Sequence[str]] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Answers:
    """Apply corrections, in the order in which they were said, to the classes and labels that a run started with."""
    answers = Answers(list(names), {name: tuple(texts) for name, texts in (descriptions or {}).items()})
    answers.labels = {image: Answer(label) for image, label in (labels or {}).items()}
    for said in corrections:
        answers.apply(said)
    unused: dict[str, int] = {}
    for answer in answers.labels.values():
        if answer.label not in answers.names:
            unused[answer.label] = unused.get(answer.label, 0) + 1
    for name, count in unused.items():
        answers.problems.append(f"{count} labels of {name!r} are kept but not used: no such class")
    return answers
