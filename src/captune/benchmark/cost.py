"""The estimated cost of cells before any is run: images to encode, training steps, and time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from captune.benchmark.cells import Cell, Results, State, read_result
from captune.benchmark.environment import Environment
from captune.benchmark.suite import Speed
from captune.core import registry
from captune.core.errors import CaptuneError, InputError


@dataclass(frozen=True)
class SplitSizes:
    """Numbers of images and classes of a cell."""

    unlabeled: int
    labeled: int
    test: int
    classes: int
    targets: int


@dataclass(frozen=True)
class CellCost:
    """The estimated cost of one cell; `to_encode` counts images that no earlier cell encodes."""

    cell: Cell
    state: State
    is_found: bool
    problem: str
    sizes: SplitSizes | None
    """None if the sizes depend on files that are missing."""
    to_encode: int
    steps: int
    seconds: float | None


def estimate_costs(cells: Sequence[Cell], environment: Environment, results: Results, speed: Speed) -> list[CellCost]:
    """Return the cost of every cell, in order; cells reuse the embeddings of earlier ones."""
    encoded: set[tuple[object, ...]] = set()
    costs = []
    for cell in cells:
        is_found, problem = environment.is_found(cell.dataset), ""
        state: State = "to do"
        try:
            state = results.state(cell, environment.inputs(cell))
        except CaptuneError as error:
            problem = str(error)
        sizes = split_sizes(cell, environment)
        steps = count_steps(cell.settings, sizes) if sizes else 0
        parts = encodings(cell, sizes) if sizes else {}
        to_encode = 0 if state == "finished" else sum(n for key, n in parts.items() if key not in encoded)
        encoded |= set(parts)
        seconds = 0.0 if state == "finished" else _seconds(cell, results, to_encode, steps, sizes, speed)
        costs.append(CellCost(cell, state, is_found, problem, sizes, to_encode, steps, seconds))
    return costs


def split_sizes(cell: Cell, environment: Environment) -> SplitSizes | None:
    """Return the sizes of a cell's split from the files, or else from the published sizes of the dataset.

    A long tail is computed for classes of equal size.
    """
    facts = environment.reader(cell.dataset).facts
    n_pool, n_test, n_classes = facts.n_pool, facts.n_test, facts.n_classes
    with suppress(InputError):  # files that are missing or damaged
        data = environment.find(cell.dataset).data
        n_pool, n_test, n_classes = len(data.pool), len(data.test), len(data.names)
    if n_pool is None or n_test is None or n_classes is None:
        return None
    split = cell.split
    n_pool += n_test if split.leaky else 0
    n_absent = int(n_classes * split.absent_share)
    n_pool, n_test = (n * (n_classes - n_absent) // n_classes for n in (n_pool, n_test))
    n_seen = int(n_classes * split.seen_share) if cell.setting == "trzsl" else 0
    labeled = {"ul": 0, "ssl": split.n_labels * n_classes, "trzsl": n_pool * n_seen // n_classes}[cell.setting]
    kept = split.unlabeled_share
    if split.imbalance > 1:
        places = max(1, n_classes - n_seen - 1)
        kept *= sum(split.imbalance ** (-i / places) for i in range(n_classes - n_seen)) / (n_classes - n_seen)
    unlabeled = int((n_pool - labeled) * kept)
    if split.images_per_class:
        unlabeled = min(unlabeled, split.images_per_class * (n_classes - n_seen - n_absent))
    return SplitSizes(unlabeled, labeled, n_test, n_classes, n_classes - n_seen)


def count_steps(settings: Mapping[str, Any], sizes: SplitSizes) -> int:
    """Return the number of training steps: epochs of fixed length, or passes over the pseudo-labeled images."""
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


def encodings(cell: Cell, sizes: SplitSizes) -> dict[tuple[object, ...], int]:
    """Return the number of images to encode by cache key; cells with equal keys share embeddings."""
    settings = cell.settings
    shared = (cell.dataset, settings["backbone"])
    parts: dict[tuple[object, ...], int] = {(*shared, "plain"): sizes.unlabeled + sizes.labeled + sizes.test}
    tuner = settings.get("tuner")
    prompted = registry.load("tuners", tuner).prompted_towers if tuner in registry.names("tuners") else frozenset()
    if settings.get("strong_views") and "image" not in prompted:
        n_images = sizes.unlabeled
        if "iterations" not in settings and "k" in settings:  # strong views of pseudo-labeled images only
            n_images = min(n_images, int(settings["k"]) * sizes.targets)
        views = (*shared, "strong", cell.seed, cell.setting, settings["strong_views"])
        parts[views] = n_images * int(settings["strong_views"])
    return parts


def _seconds(
    cell: Cell, results: Results, to_encode: int, steps: int, sizes: SplitSizes | None, speed: Speed
) -> float | None:
    """Return the mean time of finished cells that differ only in seed or settings, else what the speed gives."""
    if sizes is None:
        return None
    files = sorted((results.folder / "cells").glob(f"{cell.group}-*.json"))
    times = [float(content["seconds"]["all"]) for file in files if (content := read_result(file)) is not None]
    similar = [seconds for seconds in times if seconds > 0]
    if similar:
        return statistics.fmean(similar)
    return to_encode / speed.images_per_second + steps / speed.steps_per_second
