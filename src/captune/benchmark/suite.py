"""Suite files: tables of cells (datasets x learning settings x methods x seeds), and published numbers to compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product, starmap
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from annotated_types import MinLen

from captune.benchmark.cells import EXCLUDED_SETTINGS, Cell, resolve_settings
from captune.benchmark.datasets.base import open_dataset
from captune.benchmark.splits import PUBLISHED_SPLIT_SEEDS, Setting, SplitSettings
from captune.core import registry
from captune.core.errors import InputError, ProblemList, UnknownNameError, nearest, raise_all
from captune.core.files import is_file, is_folder
from captune.core.settings import RunSettings, Seed, build, read_yaml

T = TypeVar("T")
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


class PublishedNumber(NamedTuple):
    """A mean in percent, with the standard deviation over seeds if it was printed."""

    mean: float
    deviation: float | None = None


@cache
def published_tables() -> dict[str, dict[str, Any]]:
    """Return the tables of the paper by label: a title, and rows of method, dataset and setting."""
    return read_yaml(PUBLISHED)


def published_number(label: str, method: str, dataset: str, setting: str) -> PublishedNumber | None:
    """Return the number of a published table, if it has one there."""
    value = published_tables()[label]["rows"].get(method, {}).get(dataset, {}).get(setting)
    return None if value is None else PublishedNumber(*(value if isinstance(value, list) else [value]))


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

    datasets: Annotated[dict[str, dict[str, Any] | None], MinLen(1)]
    settings: Annotated[tuple[Setting, ...], MinLen(1)]
    methods: Annotated[dict[str, dict[str, Any] | None], MinLen(1)]
    seeds: Annotated[tuple[Seed, ...], MinLen(1)] = (0, 1, 2)
    split_seeds: Literal["own", "paper"] = "own"
    defaults: dict[str, Any] = field(default_factory=dict)
    overrides: tuple[Override, ...] = ()
    title: str = ""
    shows: Annotated[tuple[Shown, ...], MinLen(1)] = ("score",)
    published: str = ""


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

    def published_name(self, axis: Literal["datasets", "methods"], label: str) -> str:
        """Return the name of a dataset or method in the published table."""
        values: Mapping[str, Any] = getattr(self.file, axis)[label] or {}
        return str(values.get("published", label))

    def published(self, dataset: str, setting: str, method: str) -> PublishedNumber | None:
        """Return the published number of a row of cells, if the suite names a table that has one."""
        names = self.published_name("methods", method), self.published_name("datasets", dataset)
        return published_number(self.file.published, *names, setting) if self.file.published else None


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
    path, only = find_suite(name), only or {}
    content = read_yaml(path)
    tables = content.pop("tables", None) or {"": {}}
    if not isinstance(tables, dict) or not all(isinstance(own, (dict, type(None))) for own in tables.values()):
        raise InputError(f"The suite {str(path)!r}: 'tables' must map names to the keys of a table.")
    for axis in only:
        if axis not in Place._fields:
            raise InputError(
                f"--only {axis}: expected one of {', '.join(Place._fields)}.{nearest(axis, Place._fields)}"
            )
    problems, made = ProblemList(), []
    for label, own in tables.items():
        shared = {key: value for key, value in content.items() if key != "title" or not own}
        defaults = {**_mapping(shared.get("defaults")), **_mapping((own or {}).get("defaults"))}
        merged = {**shared, **(own or {}), "defaults": defaults}
        place = f"table {label}: " if label else ""
        table = problems.collect(lambda n=label, m=merged: _make_table(str(n), m, only), place)  # type: ignore[misc]
        made += [table] if table else []
    raise_all(dict.fromkeys(problems), f"The suite {str(path)!r} cannot be used")
    for axis, wanted in only.items():
        known = list(dict.fromkeys(label for table in made for label in _labels(table.file)[axis]))
        missing = [value for value in _listed(wanted) if value not in known]
        problems += [f"{axis} {value!r}.{nearest(value, known)} It has: {', '.join(known)}" for value in missing]
    raise_all(problems, f"The suite {str(path)!r} does not have what --only asks for")
    made = [table for table in made if table.cells]
    if not made:
        wanted = " ".join(f"{axis}={','.join(_listed(values))}" for axis, values in only.items())
        raise InputError(f"No cell of the suite {str(path)!r} matches --only {wanted}.")
    return Suite(path.stem, str(content.get("title", "")) or path.stem, made)


def _make_table(name: str, content: dict[str, Any], only: Mapping[str, Any]) -> Table:
    for role in ("datasets", "methods"):
        if isinstance(content.get(role), list):
            content[role] = {str(label): None for label in content[role]}
    file = build(TableFile, content, "keys")
    problems = ProblemList(_problems(file))
    raise_all(problems, "wrong")
    cells: dict[Place, Cell] = {}
    for place in starmap(Place, product(file.datasets, file.settings, file.methods, file.seeds)):
        seeds = (file.methods[place.method] or {}).get("seeds", file.seeds)
        if place.matches(only) and place.seed in seeds:
            where = f"{place.dataset}, {place.method}: "
            cell = problems.collect(lambda p=place: _make_cell(file, p), where)  # type: ignore[misc]
            cells |= {place: cell} if cell else {}
    raise_all(dict.fromkeys(problems), "wrong")
    return Table(name, file, cells)


def _problems(file: TableFile) -> Iterator[str]:
    """Yield problems that the types do not catch: unknown ids and overrides that would never apply."""
    roles: tuple[tuple[registry.Role, Mapping[str, Any]], ...] = (
        ("datasets", file.datasets),
        ("methods", file.methods),
    )
    for role, rows in roles:
        available = registry.names(role)
        for label, values in rows.items():
            name = str((values or {}).get(role[:-1], label)).partition(":")[0]
            if name not in available:
                yield f"no {role[:-1]} {name!r}.{nearest(name, available)} Available: {', '.join(available)}"
            own = (values or {}).get("seeds", [])
            if role == "methods" and (not isinstance(own, list) or any(seed not in file.seeds for seed in own)):
                yield f"{label}: seeds = {own!r}: expected a list of some of the table's seeds {list(file.seeds)}"
    if file.published and file.published not in published_tables():
        yield f"no published table {file.published!r}.{nearest(file.published, published_tables())}"
    known = _labels(file)
    for override in file.overrides:
        if "method" in override.set:
            yield "override sets 'method': add a row with its own name to methods instead"
        for axis, value in ((axis, value) for axis, wanted in override.when.items() for value in _listed(wanted)):
            if axis not in known:
                yield f"override for {axis!r}: expected {', '.join(known)}.{nearest(axis, known)}"
            elif value not in known[axis]:
                yield f"override for {axis} {value!r}, which the table does not have.{nearest(value, known[axis])}"


def _labels(file: TableFile) -> dict[str, list[str]]:
    """Return the values of each axis of a table."""
    axes = (file.datasets, file.settings, file.methods, file.seeds)
    return {name: [str(value) for value in values] for name, values in zip(Place._fields, axes, strict=True)}


def _shared_values(file: TableFile, of_dataset: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return the values given for all methods, without settings that only other methods of the table have."""

    def names_of(method: str) -> set[str]:
        settings = (registry.load("methods", method).Settings, RunSettings)
        return {entry.name for cls in settings for entry in dataclasses.fields(cls)}

    methods = {str((values or {}).get("method", label)) for label, values in file.methods.items()}
    of_others = {name for other in methods for name in names_of(other)} - names_of(method)
    shared = {**file.defaults, **of_dataset}
    return {key: value for key, value in shared.items() if key not in of_others}


def _make_cell(file: TableFile, place: Place) -> Cell:
    of_dataset, of_method = file.datasets[place.dataset] or {}, file.methods[place.method] or {}
    dataset, method = str(of_dataset.get("dataset", place.dataset)), str(of_method.get("method", place.method))
    facts = open_dataset(dataset).facts
    values: dict[str, Any] = {"template": facts.template, "domain": facts.domain}
    split: dict[str, Any] = {}
    overrides = [override.set for override in file.overrides if place.matches(override.when)]
    for layer in (_shared_values(file, of_dataset, method), of_method, *overrides):
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
