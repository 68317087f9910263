"""Suite files: tables of cells (datasets x learning settings x methods x seeds), and published numbers to compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product, starmap
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import MinLen

from captune.benchmark.cells import EXCLUDED_SETTINGS, Cell, resolve_settings
from captune.benchmark.datasets.base import open_dataset
from captune.benchmark.splits import PUBLISHED_SPLIT_SEEDS, Setting, SplitSettings
from captune.core import registry
from captune.core.errors import InputError, ProblemList, UnknownNameError, nearest, raise_all
from captune.core.files import is_file, is_folder
from captune.core.settings import Seed, build, read_yaml

FOLDER = Path(__file__).parent / "suites"
PUBLISHED = Path(__file__).parent / "published.yaml"
Shown = Literal["score", "pool_accuracy", "kept_accuracy", "kept_pool_accuracy", "balanced_accuracy", "ece", "pool_ece"]
NOT_SETTINGS = ("dataset", "split", "published", "seeds")
"""Keys in the values of a dataset or a method that are not run settings."""


def shipped_suites() -> dict[str, Path]:
    """Return the files of the suites that come with captune, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def find_suite(name: str | Path) -> Path:
    """Return the file of a suite given by name (`paper`) or by path (`suites/paper.yaml`)."""
    shipped = shipped_suites()
    if str(name) in shipped:
        return shipped[str(name)]
    path = Path(name)
    if is_file(path) or is_folder(path):
        return path
    raise UnknownNameError(
        f"No suite {str(name)!r}: it is neither a file nor a suite that comes with captune."
        f"{nearest(path.stem, shipped)} Available: {', '.join(shipped)}. See them with: captune list suites"
    )


def suite_title(path: Path) -> str:
    """Return the title of a suite file."""
    return str(read_yaml(path).get("title", "")) or path.stem


class Number(NamedTuple):
    """A mean over seeds, in percent or seconds, with the standard deviation (n - 1) if it is known."""

    mean: float
    deviation: float | None = None
    n_seeds: int = 0


@cache
def published_tables() -> dict[str, dict[str, Any]]:
    """Return the tables of the paper by label: a title, and rows of method, dataset and setting."""
    return read_yaml(PUBLISHED)


def published_number(label: str, method: str, dataset: str, setting: str) -> Number | None:
    """Return the number of a published table, if it has one there."""
    value = published_tables()[label]["rows"].get(method, {}).get(dataset, {}).get(setting)
    return None if value is None else Number(*(value if isinstance(value, list) else [value]))


@dataclass(frozen=True)
class Override:
    """Values for the cells that match `when`, e.g. {dataset: dtd, setting: [ul, ssl]}."""

    when: dict[str, Any]
    set: dict[str, Any]


@dataclass(frozen=True)
class TableFile:
    """One table of a suite file; later values win: defaults, dataset, method, then overrides in order.

    Attributes:
        datasets: Values by row label; `dataset` gives the id if it differs from the label.
        settings: Learning settings.
        methods: Values by row label; `method` gives the id if it differs from the label, `seeds` fewer seeds.
        seeds: Random seeds of the runs.
        split_seeds: `own` splits with the seed of the run, `paper` with the published seeds.
        defaults: Values for every cell.
        overrides: Values for matching cells.
        title: Heading of the table.
        shows: Numbers with a grid of their own, methods x datasets, if there is one learning setting.
        published: Label of the published table to compare with.
    """

    datasets: Annotated[dict[str, dict[str, Any]], MinLen(1)]
    settings: Annotated[tuple[Setting, ...], MinLen(1)]
    methods: Annotated[dict[str, dict[str, Any]], MinLen(1)]
    seeds: Annotated[tuple[Seed, ...], MinLen(1)] = (0, 1, 2)
    split_seeds: Literal["own", "paper"] = "own"
    defaults: dict[str, Any] = field(default_factory=dict)
    overrides: tuple[Override, ...] = ()
    title: str = ""
    shows: Annotated[tuple[Shown, ...], MinLen(1)] = ("score",)
    published: str = ""

    def named(self, axis: Literal["datasets", "methods"], label: str, key: str) -> str:
        """Return the id of a row, or its name in the published table: the label unless it is given."""
        return str(getattr(self, axis)[label].get(key, label))


