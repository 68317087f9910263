"""A suite file: datasets x learning settings x methods x seeds, with values for each, as cells and tables of cells."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Gt, MinLen

from captune.benchmark.cells import PLACE_SETTINGS, Cell, SplitSettings, resolve_settings
from captune.benchmark.published import published_tables
from captune.benchmark.shipped import find_suite
from captune.benchmark.splits import PAPER_SPLIT_SEEDS, Setting
from captune.core import registry
from captune.core.errors import InputError, nearest, raise_all
from captune.core.settings import RunSettings, Seed, build, read_yaml

T = TypeVar("T")
AXES = ("dataset", "setting", "method", "seed")
OWN_KEYS = ("split", "published")
"""Keys of a dataset's or a method's values that are no settings."""


@dataclass(frozen=True)
class Override:
    """Values for the cells that fit `when`, e.g. {dataset: dtd, setting: [ul, ssl]}."""

    when: dict[str, Any]
    set: dict[str, Any]


@dataclass(frozen=True)
class Speed:
    """How fast the machine is assumed to be until the first cells are measured; only estimates use it."""

    images_per_second: Annotated[float, Gt(0)] = 100.0
    steps_per_second: Annotated[float, Gt(0)] = 10.0


@dataclass(frozen=True)
class TableFile:
    """One table of a suite file; later values win: defaults, dataset, method, overrides in their order.

    Attributes:
        datasets: Datasets by the name that the table shows, with values; `dataset` says which one where names differ.
        settings: Learning settings.
        methods: Methods by the name that the table shows, with values; `method` says which one where names differ.
        seeds: Seeds of the runs.
        split_seeds: `own` splits with the seed of the run, `paper` with the published seeds, in their order.
        defaults: Values of every cell.
        overrides: Values of the cells that fit.
        title: What the table shows.
        published: Label of the published table to show beside it.
        speed: What estimates assume.
    """

    datasets: Annotated[dict[str, dict[str, Any] | None], MinLen(1)]
    settings: Annotated[tuple[Setting, ...], MinLen(1)]
    methods: Annotated[dict[str, dict[str, Any] | None], MinLen(1)]
    seeds: Annotated[tuple[Seed, ...], MinLen(1)] = (0, 1, 2)
    split_seeds: Literal["own", "paper"] = "own"
    defaults: dict[str, Any] = field(default_factory=dict)
    overrides: tuple[Override, ...] = ()
    title: str = ""
    published: str = ""
    speed: Speed = field(default_factory=Speed)


@dataclass(frozen=True)
class Place:
    """Where a cell stands in a table."""

    dataset: str
    setting: Setting
    method: str
    seed: int

    def fits(self, when: Mapping[str, Any]) -> bool:
        """Return whether every named axis has one of the given values."""
        return all(str(getattr(self, axis)) in _words(wanted) for axis, wanted in when.items())


@dataclass(frozen=True, eq=False)
class Table:
    """Cells in rows and columns.

    Attributes:
        name: Its name in the suite file.
        file: What the file says.
        cells: The cells by their place.
    """

    name: str
    file: TableFile
    cells: Mapping[Place, Cell]

    def published_name(self, axis: Literal["datasets", "methods"], label: str) -> str:
        """Return the name of a dataset or method in the published table."""
        values: Mapping[str, Any] = getattr(self.file, axis)[label] or {}
        return str(values.get("published", label))


@dataclass(frozen=True, eq=False)
class Suite:
    """All tables of a suite file."""

    name: str
    title: str
    tables: Sequence[Table]

    def cells(self) -> list[Cell]:
        """Return every cell once, in the order of the file, those of a dataset together."""
        found = {cell.name: cell for table in self.tables for cell in table.cells.values()}
        datasets = list(dict.fromkeys(cell.dataset for cell in found.values()))
        return sorted(found.values(), key=lambda cell: datasets.index(cell.dataset))


def read_suite(word: str | Path, only: Mapping[str, Any] | None = None) -> Suite:
    """Read and check a suite by its name or path; one error lists all that is wrong. `only` keeps what fits."""
    path = find_suite(word)
    content = read_yaml(path)
    tables = content.pop("tables", None) or {"": {}}
    if not isinstance(tables, dict) or not all(isinstance(own, (dict, type(None))) for own in tables.values()):
        raise InputError(f"The suite {str(path)!r}: 'tables' must map names to the keys of a table.")
    strange = [axis for axis in only or {} if axis not in AXES]
    if strange:
        raise InputError(f"--only {strange[0]}: expected one of {', '.join(AXES)}.{nearest(strange[0], AXES)}")
    problems: list[str] = []
    made = []
    for name, own in tables.items():
        shared = {key: value for key, value in content.items() if key != "title" or not own}
        defaults = {**_mapping(shared.get("defaults")), **_mapping((own or {}).get("defaults"))}
        merged = {**shared, **(own or {}), "defaults": defaults}
        place = f"table {name}: " if name else ""
        table = _collect(problems, place, lambda n=name, m=merged: _make_table(str(n), m, only or {}))  # type: ignore[misc]
        made += [table] if table else []
    raise_all(dict.fromkeys(problems), f"The suite {str(path)!r} cannot be used")
    raise_all(_unknown(made, only or {}), f"The suite {str(path)!r} does not have what --only asks for")
    made = [table for table in made if table.cells]
    if not made:
        raise InputError(f"No cell of the suite {str(path)!r} fits --only {_shown(only or {})}.")
    return Suite(path.stem, str(content.get("title", "")) or path.stem, made)


def _make_table(name: str, content: Mapping[str, Any], only: Mapping[str, Any]) -> Table:
    listed = {
        axis: {str(label): None for label in content[axis]}
        for axis in ("datasets", "methods")
        if isinstance(content.get(axis), list)
    }
    file = build(TableFile, {**content, **listed}, "keys")
    problems = list(_problems(file))
    raise_all(problems, "wrong")
    cells = {}
    for place in (place for place in _places(file) if place.fits(only)):
        cell = _collect(problems, f"{place.dataset}, {place.method}: ", lambda p=place: _make_cell(file, p))  # type: ignore[misc]
        if cell:
            cells[place] = cell
    raise_all(dict.fromkeys(problems), "wrong")
    return Table(name, file, cells)


def _places(file: TableFile) -> Iterator[Place]:
    for dataset in file.datasets:
        for setting in file.settings:
            for method in file.methods:
                yield from (Place(dataset, setting, method, seed) for seed in file.seeds)


def _problems(file: TableFile) -> Iterator[str]:
    """Yield what types cannot say: wrong ids, values that no method takes, overrides that would never apply."""
    for role, entries in (("dataset", file.datasets), ("method", file.methods)):
        for label, values in entries.items():
            plugin, available = str((values or {}).get(role, label)), registry.names(f"{role}s")  # type: ignore[arg-type]
            if plugin not in available:
                yield f"no {role} {plugin!r}.{nearest(plugin, available)} Available: {', '.join(available)}"
    if file.published and file.published not in published_tables():
        yield f"no published table {file.published!r}.{nearest(file.published, published_tables())}"
    most = len(PAPER_SPLIT_SEEDS["ul"])
    if file.split_seeds == "paper" and len(file.seeds) > most:
        yield f"seeds: {len(file.seeds)} given, but there are {most} published split seeds"
    known = _labels(file)
    for override in file.overrides:
        if "method" in override.set:
            yield "override sets 'method', which is the row's: say it in methods, under a name of its own"
        for axis, wanted in override.when.items():
            if axis not in known:
                yield f"override for {axis!r}: expected {', '.join(AXES)}.{nearest(axis, AXES)}"
                continue
            for word in _words(wanted):
                if word not in known[axis]:
                    yield f"override for {axis} {word!r}, which the table does not have.{nearest(word, known[axis])}"


def _labels(file: TableFile) -> dict[str, list[str]]:
    """Return the values that each axis of a table has."""
    seeds = [str(seed) for seed in file.seeds]
    return {
        "dataset": list(file.datasets),
        "setting": list(file.settings),
        "method": list(file.methods),
        "seed": seeds,
    }


def _unknown(tables: Sequence[Table], only: Mapping[str, Any]) -> Iterator[str]:
    """Yield every value of --only that no table has."""
    for axis, wanted in only.items():
        known = list(dict.fromkeys(label for table in tables for label in _labels(table.file)[axis]))
        for word in _words(wanted):
            if word not in known:
                yield f"{axis} {word!r}.{nearest(word, known)} It has: {', '.join(known)}"


def _shared_values(file: TableFile, of_dataset: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return what is said for all methods, without the settings that this method does not have but another one has."""
    labels = {str((values or {}).get("method", label)) for label, values in file.methods.items()}
    of_others = {name for label in labels for name in _setting_names(label)} - _setting_names(method)
    shared = {**file.defaults, **{key: value for key, value in of_dataset.items() if key != "dataset"}}
    return {key: value for key, value in shared.items() if key not in of_others}


