"""Classes that got other names: renamed, or several merged into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from captune.core.errors import nearest, raise_all
from captune.core.files import is_file
from captune.data.tables import read_columns
from captune.data.vocabulary import Vocabulary

T = TypeVar("T")


def parse_renames(arguments: Iterable[str]) -> dict[str, str]:
    """Parse `old=new` arguments, and tables with the columns old and new.

    Old names with the same new name are merged.
    """
    pairs: list[str] = []
    rows: list[tuple[str, str]] = []
    for argument in arguments:
        if "=" not in argument and is_file(argument):
            rows += [(old.strip(), new.strip()) for old, new in read_columns(Path(argument), [("old",), ("new",)])]
        else:
            pairs.append(argument)
    raise_all((f"--rename has the row {row}" for row in rows if not all(row)), "Both names are needed")
    return _unique([*_split(pairs, "--rename", "old=new"), *rows], "--rename")


def by_new_name(renames: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the old names of each new one."""
    found: dict[str, list[str]] = {}
    for old, new in renames.items():
        found.setdefault(new, []).append(old)
    return found


def parse_merges(pairs: Iterable[str]) -> dict[str, list[str]]:
    """Parse `new=a,b` arguments."""
    listed = [(new, [name.strip() for name in names.split(",")]) for new, names in _split(pairs, "--merge", "new=a,b")]
    empty = (f"--merge {new!r} has an empty name" for new, names in listed if not all(names))
    raise_all(empty, "Cannot read these classes")
    return _unique(listed, "--merge")


def new_names(rename: Mapping[str, str], merge: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the new name of each old one, for labels that still have the old ones."""
    mapping: dict[str, str] = {}
    clashes = []
    for old, new in [*rename.items(), *((old, new) for new, names in merge.items() for old in names)]:
        if mapping.get(old, new) != new:
            clashes.append(f"{old!r} would become both {mapping[old]!r} and {new!r}")
        mapping[old] = new
    raise_all(clashes, "Contradictory names of classes")
    return {old: new for old, new in mapping.items() if old != new}


def rename_classes(
    vocabulary: Vocabulary, rename: Mapping[str, str], merge: Mapping[str, Sequence[str]], embedded: bool = False
) -> Vocabulary:
    """Return the vocabulary with renamed and merged classes.

    A merged class is represented by the texts of all its former names. So is a renamed one if texts are `embedded`
    already, because nothing can embed its new name. New names that are classes already take the others in.
    """
    mapping = new_names(rename, merge)
    known = {*vocabulary.names, *(old for old, new in mapping.items() if new in vocabulary.names)}
    wrong = [f"{old!r} is not a class.{nearest(old, vocabulary.names)}" for old in mapping if old not in known]
    raise_all(wrong, "Cannot rename or merge these classes")
    names = tuple(dict.fromkeys(mapping.get(name, name) for name in vocabulary.names))
    former: dict[str, list[int]] = {name: [] for name in names}
    for class_id, name in enumerate(vocabulary.names):
        former[mapping.get(name, name)].append(class_id)
    descriptions: dict[int, tuple[str, ...]] = {}
    for class_id, name in enumerate(names):
        ids = former[name]
        is_new = [vocabulary.names[i] for i in ids] != [name]
        if any(i in vocabulary.descriptions for i in ids) or (is_new and (embedded or len(ids) > 1)):
            descriptions[class_id] = tuple(dict.fromkeys(text for i in ids for text in vocabulary.texts(i)))
    return Vocabulary(names, vocabulary.templates, descriptions)


def _split(pairs: Iterable[str], flag: str, form: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    problems = []
    for pair in pairs:
        left, equals, right = (part.strip() for part in pair.partition("="))
        if not equals or not left or not right:
            problems.append(f"{flag} {pair!r} is not of the form {form}")
        found.append((left, right))
    raise_all(problems, "Cannot read these classes")
    return found


def _unique(pairs: Sequence[tuple[str, T]], flag: str) -> dict[str, T]:
    counts = Counter(name for name, _ in pairs)
    repeated = (f"{flag} {name!r} is repeated" for name, count in counts.items() if count > 1)
    raise_all(repeated, "Cannot read these classes")
    return dict(pairs)