class Place(NamedTuple):
    """The position of a cell in a table."""

    dataset: str
    setting: Setting
    method: str
    seed: int

    def matches(self, when: Mapping[str, Any]) -> bool:
        """Return whether every given axis has one of the given values."""
        return all(str(getattr(self, axis)) in _listed(wanted) for axis, wanted in when.items())


@dataclass(frozen=True, eq=False)
class Table:
    """The cells of a table by place, with the table's name and content in the suite file."""

    name: str
    file: TableFile
    cells: Mapping[Place, Cell]

    def published(self, dataset: str, setting: str, method: str) -> Number | None:
        """Return the published number of a row of cells, if the suite names a table that has one."""
        if not self.file.published:
            return None
        row, column = self.file.named("methods", method, "published"), self.file.named("datasets", dataset, "published")
        return published_number(self.file.published, row, column, setting)


@dataclass(frozen=True, eq=False)
class Suite:
    """The tables of a suite file."""

    name: str
    title: str
    tables: Sequence[Table]

    def cells(self) -> list[Cell]:
        """Return every cell once, grouped by dataset, in the order of the file."""
        found = {cell.name: cell for table in self.tables for cell in table.cells.values()}
        datasets = list(dict.fromkeys(cell.dataset for cell in found.values()))
        return sorted(found.values(), key=lambda cell: datasets.index(cell.dataset))


def read_suite(name: str | Path, only: Mapping[str, Any] | None = None) -> Suite:
    """Read a suite by name or path; one error lists all mistakes. `only` keeps the matching cells."""
    path = find_suite(name)
    content = read_yaml(path)
    tables, problems, made = content.pop("tables", None) or {"": None}, ProblemList(), list[Table]()
    if not isinstance(tables, dict):
        raise InputError(f"The suite {str(path)!r}: 'tables' must map names to the keys of a table.")
    for label, own in tables.items():
        table = problems.collect(partial(_make_table, str(label), content, own), f"table {label}: " if label else "")
        made += [table] if table else []
    raise_all(dict.fromkeys(problems), f"The suite {str(path)!r} cannot be used")
    return Suite(path.stem, str(content.get("title", "")) or path.stem, _select(made, only or {}, str(path)))


def _select(tables: Sequence[Table], only: Mapping[str, Any], path: str) -> Sequence[Table]:
    """Return the cells that match, in the tables that have any; every value must be one of the suite's."""
    known, problems = _labels(place for table in tables for place in table.cells), list[str]()
    for axis, wanted in only.items():
        if axis not in known:
            raise InputError(f"--only {axis}: expected one of {', '.join(known)}.{nearest(axis, known)}")
        missing = [value for value in _listed(wanted) if value not in known[axis]]
        problems += [f"{axis} {v!r}.{nearest(v, known[axis])} It has: {', '.join(known[axis])}" for v in missing]
    raise_all(problems, f"The suite {path!r} does not have what --only asks for")
    matching = (dataclasses.replace(t, cells={p: c for p, c in t.cells.items() if p.matches(only)}) for t in tables)
    selected = [table for table in matching if table.cells]
    if not selected:
        wanted = " ".join(f"{axis}={','.join(_listed(values))}" for axis, values in only.items())
        raise InputError(f"No cell of the suite {path!r} matches --only {wanted}.")
    return selected


