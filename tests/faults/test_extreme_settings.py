"""Extreme values of every number among the settings of every method: refused, or a run that ends as it should."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from toys import ToyBackbone, write_classes

from captune.core import registry
from captune.core.errors import CaptuneError
from captune.core.settings import parse_overrides
from captune.pipeline import carry_out
from captune.plan import Plan, make_plan
from faults.records import MUTANTS

NAMES = ["cat", "dog", "bird"]
VALUES = (".nan", ".inf", "-.inf", "1e400", "-1", "0", "1e-300", "1e30", "1e15")
SHORT = {"epochs": 2, "iterations": 2, "rounds": 2, "warmup_epochs": 0, "strong_views": 1, "k": 2}
LENGTHS = ("epochs", "iterations", "rounds", "strong_views", "warmup_epochs")
"""Settings that say how much to compute: a large value takes as long as it says."""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("extreme"), NAMES, 4, side=10)


def numbers(method: str) -> list[str]:
    fields = dataclasses.fields(registry.load("methods", method).Settings)
    return [f.name for f in fields if isinstance(f.default, (int, float)) and not isinstance(f.default, bool)]


def plan_with(images: Path, method: str, setting: str, value: str) -> Plan | None:
    """Return the plan, or None if the value is refused."""
    short = {name: number for name, number in SHORT.items() if name in numbers(method)}
    given = {"method": method, "backbone": ToyBackbone(), "workers": 0, "cache": str(images / ".cache")}
    counts = MUTANTS.setdefault("extreme settings", Counter())
    counts["tried"] += 1
    try:
        return make_plan(images, NAMES, None, {**short, **given, **parse_overrides([f"{setting}={value}"])})
    except CaptuneError:
        counts["refused"] += 1
        return None


def check(images: Path, method: str, setting: str, value: str) -> None:
    plan = plan_with(images, method, setting, value)
    if plan is None or (setting in LENGTHS and value in ("1e15", "1e30")):
        return
    try:
        run = carry_out(plan, quiet=True)
    except CaptuneError:
        MUTANTS["extreme settings"]["refused"] += 1
    else:
        MUTANTS["extreme settings"]["accepted"] += 1
        assert np.isfinite(run.predictions.probabilities).all()


@pytest.mark.parametrize("method", registry.names("methods"))
def test_numbers_that_are_none_are_refused(images: Path, method: str) -> None:
    for setting in numbers(method):
        for value in (".nan", ".inf", "-.inf", "1e400"):
            assert plan_with(images, method, setting, value) is None, (setting, value)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", registry.names("methods"))
def test_extreme_values_are_refused_or_used(images: Path, method: str) -> None:
    for setting in numbers(method):
        for value in VALUES:
            check(images, method, setting, value)
