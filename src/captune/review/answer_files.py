"""Answers as files: tables to fill in, CSV and Label Studio, in and out."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlparse

from captune.core.cards import read_json
from captune.core.errors import InputError, nearest, raise_all
from captune.core.files import is_file, table, write_whole
from captune.core.text import is_unicode, one_form, shown
from captune.data.images import PATH_COLUMNS, ImageCollection
from captune.data.labels import LABEL_COLUMNS
from captune.data.tables import first_few, read_columns
from captune.data.vocabulary import NONE
from captune.review.answers import Answer
from captune.review.corrections import Correction, Kind
from captune.review.suggestions import Group, Suggestion

if TYPE_CHECKING:
    from captune.review.session import Session

ANSWER = "answer"
SAME, UNKNOWN = "=", "?"
"""Answers of a person: the current label is right; cannot tell."""
SUGGESTIONS = ("path", "label", "confidence", "group", "represents", "kind", "reason", ANSWER)
GROUPS = ("group", "digest", "label", "images", "share", "confidence", "alternatives", "question", "examples", ANSWER)
MOST_EXAMPLES = 5


@dataclass(frozen=True)
class Filled:
    """One answer in a file: a class (empty: cannot tell) for an image or, by number and digest, for a group."""

    label: str
    image: str = ""
    group: int = -1
    digest: str = ""
    suggestion: str = ""


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
    if file.suffix.lower() == ".json":
        return list(_read_label_studio(file))
    return list(_read_filled(file)) if ANSWER in _header(file) else list(_read_labels(file))


def as_corrections(filled: Sequence[tuple[str, Filled]], session: Session) -> tuple[list[Correction], list[str]]:
    """Return answers from files as corrections, and those that are left alone because a group has other images now."""
    groups = {group.digest(session.images): group for group in session.groups()} if filled else {}
    problems, left, made = list[str](), list[str](), list[Correction]()
    for path, one in filled:
        row = session.find_row(one.image) if one.image else None
        if one.image and row is None:
            problems.append(f"{path}: no image {one.image!r}")
        elif one.label and one.label not in (*session.names, NONE):
            problems.append(f"{path}: {one.label!r} is not a class.{nearest(one.label, session.names)}")
        elif row is not None:
            kind: Kind = "label" if one.label else "skip"
            images = session.names_of(row)
            made.append(Correction(kind, one.label, images, suggestion=one.suggestion, person=session.person))
        elif one.label and one.digest not in groups:
            left.append(f"group {one.group} ({one.label!r}) of {path} has other images now: answer it again")
        elif one.label:
            group = groups[one.digest]
            images = session.names_of(group.images.tolist())
            made.append(Correction("label", one.label, images, group=group.number, person=session.person))
    raise_all(first_few(problems), "Cannot use these answers (new classes must be added first)")
    return made, left


def write_answers(path: str | Path, labels: Mapping[str, Answer]) -> int:
    """Write labels by image name as a table, and return their number."""
    kinds = (a.suggestion if a.is_check else "group" if a.is_group else "image" for a in labels.values())
    rows = ((image, a.label, kind, a.person) for (image, a), kind in zip(labels.items(), kinds, strict=True))
    write_whole(Path(path), table(("path", "label", "source", "person"), rows))
    return len(labels)


def _header(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            return [name.strip().lower() for name in next(csv.reader(opened), [])]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"The table {str(file)!r} is not a readable UTF-8 CSV file: {error}.") from error


def _read_labels(file: Path) -> Iterator[Filled]:
    for image, label in read_columns(file, [PATH_COLUMNS, LABEL_COLUMNS]):
        if label.strip():
            yield Filled(one_form(label), image.strip())


def _read_filled(file: Path) -> Iterator[Filled]:
    header = _header(file)
    about = ("group",) if "group" in header and not set(PATH_COLUMNS) & set(header) else PATH_COLUMNS
    further = "kind" if about is PATH_COLUMNS else "digest"
    columns: list[Sequence[str]] = [about, LABEL_COLUMNS, (ANSWER,), *([(further,)] if further in header else [])]
    for subject, label, cell, *last in read_columns(file, columns):
        answer, detail = one_form(cell), last[0].strip() if last else ""
        name = one_form(label) if answer == SAME else "" if answer == UNKNOWN else answer
        if answer and about is PATH_COLUMNS:
            yield Filled(name, subject.strip(), suggestion=detail)
        elif answer:
            yield Filled(name, group=group_number(subject, f"a group in {str(file)!r}"), digest=detail)


def group_number(text: str, what: str) -> int:
    """Return the number of a group."""
    try:
        number = int(text)
    except ValueError:  # "²" is a digit, but no number; very long numbers are refused
        number = -1
    if number < 0:
        raise InputError(f"{what} is {shown(text)}, expected the number of a group (see: captune suggest --groups).")
    return number


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
            choices = [
                result["value"]["choices"]
                for entry in annotations[-1:]
                for result in entry["result"]
                if result.get("type") == "choices"
            ]
            chosen = [str(choice) for choice in choices[0]] if choices and isinstance(choices[0], list) else []
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(expected) from error
        if not is_unicode(image) or not all(map(is_unicode, chosen)):
            raise InputError(f"{str(file)!r} has text that is not valid Unicode: {shown([image, *chosen])}.")
        if chosen:
            yield Filled(one_form(chosen[0]), image, suggestion=str(task["data"].get("kind", "")))


def _image_of(data: dict[str, Any]) -> str:
    """Return the name of a task's image: the one that captune wrote, or the path in its address."""
    if data.get("path"):
        return str(data["path"])
    address = urlparse(str(data["image"]))
    inside = parse_qs(address.query).get("d")
    return inside[0] if inside else unquote(address.path).lstrip("/") if address.scheme else str(data["image"])
