"""Class names and the texts that represent them, tables of classes, and the YAML files that hold descriptions."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from captune.core.errors import InputError, raise_all
from captune.core.files import is_file, is_folder, write_whole
from captune.core.settings import read_yaml_file
from captune.core.text import invalid_character, is_unicode, look, one_form, shown
from captune.data.tables import first_few, is_table, read_columns, read_lines

DEFAULT_TEMPLATE = "a photo of a {}"
NONE = "none of these"
"""The answer, and the prediction, for an image that fits no class name; no class may have this name."""
NAME_COLUMNS = ("name", "class", "class_name", "label")
MOST_CHARACTERS = 200
"""Longest name of a class: longer ones cannot be read from tables, or be names of files."""


@dataclass(frozen=True)
class Vocabulary:
    """Class names, templates with `{}` or columns, and descriptions that replace a name; a class id is its position."""

    names: tuple[str, ...]
    templates: tuple[str, ...] = (DEFAULT_TEMPLATE,)
    descriptions: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = [*name_problems(self.names), *_template_problems(self.templates)]
        wrong, last = [c for c in self.descriptions if not 0 <= c < len(self.names)], len(self.names) - 1
        problems += [f"description for class {c}, but class ids are 0 to {last}" for c in wrong]
        raise_all(problems, "Cannot use these class names and templates")

    def __len__(self) -> int:
        return len(self.names)

    def texts(self, class_id: int) -> tuple[str, ...]:
        """Return the sentences whose mean embedding represents a class."""
        if class_id in self.descriptions:
            return tuple(self.descriptions[class_id])
        return tuple(fill(template, self.names[class_id]) for template in self.templates)

    def with_descriptions(self, descriptions: Mapping[int, Sequence[str]]) -> Vocabulary:
        """Return a copy in which some classes are represented by sentences instead of their name."""
        merged = {**self.descriptions, **{c: tuple(sentences) for c, sentences in descriptions.items()}}
        return replace(self, descriptions=merged)


def fill(template: str, name: str, cells: Mapping[str, str] | None = None) -> str:
    """Return the sentence about a class; a name without a table fills every placeholder."""
    return template.format(name, **{"name": name, **dict.fromkeys(_columns(template), name), **(cells or {})})


def _columns(template: str) -> list[str]:
    """Return the placeholders with a name, in order; a template that is malformed has none."""
    try:
        found = [name for _, name, _, _ in string.Formatter().parse(template) if name]
    except ValueError:
        return []
    return [name for name in dict.fromkeys(found) if name != "name"]


def read_classes(source: Any, template: str = DEFAULT_TEMPLATE) -> Vocabulary:  # noqa: ANN401
    """Return the classes of a path, a sequence of names, a table or a mapping from names to descriptions (or None).

    The columns of a table (CSV, Parquet, mappings, pandas) fill the placeholders of the template.
    """
    if hasattr(source, "to_dict") and hasattr(source, "columns"):  # a DataFrame
        source = source.to_dict("records")
    columns, descriptions = _columns(template), dict[int, tuple[Any, ...]]()
    rows: list[tuple[Any, ...]]
    if isinstance(source, Mapping):
        rows = [(name,) for name in source]
        for class_id, value in enumerate(source.values()):
            sentences = tuple(value) if isinstance(value, (list, tuple)) else (value,)
            if sentences not in ((None,), ("",), ()):
                descriptions[class_id] = sentences
    else:
        rows = _rows(source, [NAME_COLUMNS, *((column.strip().lower(),) for column in columns)])
    rows = [tuple(one_form(cell) if isinstance(cell, str) else cell for cell in row) for row in rows]
    if columns and any(len(row) == 1 for row in rows):
        advice = "Pass a table (CSV, Parquet or mappings) with these columns, or use {} for the name"
        raise InputError(f"These classes are names, but {shown(template)} needs {', '.join(columns)}. {advice}.")
    texts = [(rows[c][0], "a description", sentence) for c, found in descriptions.items() for sentence in found]
    texts += [(name, column, cell) for name, *cells in rows for column, cell in zip(columns, cells, strict=True)]
    wrong = (
        f"class {shown(name)}: {what} is {shown(text)}, expected text"
        for name, what, text in texts
        if not isinstance(text, str) or not text.strip() or not is_unicode(text)
    )
    raise_all(first_few(wrong), "Cannot use these classes")
    for class_id, (name, *cells) in enumerate(rows if columns else ()):
        descriptions[class_id] = (fill(template, name, dict(zip(columns, cells, strict=True))),)
    return Vocabulary(tuple(row[0] for row in rows), (template,), descriptions)


def _rows(source: Any, wanted: Sequence[Sequence[str]]) -> list[tuple[Any, ...]]:  # noqa: ANN401
    """Return the wanted columns of a table of classes, or the names alone."""
    if isinstance(source, (str, Path)) and is_table(Path(source)) and is_file(source):
        header = next(read_lines(Path(source)), "").strip().lower() if str(source).lower().endswith(".csv") else ","
        if "," in header or header.strip('"') in NAME_COLUMNS:  # other .csv files are lists of names
            return list(read_columns(Path(source), wanted))
    entries: tuple[Any, ...] = read_class_names(source)
    if not any(isinstance(entry, Mapping) for entry in entries):
        return [(name,) for name in entries]
    rows = [entry if isinstance(entry, Mapping) else {"name": entry} for entry in entries]
    lowered = [{str(column).strip().lower(): cell for column, cell in row.items()} for row in rows]
    return [tuple(next((row[name] for name in names if name in row), "") for names in wanted) for row in lowered]


def read_class_names(source: str | Path | Sequence[str]) -> tuple[str, ...]:
    """Read class names from a text or YAML file, a comma-separated list, the subfolders of a folder or a sequence."""
    found: Any = _read_names(source) if isinstance(source, (str, Path)) else source
    if not isinstance(found, Iterable):
        raise InputError(f"Expected class names as a path or a list, got {shown(source)}.")
    return tuple(one_form(name) if isinstance(name, str) else name for name in found)


def _read_names(source: str | Path) -> Iterable[Any]:
    path = Path(source)
    try:
        if is_folder(path) and str(source):  # an empty text would be the current folder
            if found := sorted(child.name for child in path.iterdir() if child.is_dir() and child.name[0] != "."):
                return found
            raise InputError(f"The folder {str(path)!r} has no subfolders to take class names from.")
        if is_file(path):
            if path.suffix.lower() not in (".yaml", ".yml"):
                return list(read_lines(path))
            content = read_yaml_file(path, "class file")
            content = content.get("classes", content.get("names")) if isinstance(content, Mapping) else content
            if isinstance(content, list):
                return content
            raise InputError(f"The class file {str(path)!r} must contain a YAML list of names, also as 'classes:'.")
    except OSError as error:
        raise InputError(f"Cannot read the class names in {str(source)!r}: {error.strerror}.") from error
    if "," in str(source):
        return str(source).split(",")
    raise InputError(
        f"No class names in {str(source)!r}: expected a text file (one name per line), a YAML list, a table, a folder "
        "with one subfolder per class, or a comma-separated list such as 'forest,river'. Check the path."
    )


def name_problems(names: Sequence[object]) -> list[str]:
    """Return what is wrong with class names: too few, not text, or not to be told apart."""
    if len(names) < 2:
        return [f"expected at least 2 class names, got {len(names)}"]
    if wrong := [(i, shown(name)) for i, name in enumerate(names) if not isinstance(name, str)]:
        hint = "expected a string (in YAML, quote names such as 'no' or '7')"
        return first_few(f"class name {i} is {name}, {hint}" for i, name in wrong)
    texts = [str(name) for name in names]
    problems = [f"class name {i}{why}" for i, name in enumerate(texts) if (why := _problem(name))]
    alike: dict[str, list[str]] = {}
    for name in texts:
        alike.setdefault(look(name), []).append(name)
    for twins in (twins for key, twins in alike.items() if key and len(twins) > 1):
        if len({one_form(name).casefold() for name in twins}) == 1:
            problems.append(f"class name {one_form(twins[0]).casefold()!r} is repeated {len(twins)} times")
        else:
            problems.append(f"the class names {' and '.join(map(ascii, first_few(twins, 3)))} look the same")
    return first_few(problems)


def _problem(name: str) -> str:
    """Return what is wrong with a class name alone, or an empty string."""
    if not look(name):
        return " is empty"
    if (character := invalid_character(name)) is not None:
        return f", {shown(name)}, contains {character}, which is not text"
    if look(name) == NONE:
        return f", {shown(name)}, is reserved for images that fit no class"
    is_long = len(name) > MOST_CHARACTERS
    return f", {shown(name)}, has {len(name):,} characters, at most {MOST_CHARACTERS} are allowed" if is_long else ""


def _template_problems(templates: Sequence[str]) -> list[str]:
    problems = [] if templates else ["expected at least one template, such as 'a photo of a {}'"]
    for template in templates:
        try:
            fields = [(name, rest) for _, name, *rest in string.Formatter().parse(template) if name is not None]
        except ValueError as error:
            problems.append(f"template {template!r} is malformed: {error}")
            continue
        names = [name for name, _ in fields]
        is_plain = all(rest == ["", None] and not set(name) & set(".[") and not name.isdigit() for name, rest in fields)
        if not names or names.count("") > 1 or not is_plain:
            problems.append(
                f"template {shown(template)} must contain the placeholder {{}} once, or columns such as {{common_name}}"
            )
        elif not is_unicode(template):
            problems.append(f"template {shown(template)} is not valid Unicode")
    return problems


def write_descriptions(path: str | Path, descriptions: Mapping[str, Sequence[str]]) -> None:
    """Write a descriptions file, to edit and to pass as `file:PATH`."""
    content = {str(name): [str(sentence) for sentence in sentences] for name, sentences in descriptions.items()}
    text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False, width=10_000)
    write_whole(Path(path), text)


def read_descriptions(path: str | Path) -> dict[str, list[str]]:
    """Read a descriptions file, or raise one error that lists all problems."""
    content = read_yaml_file(path, "descriptions file", as_text=True) or {}
    if not isinstance(content, Mapping):
        raise InputError(f"The descriptions file {str(path)!r} must map class names to lists of sentences.")
    found: dict[str, list[str]] = {}
    problems: list[str] = []
    for key, sentences in content.items():
        name = one_form(key)
        if not name or name in found:
            problems.append(f"the class {shown(name)} is {'listed twice' if name else 'empty'}")
        elif not isinstance(sentences, list) or not sentences:
            problems.append(f"{shown(name)} must have a list of sentences, each after '- '")
        else:
            wrong = [s for s in sentences if not isinstance(s, str) or not s.strip() or not is_unicode(s)]
            problems += [f"a sentence of {shown(name)} is {shown(sentence)}, expected text" for sentence in wrong]
            found[name] = [str(sentence).strip() for sentence in sentences]
    raise_all(problems, f"The descriptions file {str(path)!r} cannot be used")
    return found
