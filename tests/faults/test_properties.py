"""Generated manifests, folders, names, labels and settings: each is used or refused in a sentence, nothing is lost.

`CAPTUNE_EXAMPLES=2000 pytest tests/faults/test_properties.py` tries ten times as many.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import write_images

from captune.core.errors import CaptuneError
from captune.core.files import parse_json
from captune.core.settings import RunSettings, build_run, parse_overrides, read_yaml
from captune.core.text import is_unicode, look, printable
from captune.data.decoding import UnreadableImageError
from captune.data.images import find_images, walk
from captune.data.labels import read_labels
from captune.data.shards import SUFFIXES
from captune.data.vocabulary import read_classes
from captune.methods.cap import Cap
from faults.records import MUTANTS

T = TypeVar("T")
EXAMPLES = int(os.environ.get("CAPTUNE_EXAMPLES", "200"))
pytestmark = pytest.mark.timeout(300 + 2 * EXAMPLES)
tried = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

AWKWARD = (
    "",
    " ",
    "\0",
    "\n",
    "\r",
    '"',
    ",",
    "'",
    "..",
    ".",
    "/",
    "~",
    "*.tar",
    "a.tar",
    "\u200b",
    "\u202e",
    "e\u0301",
    "é",
)
AWKWARD += (
    "\x1b[2J",
    "{}",
    "[",
    "{",
    "&a",
    "*a",
    "!!python/name:os",
    "- ",
    "#",
    "null",
    "true",
    "1e400",
    "nan",
    "\ud800",
)
TEXTS = st.one_of(st.sampled_from(AWKWARD), st.text(max_size=12), st.text(st.characters(), max_size=6))
NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([10**30, -1, 0, 1, 2**63, 1e308, -0.0]))
VALUES = st.recursive(
    st.one_of(TEXTS, NUMBERS, st.none(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def answer(kind: str, act: Callable[[], T]) -> T | None:
    """Return the result, or None if the input was refused; the refusal must be a sentence that a terminal can show."""
    counts = MUTANTS.setdefault(kind, Counter())
    counts["tried"] += 1
    try:
        result = act()
    except CaptuneError as error:
        counts["refused"] += 1
        said = str(error)
    except BaseException:
        counts["crash"] += 1
        raise
    else:
        counts["accepted"] += 1
        return result
    assert said.strip()
    assert is_unicode(printable(said))
    assert len(said) < 20_000
    return None


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("properties")
    write_images(base / "photos", 3, side=4)
    (base / "photos" / "damaged.png").write_bytes(b"\x89PNG")
    (base / "link").symlink_to(base / "photos")
    return base


NAMES = ("000.png", "001.png", "002.png", "damaged.png", "gone.png")
FOLDERS = ("photos/", "./photos/", "link/", "photos/../photos/", "")
ENTRIES = st.one_of(
    st.tuples(st.sampled_from(["photos/", "./photos/", "link/", "photos/../photos/", ""]), st.sampled_from(NAMES)).map(
        "".join
    ),
    TEXTS,
)


@tried
@given(st.lists(ENTRIES, max_size=5), st.sampled_from(["csv", "txt", "parquet"]), st.booleans())
def test_every_row_of_a_manifest_is_used_or_refused(
    place: Path, entries: list[str], kind: str, is_absolute: bool
) -> None:
    rows = [f"{place}/{entry}" if is_absolute and entry[:1] not in "/\0" else entry for entry in entries]
    rows = [row for row in rows if is_unicode(row)]
    file = place / f"m.{kind}"
    n_rows = len(rows)
    if kind == "csv":
        with file.open("w", encoding="utf-8", newline="") as target:
            csv.writer(target).writerows([["path"], *([row] for row in rows)])
    elif kind == "txt":
        text = "\n".join(rows)
        file.write_text(text, encoding="utf-8", newline="")
        n_rows = sum(bool(line.strip()) for line in file.open(encoding="utf-8-sig"))
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"path": pyarrow.array(rows, pyarrow.string())}), file)
    images = answer(f"generated {kind} manifest", lambda: find_images(file))
    if images is not None:
        assert len(images) == n_rows
        used = sum(_is_readable(images, position) for position in range(len(images)))
        skipped = sum(not _is_readable(images, position) for position in range(len(images)))
        assert used + skipped == n_rows
        real = [os.path.realpath(path) for path in images.paths]
        assert len({path for path in real if Path(path).is_file()}) == sum(Path(path).is_file() for path in real)


def _is_readable(images: Any, position: int) -> bool:
    try:
        images.read(position).decode()
    except UnreadableImageError:
        return False
    return True


PARTS = st.sampled_from(
    ["a", "b", "é", "e\u0301", ".hidden", "x.png", "y.JPG", "z.txt", "run.json", "s.tar", "\x1b[2J"]
)


@tried
@given(st.lists(st.lists(PARTS, min_size=1, max_size=3), max_size=8))
def test_everything_in_a_folder_is_accounted_for(place: Path, paths: list[list[str]]) -> None:
    top = place / "tree"
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir()
    for parts in paths:
        path = top.joinpath(*parts)
        if not path.exists() and not any(parent.is_file() for parent in path.parents):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"{}")
    unused: dict[str, list[str]] = defaultdict(list)
    used = list(walk(top, unused))
    MUTANTS.setdefault("generated folder", Counter()).update(["tried", "accepted"])
    hidden = [path for path in top.rglob(".*") if not any(part[0] == "." for part in path.relative_to(top).parts[:-1])]
    seen = [
        path
        for path in top.rglob("*")
        if path.is_file() and not any(part[0] == "." for part in path.relative_to(top).parts)
    ]
    assert len(used) == len(set(used)) == sum(path.suffix.lower() in SUFFIXES | {".tar"} for path in seen)
    assert len(used) + sum(map(len, unused.values())) == len(seen) + len(hidden)


PLAIN = st.sampled_from(["cat", "dog", "river", "é", "猫", "red car", "747"])


@tried
@given(st.one_of(VALUES, st.lists(st.one_of(PLAIN, TEXTS, VALUES), max_size=5), st.lists(PLAIN, max_size=4)))
def test_class_names_are_distinct_or_refused(place: Path, given_names: Any) -> None:
    if isinstance(given_names, str):
        (place / "names.yaml").write_text(given_names, encoding="utf-8", errors="replace")
        given_names = place / "names.yaml"
    elif not isinstance(given_names, (list, dict)):
        given_names = [given_names, "cat"]
    vocabulary = answer("generated class names", lambda: read_classes(given_names))
    if vocabulary is not None:
        assert len({look(name) for name in vocabulary.names}) == len(vocabulary.names) >= 2
        assert all(is_unicode(text) for c in range(len(vocabulary)) for text in vocabulary.texts(c))
        assert all(printable(name) == name or min(name) >= "\u200e" for name in vocabulary.names if name.isascii())


@tried
@given(
    st.lists(
        st.one_of(st.sampled_from(["cat", "dog", "Cat", " cat ", "0", "1", "7", "", "e\u0301"]), TEXTS), max_size=4
    )
)
def test_every_label_is_used_or_refused(place: Path, labels: list[str]) -> None:
    images = find_images(place / "photos")
    rows = [(name, label) for name, label in zip(NAMES, labels, strict=False) if is_unicode(label)]
    with (place / "labels.csv").open("w", encoding="utf-8", newline="") as target:
        csv.writer(target).writerows([("path", "label"), *rows])
    found = answer("generated labels", lambda: read_labels(place / "labels.csv", images, ("cat", "dog", "é")))
    if found is not None:
        assert len(found) == len(images)
        assert np.count_nonzero(found >= 0) == sum(bool(label.strip()) for _, label in rows)


KEYS = st.one_of(st.sampled_from([*RunSettings.__dataclass_fields__, *Cap.Settings.__dataclass_fields__]), TEXTS)


@tried
@given(st.dictionaries(KEYS, st.one_of(NUMBERS, VALUES), max_size=4))
def test_settings_are_finite_or_refused(values: dict[str, Any]) -> None:
    built = answer("generated settings", lambda: build_run(values, Cap.Settings))
    if built is not None:
        numbers = [value for part in built for value in vars(part).values() if isinstance(value, float)]
        assert np.isfinite(numbers).all()


@tried
@given(st.one_of(TEXTS, st.tuples(KEYS, TEXTS).map("=".join), VALUES.map(lambda value: f"seed={value}")))
def test_overrides_are_read_or_refused(pair: str) -> None:
    answer("generated --set", lambda: parse_overrides([pair]))


@tried
@given(st.one_of(VALUES.map(json.dumps), TEXTS, st.lists(TEXTS, max_size=5).map("\n".join)))
def test_settings_files_are_read_or_refused(place: Path, text: str) -> None:
    (place / "s.yaml").write_text(text, encoding="utf-8", errors="replace")
    answer("generated settings file", lambda: read_yaml(place / "s.yaml"))


@tried
@given(
    st.one_of(
        TEXTS, st.integers(1, 100_000).map(lambda n: "[" * n), st.integers(1, 5000).map(lambda n: "[" * n + "]" * n)
    )
)
def test_json_is_read_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        parse_json(text)
