"""What follows from corrections, the classes and labels as they are now; answers in tables and Label Studio files."""

from __future__ import annotations

import csv
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlparse

from captune.core.errors import InputError, nearest, raise_all
from captune.core.files import is_file, read_json, table, write_whole
from captune.core.text import is_unicode, one_form, shown, speaks_flags
from captune.data.images import PATH_COLUMNS, ImageCollection
from captune.data.labels import LABEL_COLUMNS
from captune.data.tables import first_few, read_columns
from captune.data.vocabulary import NONE, name_problems
from captune.review.corrections import CHECK, PRECISION, Correction, Kind

if TYPE_CHECKING:
    from captune.review.session import Session
    from captune.review.suggestions import Group, Suggestion

MOST_TYPICAL, TYPICAL_SHARE = 5, 0.25
"""Of a group that was named as a whole, at most so many images count as labeled, and at most this share of them."""
ANSWER = "answer"
SAME, UNKNOWN = "=", "?"
"""Answers of a person: the current label is right; cannot tell."""
SUGGESTIONS = ("path", "label", "confidence", "group", "represents", "kind", "reason", ANSWER)
GROUPS = ("group", "digest", "label", "images", "share", "confidence", "alternatives", "question", "examples", ANSWER)
MOST_EXAMPLES = 5
Filled: TypeAlias = tuple[Correction, str]
"""An answer in a file, about an image by any of its names, or about a group and the digest that identifies it; without
a label, a person could not tell."""


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
            listed = ", ".join(first_few(self.names))
            hint = f" Add it first if it is a new one: {add}." if may_add else f" Classes: {listed}."
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


# Files


def suggestions_table(suggestions: Sequence[Suggestion]) -> Iterator[str]:
    """Return suggestions as a table, with an empty column for the answers."""
    rows = ((s.image, s.label, f"{s.confidence:.3f}", s.group, s.represents, s.kind, s.reason, "") for s in suggestions)
    return table(SUGGESTIONS, rows)


def groups_table(groups: Sequence[Group], images: ImageCollection) -> Iterator[str]:
    """Return groups as a table, with a few typical images of each and an empty column for the answers."""
    rows = (
        (
            group.number,
            group.digest(images),
            group.name,
            len(group),
            f"{group.share:.2f}",
            f"{group.confidence:.3f}",
            "; ".join(f"{name} {share:.0%}" for name, share in group.alternatives),
            group.question,
            "; ".join(images.name(int(i)) for i in group.images[:MOST_EXAMPLES]),
            "",
        )
        for group in groups
    )
    return table(GROUPS, rows)


def read_answers(path: str | Path) -> list[Filled]:
    """Read answers from a filled table, a table of labels (path, label), or an export of Label Studio (.json)."""
    file = Path(path)
    if not is_file(file):
        raise InputError(f"No answers at {str(path)!r}: expected a CSV table or a Label Studio export (.json).")
    return list(_read_label_studio(file) if file.suffix.lower() == ".json" else _read_table(file))


def as_corrections(filled: Sequence[tuple[str | Path, Filled]], session: Session) -> tuple[list[Correction], list[str]]:
    """Return answers of files about images of a session, and those about groups that have other images now."""
    groups = {group.digest(session.images): group for group in session.groups()} if filled else {}
    problems, left, found = list[str](), list[str](), list[Correction]()
    for path, (made, digest) in filled:
        rows = [session.find_row(image) for image in made.images]
        if None in rows:
            problems.append(f"{path}: no image {made.images[0]!r}")
        elif made.label and made.label not in (*session.names, NONE):
            problems.append(f"{path}: {made.label!r} is not a class.{nearest(made.label, session.names)}")
        elif rows:
            kind: Kind = "label" if made.label else "skip"
            found.append(replace(made, kind=kind, images=session.names_of(made.images), person=session.person))
        elif made.label and digest not in groups:
            left.append(f"group {made.group} ({made.label!r}) of {path} has other images now: answer it again")
        elif made.label:
            images = session.names_of(groups[digest].images.tolist())
            found.append(replace(made, images=images, group=groups[digest].number, person=session.person))
    raise_all(first_few(problems), "Cannot use these answers (new classes must be added first)")
    return found, left


