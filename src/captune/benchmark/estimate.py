"""What cells will need, before any is run: images to encode, steps to train, and about how long that takes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from captune.benchmark.cells import Cell
from captune.benchmark.results import Results, State, read_file
from captune.benchmark.suite import Speed
from captune.benchmark.surroundings import Surroundings
from captune.core import registry
from captune.core.errors import CaptuneError, InputError


@dataclass(frozen=True)
class Sizes:
    """How many images and classes of each kind a cell has."""

    unlabeled: int
    labeled: int
    test: int
    classes: int
    targets: int


@dataclass(frozen=True)
class Need:
    """What one cell needs.

    Attributes:
        cell: The cell.
        state: How far it is.
        is_found: Whether its dataset is on this machine.
        problem: What is missing, in a sentence.
        sizes: How many images it has; None where only the dataset's files could tell.
        to_encode: Images that no earlier cell of the list has encoded.
        steps: Training steps, as far as settings tell.
        seconds: Estimated time; 0 for a finished cell.
    """

    cell: Cell
    state: State
    is_found: bool
    problem: str
    sizes: Sizes | None
    to_encode: int
    steps: int
    seconds: float | None


def estimate(cells: Sequence[Cell], here: Surroundings, results: Results, speed: Speed) -> list[Need]:
    """Return what every cell needs, in order; cells share what earlier ones have encoded."""
    encoded: set[tuple[object, ...]] = set()
    needs = []
    for cell in cells:
        is_found, problem = here.is_found(cell.dataset), ""
        state: State = "to do"
        try:
            state = results.state(cell, here.inputs(cell))
        except CaptuneError as error:
            problem = str(error)
        sizes = sizes_of(cell, here)
        steps = count_steps(cell.settings, sizes) if sizes else 0
        parts = encodings(cell, sizes) if sizes else {}
        to_encode = 0 if state == "finished" else sum(n for key, n in parts.items() if key not in encoded)
        encoded |= set(parts)
        seconds = 0.0 if state == "finished" else _seconds(cell, results, to_encode, steps, sizes, speed)
        needs.append(Need(cell, state, is_found, problem, sizes, to_encode, steps, seconds))
    return needs


def sizes_of(cell: Cell, here: Surroundings) -> Sizes | None:
    """Return the sizes of a cell's split, by the files where they are there, else by what is known of the dataset.

    Of a long tail they are those of classes of one size.
    """
    facts = here.reader(cell.dataset).facts
    n_pool, n_test, n_classes = facts.n_pool, facts.n_test, facts.n_classes
    with suppress(InputError):  # files that are missing or damaged
        data = here.find(cell.dataset).data
        n_pool, n_test, n_classes = len(data.pool), len(data.test), len(data.names)
    if n_pool is None or n_test is None or n_classes is None:
        return None
    split = cell.split
    n_seen = int(n_classes * split.seen_share) if cell.setting == "trzsl" else 0
    labeled = {"ul": 0, "ssl": split.n_labels * n_classes, "trzsl": n_pool * n_seen // n_classes}[cell.setting]
    kept = split.unlabeled_share
    if split.imbalance > 1:
        places = max(1, n_classes - n_seen - 1)
        kept *= sum(split.imbalance ** (-i / places) for i in range(n_classes - n_seen)) / (n_classes - n_seen)
    return Sizes(int((n_pool - labeled) * kept), labeled, n_test, n_classes, n_classes - n_seen)


def count_steps(settings: Mapping[str, Any], sizes: Sizes) -> int:
    """Return the steps that settings ask for: epochs of fixed length, or passes over the pseudo-labeled images."""
    epochs = settings.get("epochs")
    if epochs is None:
        return 0
    if settings.get("iterations"):
        return int(epochs * settings["iterations"])
    rounds, batch = int(settings.get("rounds", 1)), int(settings.get("train_batch", 1))
    if "rounds" in settings:  # pseudo-labels grow evenly up to all images
        images = [sizes.unlabeled * i // rounds for i in range(1, rounds + 1)]
    else:
        images = [min(sizes.unlabeled, int(settings.get("k", 1)) * sizes.targets)]
    per_round = [math.ceil((n + sizes.labeled) / batch) for n in images]
    return int(settings.get("ensemble", 1)) * int(epochs) * sum(per_round)


def encodings(cell: Cell, sizes: Sizes) -> dict[tuple[object, ...], int]:
    """Return how many images of each kind are encoded, by what makes them the same as another cell's."""
    settings = cell.settings
    shared = (cell.dataset, settings["backbone"])
    parts: dict[tuple[object, ...], int] = {(*shared, "plain"): sizes.unlabeled + sizes.labeled + sizes.test}
    tuner = settings.get("tuner")
    prompted = registry.load("tuners", tuner).prompted_towers if tuner in registry.names("tuners") else frozenset()
    if settings.get("strong_views") and "image" not in prompted:
        n_images = sizes.unlabeled
        if "iterations" not in settings and "k" in settings:  # only pseudo-labeled images are seen in crops
            n_images = min(n_images, int(settings["k"]) * sizes.targets)
        views = (*shared, "strong", cell.seed, cell.setting, settings["strong_views"])
        parts[views] = n_images * int(settings["strong_views"])
    return parts


def _seconds(
    cell: Cell, results: Results, to_encode: int, steps: int, sizes: Sizes | None, speed: Speed
) -> float | None:
    """Return the mean time of cells like this one, else what the assumed speed gives."""
    if sizes is None:
        return None
    alike = [found for found in _finished_like(cell, results) if found > 0]
    if alike:
        return statistics.fmean(alike)
    return to_encode / speed.images_per_second + steps / speed.steps_per_second


def _finished_like(cell: Cell, results: Results) -> list[float]:
    """Return the seconds of finished cells of the same dataset, setting and method, whatever their seed."""
    pattern = f"{cell.dataset}-{cell.setting}-{cell.method}-*.json"
    contents = (read_file(path) for path in sorted((results.folder / "cells").glob(pattern)))
    return [float(content["seconds"]["all"]) for content in contents if content is not None]