def _make_table(name: str, shared: Mapping[str, Any], own: object) -> Table:
    own = _mapping(own)
    defaults = {**_mapping(shared.get("defaults")), **_mapping(own.get("defaults"))}
    content = {**shared, "title": "", **own, "defaults": defaults}
    for axis in ("datasets", "methods"):
        rows = content.get(axis)
        if isinstance(rows, (list, dict)):
            rows = dict.fromkeys(rows) if isinstance(rows, list) else rows
            content[axis] = {str(label): values or {} for label, values in rows.items()}
    file = build(TableFile, content, "keys")
    places = list(starmap(Place, product(file.datasets, file.settings, file.methods, file.seeds)))
    problems = ProblemList(_problems(file, _labels(places)))
    for label in file.datasets:
        problems.collect(partial(open_dataset, file.named("datasets", label, "dataset")), "")
    for label in file.methods:
        problems.collect(partial(registry.load, "methods", file.named("methods", label, "method")), "")
    raise_all(problems, "wrong")
    cells: dict[Place, Cell] = {}
    for place in places:
        if place.seed in file.methods[place.method].get("seeds", file.seeds):
            cell = problems.collect(partial(_make_cell, file, place), f"{place.dataset}, {place.method}: ")
            cells |= {place: cell} if cell else {}
    raise_all(dict.fromkeys(problems), "wrong")
    return Table(name, file, cells)


def _problems(file: TableFile, known: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield problems that the types do not catch: unknown labels and overrides that would never apply."""
    for label, values in file.methods.items():
        own = values.get("seeds", [])
        if not isinstance(own, list) or any(seed not in file.seeds for seed in own):
            yield f"{label}: seeds = {own!r}: expected a list of some of the table's seeds {list(file.seeds)}"
    if file.published and file.published not in published_tables():
        yield f"no published table {file.published!r}.{nearest(file.published, published_tables())}"
    for override in file.overrides:
        if "method" in override.set:
            yield "override sets 'method': add a row with its own name to methods instead"
        for axis, wanted in override.when.items():
            if axis not in known:
                yield f"override for {axis!r}: expected {', '.join(known)}.{nearest(axis, known)}"
            for value in set(_listed(wanted)) - set(known.get(axis, _listed(wanted))):
                yield f"override for {axis} {value!r}, which the table does not have.{nearest(value, known[axis])}"


def _labels(places: Iterable[Place]) -> dict[str, list[str]]:
    """Return the values of each axis."""
    columns = zip(Place._fields, zip(*places, strict=True), strict=True)
    return {axis: [str(value) for value in dict.fromkeys(values)] for axis, values in columns}


def _own_settings(method: str) -> set[str]:
    return {entry.name for entry in dataclasses.fields(registry.load("methods", method).Settings)}


def _make_cell(file: TableFile, place: Place) -> Cell:
    dataset = file.named("datasets", place.dataset, "dataset")
    method, *others = (file.named("methods", label, "method") for label in (place.method, *file.methods))
    facts = open_dataset(dataset).facts
    values: dict[str, Any] = {"template": facts.template, "domain": facts.domain}
    split: dict[str, Any] = {}
    # Values for all methods reach those that have the setting; a name that no method has is a mistake.
    of_others = set().union(*map(_own_settings, others)) - _own_settings(method)
    shared = {k: v for k, v in {**file.defaults, **file.datasets[place.dataset]}.items() if k not in of_others}
    overrides = [override.set for override in file.overrides if place.matches(override.when)]
    for layer in (shared, file.methods[place.method], *overrides):
        values |= {key: value for key, value in layer.items() if key not in NOT_SETTINGS}
        split |= _mapping(layer.get("split"))
    for name in values.keys() & EXCLUDED_SETTINGS:
        raise InputError(f"{name!r} cannot be set: it follows from seeds, learning setting or machine")
    if registry.load("methods", method).presets and not values.get("preset"):
        raise InputError("set preset to quick or full: the default depends on the machine")
    split_seed = place.seed if file.split_seeds == "own" else PUBLISHED_SPLIT_SEEDS[place.setting]
    problems = ProblemList()
    settings = problems.collect(lambda: resolve_settings({**values, "method": method}), "")
    split_settings = problems.collect(lambda: build(SplitSettings, split, "split values"), "split: ")
    raise_all(problems, "wrong")
    assert settings and split_settings  # noqa: PT018 (nothing was wrong, so both are there)
    return Cell(dataset, place.setting, place.seed, split_seed, settings, split_settings)


def _mapping(value: object) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise InputError(f"{value!r}: expected 'key: value' pairs")
    return value or {}


def _listed(wanted: object) -> list[str]:
    return [str(value) for value in wanted] if isinstance(wanted, (list, tuple)) else [str(wanted)]