def write_answers(path: str | Path, labels: Mapping[str, Answer]) -> int:
    """Write labels by image name as a table, and return their number."""
    kinds = (a.suggestion if a.is_check else "group" if a.is_group else "image" for a in labels.values())
    rows = ((image, a.label, kind, a.person) for (image, a), kind in zip(labels.items(), kinds, strict=True))
    write_whole(Path(path), table(("path", "label", "source", "person"), rows))
    return len(labels)


def _read_table(file: Path) -> Iterator[Filled]:
    """Yield the answers about images or groups; in a table of labels, which has no column for them, all labels."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            header = [name.strip().lower() for name in next(csv.reader(opened), [])]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"The table {str(file)!r} is not a readable UTF-8 CSV file: {error}.") from error
    is_about_groups = ANSWER in header and "group" in header and not set(PATH_COLUMNS) & set(header)
    further = (ANSWER, "digest" if is_about_groups else "kind") if ANSWER in header else ()
    there = [name for name in further if name in header]
    columns = [("group",) if is_about_groups else PATH_COLUMNS, LABEL_COLUMNS, *((name,) for name in there)]
    for subject, label, *cells in read_columns(file, columns):
        found = dict(zip(there, cells, strict=True))
        answer = one_form(found.get(ANSWER, SAME))
        if not answer or (answer == SAME and not label.strip()):
            continue
        name = label if answer == SAME else "" if answer == UNKNOWN else answer
        if is_about_groups:
            number = group_number(subject, f"a group in {str(file)!r}")
            yield Correction("label", name, group=number), found.get("digest", "").strip()
        else:
            yield Correction("label", name, (subject.strip(),), suggestion=found.get("kind", "").strip()), ""


def group_number(text: str, what: str) -> int:
    """Return the number of a group."""
    with suppress(ValueError):  # "²" is a digit, but no number; very long numbers are refused
        if int(text) >= 0:
            return int(text)
    raise InputError(f"{what} is {shown(text)}, expected the number of a group (see: captune suggest --groups).")


def _read_label_studio(file: Path) -> Iterator[Filled]:
    try:
        tasks = read_json(file)
    except (OSError, ValueError) as error:
        raise InputError(f"{str(file)!r} is not a readable JSON file: {error}.") from error
    expected = f"{str(file)!r} is not a Label Studio export: expected a list of tasks with data and annotations."
    if not isinstance(tasks, list):
        raise InputError(expected)
    for task in tasks:
        try:
            image = _image_of(task["data"])
            annotations = [entry for entry in task.get("annotations", ()) if not entry.get("was_cancelled")]
            results = annotations[-1]["result"] if annotations else []
            choices = [result["value"]["choices"] for result in results if result.get("type") == "choices"]
            chosen = [str(choice) for choice in choices[0]] if choices and isinstance(choices[0], list) else []
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(expected) from error
        if not is_unicode(image) or not all(map(is_unicode, chosen)):
            raise InputError(f"{str(file)!r} has text that is not valid Unicode: {shown([image, *chosen])}.")
        if chosen:
            yield Correction("label", chosen[0], (image,), suggestion=str(task["data"].get("kind", ""))), ""


def _image_of(data: dict[str, Any]) -> str:
    """Return the name of a task's image: the one that captune wrote, or the path in its address."""
    if data.get("path"):
        return str(data["path"])
    address = urlparse(str(data["image"]))
    inside = parse_qs(address.query).get("d")
    return inside[0] if inside else unquote(address.path).lstrip("/") if address.scheme else str(data["image"])