def _setting_names(method: str) -> set[str]:
    own = dataclasses.fields(registry.load("methods", method).Settings)
    return {entry.name for entry in (*own, *dataclasses.fields(RunSettings))}


def _make_cell(file: TableFile, place: Place) -> Cell:
    of_dataset, of_method = file.datasets[place.dataset] or {}, file.methods[place.method] or {}
    dataset, method = str(of_dataset.get("dataset", place.dataset)), str(of_method.get("method", place.method))
    values: dict[str, Any] = {"template": registry.load("datasets", dataset).facts.template}
    split: dict[str, Any] = {}
    fitting = [override.set for override in file.overrides if place.fits(override.when)]
    for layer in (_shared_values(file, of_dataset, method), of_method, *fitting):
        values |= {key: value for key, value in layer.items() if key not in OWN_KEYS}
        split |= _mapping(layer.get("split"))
    fixed = [name for name in PLACE_SETTINGS if name in values]
    if fixed:
        raise InputError(f"{fixed[0]!r} is not set in a suite: it follows from seeds, learning setting or machine")
    if registry.load("methods", method).presets and not values.get("preset"):
        raise InputError("say which preset (quick or full): left open, it would depend on the machine")
    split_seed = place.seed
    if file.split_seeds == "paper":
        split_seed = PAPER_SPLIT_SEEDS[place.setting][file.seeds.index(place.seed)]
    problems: list[str] = []
    settings = _collect(problems, "", lambda: resolve_settings({**values, "method": method}))
    split_settings = _collect(problems, "split: ", lambda: build(SplitSettings, split, "split values"))
    raise_all(problems, "wrong")
    assert settings and split_settings  # noqa: PT018 (nothing was wrong, so both are there)
    return Cell(dataset, place.setting, place.seed, split_seed, settings, split_settings)


def _collect(problems: list[str], place: str, step: Callable[[], T]) -> T | None:
    """Return what a step gives, or add each line of its error to the problems."""
    try:
        return step()
    except InputError as error:
        head, *lines = str(error).split("\n  - ")
        problems += [f"{place}{line}" for line in lines or [head]]
        return None


def _mapping(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"{value!r}: expected 'key: value' pairs")
    return value


def _words(wanted: object) -> list[str]:
    return [str(word) for word in wanted] if isinstance(wanted, (list, tuple)) else [str(wanted)]


def _shown(only: Mapping[str, Any]) -> str:
    return " ".join(f"{axis}={','.join(_words(wanted))}" for axis, wanted in only.items())
