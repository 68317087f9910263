"""Seeds, workers, remarks and what a run records of its environment."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import torch

from captune.core import runtime
from captune.core.arrays import softmax_rows, unit_rows
from captune.core.errors import InputError, nearest, raise_all
from captune.core.runtime import duration


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def test_the_same_seed_gives_the_same_numbers() -> None:
    runtime.start(seed=5)
    first = draws()
    runtime.start(seed=5)
    assert draws() == first
    runtime.start(seed=6)
    assert not set(first) & set(draws())


def test_workers_default_to_the_cores_and_must_be_possible() -> None:
    assert runtime.start().workers == runtime.start(workers=-1).workers == runtime.default_workers()
    assert 1 <= runtime.default_workers() <= 8
    assert runtime.start(workers=0).workers == 0
    with pytest.raises(InputError, match="workers = -2"):
        runtime.start(workers=-2)


def test_remarks_go_to_standard_error_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    engine = runtime.start()
    engine.say("classes [/red] and [bold]")
    with engine.progress("Doing", 3) as advance:
        advance(3)
    captured = capsys.readouterr()
    assert "classes [/red] and [bold]" in captured.err
    assert "3/3" in captured.err
    assert captured.out == ""


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    engine = runtime.start(quiet=True)
    engine.say("hello")
    with engine.progress("Doing", 3) as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")


def test_versions_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = runtime.versions()
    assert found["torch"] == torch.__version__.split("+")[0] or found["torch"] == torch.__version__
    assert {"python", "captune", "transformers", "numpy", "pillow"} <= set(found)


def test_rows_are_scaled_and_softened() -> None:
    rows = unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32))
    assert np.allclose(rows, [[0.6, 0.8], [0, 0]])
    soft = softmax_rows(np.array([[1000.0, 1000.0], [0.0, np.log(3.0)]], dtype=np.float32))
    assert np.allclose(soft, [[0.5, 0.5], [0.25, 0.75]])
    assert soft.dtype == np.float32


def test_problems_are_listed_together_and_none_is_no_error() -> None:
    raise_all([], "Nothing")
    with pytest.raises(InputError, match="Heading:\n  - one\n  - two"):
        raise_all(iter(["one", "two"]), "Heading")
    assert nearest("Zero_Shto", ["zero_shot", "cap"]) == " Did you mean 'zero_shot'?"
    assert nearest("qqq", ["zero_shot"]) == ""


def test_the_time_behind_every_bar_is_kept_by_its_words() -> None:
    engine = runtime.start(quiet=True)
    for _ in range(2):
        with engine.progress("Doing", 1):
            time.sleep(0.02)
    assert 0.04 <= engine.spent.pop("Doing") < 10
    assert engine.spent == {}


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (89.4, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h")]
)
def test_times_are_said_as_a_person_says_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_seeded_draws_depend_on_their_numbers_alone() -> None:
    engine = runtime.start(seed=5, quiet=True)
    outside = float(torch.rand(1))
    with engine.seeded(1):
        first = float(torch.rand(1))
    after = float(torch.rand(1))
    runtime.start(seed=5, quiet=True)
    with engine.seeded(1):
        assert float(torch.rand(1)) == first
    with engine.seeded(2):
        assert float(torch.rand(1)) != first
    assert [float(torch.rand(1)), float(torch.rand(1))] == [outside, after]  # the others draw as if nothing was drawn
