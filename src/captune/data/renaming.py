"""Classes that got other names: renamed, or several merged into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from captune.core.errors import nearest, raise_all
from captune.data.vocabulary import Vocabulary


def parse_renames(pairs: Iterable[str]) -> dict[str, str]:
    """Parse `old=new` arguments."""
    return dict(_split(pairs, "--rename", "old=new"))


def parse_merges(pairs: Iterable[str]) -> dict[str, list[str]]:
    """Parse `new=a,b` arguments."""
    listed = [(new, [name.strip() for name in names.split(",")]) for new, names in _split(pairs, "--merge", "new=a,b")]
    empty = (f"--merge {new!r} has an empty name" for new, names in listed if not all(names))
    raise_all(empty, "Cannot read these classes")
    return dict(listed)


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
        elif any(left == known for known, _ in found):
            problems.append(f"{flag} {left!r} is repeated")
        found.append((left, right))
    raise_all(problems, "Cannot read these classes")
    return found
