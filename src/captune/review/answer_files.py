"""Answers as files: tables to fill in, CSV and Label Studio, in and out."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlparse

from captune.core.errors import InputError, nearest, raise_all
from captune.core.files import is_file, read_json, table, write_whole
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
Filled: TypeAlias = tuple[Correction, str]
"""An answer in a file, about an image by any of its names, or about a group and the digest that identifies it; without
a label, a person could not tell."""


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


def _header(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            return [name.strip().lower() for name in next(csv.reader(opened), [])]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"The table {str(file)!r} is not a readable UTF-8 CSV file: {error}.") from error


def _read_table(file: Path) -> Iterator[Filled]:
    """Yield the answers about images or groups; in a table of labels, which has no column for them, all labels."""
    header = _header(file)
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
            yield Correction("label", chosen[0], (image,), suggestion=str(task["data"].get("kind", ""))), ""


def _image_of(data: dict[str, Any]) -> str:
    """Return the name of a task's image: the one that captune wrote, or the path in its address."""
    if data.get("path"):
        return str(data["path"])
    address = urlparse(str(data["image"]))
    inside = parse_qs(address.query).get("d")
    return inside[0] if inside else unquote(address.path).lstrip("/") if address.scheme else str(data["image"])
