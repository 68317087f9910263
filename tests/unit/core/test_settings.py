"""Settings are strict, say everything that is wrong at once, and explain themselves."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from captune.core.errors import InputError
from captune.core.settings import RunSettings, build, build_run, explain, parse_overrides, read_yaml


@dataclass(frozen=True)
class Example:
    """Settings of an example.

    Attributes:
        rate: How fast it learns, in steps
            that may need two lines.
        rounds: How often.
        kind: Which one.
        layers: Where.
    """

    rate: float = 0.1
    rounds: int = 2
    kind: Literal["a", "b"] = "a"
    layers: tuple[int, ...] = ()


def test_values_of_the_right_type_are_taken() -> None:
    built = build(Example, {"rate": 2, "kind": "b", "layers": [1, 2]}, "settings")
    assert built == Example(2.0, 2, "b", (1, 2))


@pytest.mark.parametrize(
    "values",
    [
        {"rounds": "2"},
        {"rounds": 2.5},
        {"rounds": True},
        {"rate": "0.1"},
        {"rate": float("nan")},
        {"rate": float("inf")},
        {"kind": "c"},
        {"layers": 3},
        {"rate": None},
        {"rate": object()},
    ],
)
def test_values_of_a_wrong_type_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="These settings cannot be used"):
        build(Example, values, "settings")


def test_all_problems_of_a_run_and_its_method_are_listed_at_once() -> None:
    values = {"rat": 1, "rounds": "x", "batch_size": 0, "workers": -2, "seed": 2**70, "bakbone": "x"}
    with pytest.raises(InputError) as caught:
        build_run(values, Example)
    message = str(caught.value)
    for words in (
        "no setting 'rat'. Did you mean 'rate'",
        "no setting 'bakbone'. Did you mean 'backbone'",
        "rounds = 'x'",
        "rounds: How often.",
        "batch_size = 0",
        "workers = -2",
        "seed = ",
    ):
        assert words in message
    assert message.count("\n  - ") == 6


def test_run_and_method_settings_are_told_apart() -> None:
    run, own = build_run({"seed": 5, "rounds": 7}, Example)
    assert (run.seed, own.rounds) == (5, 7)
    assert run.method == RunSettings.method


def test_a_settings_file_of_an_older_version_is_read() -> None:
    run, _ = build_run({"seed": 5, "strategy": "auto", "num_nodes": 1}, Example)
    assert run == RunSettings(seed=5)


def test_settings_of_the_authors_recipe_are_dropped_only_if_they_followed_the_paper() -> None:
    of_paper = {"recipe": "paper", "tendency": None, "growth": None, "growth_limit": 0.8, "scale_margin": True}
    assert build_run({**of_paper, "seed": 5}, Example)[0] == RunSettings(seed=5)
    with pytest.raises(InputError, match=r"no setting 'recipe'\. CAP follows the paper only"):
        build_run({**of_paper, "recipe": "released"}, Example)


def test_a_settings_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("\ufeffrate: 1e-3\nrounds: 4\nlayers: [1, 2]\nkind: b\n", encoding="utf-8")
    assert build(Example, read_yaml(path), "settings") == Example(0.001, 4, "b", (1, 2))
    path.write_text("# nothing\n", encoding="utf-8")
    assert read_yaml(path) == {}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"rate: 1\nrounds: 2\nrate: 3\n", "'rate'"),
        (b"a: {b: 1, b: 2}\n", "'b'"),
        (b"- rate\n", "'key: value' lines"),
        (b"1: 2\n", "'key: value' lines"),
        (b"just words\n", "'key: value' lines"),
        (b"rate: [1\n", "not valid YAML"),
        (b"rate: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
        (b"rate: 2024-99-99\n", "not valid YAML"),
        (b"\xff\xfe", "not valid YAML"),
        (b"a: " + b"[" * 900, "not valid YAML"),
    ],
    ids=["twice", "nested twice", "list", "number key", "words", "open", "python", "date", "bytes", "deep"],
)
def test_a_file_that_is_no_settings_file(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "s.yaml").write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_yaml(tmp_path / "s.yaml")


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.yaml"):
        with pytest.raises(InputError, match="cannot be read"):
            read_yaml(path)


def test_overrides_are_read_as_yaml() -> None:
    words = ["rate=1e-3", "kind=b", "layers=[1, 2]", "flag=true", "text='7'", "empty=", "equation=a=b"]
    assert parse_overrides(words) == {
        "rate": 0.001,
        "kind": "b",
        "layers": [1, 2],
        "flag": True,
        "text": "7",
        "empty": None,
        "equation": "a=b",
    }


def test_all_wrong_overrides_are_listed_at_once() -> None:
    with pytest.raises(InputError) as caught:
        parse_overrides(["rate", "=3", "kind=[", "ok=1"])
    assert str(caught.value).count("\n  - ") == 3


def test_docstrings_become_help() -> None:
    assert explain(Example)["rate"] == "How fast it learns, in steps that may need two lines."
    assert list(explain(Example)) == ["rate", "rounds", "kind", "layers"]
    assert set(explain(RunSettings)) == {field.name for field in dataclasses.fields(RunSettings)}
    assert explain(int) == {}


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**60), 2**60), st.lists(st.integers(-9, 9)))
def test_what_is_written_as_yaml_is_read_back(rate: float, rounds: int, layers: list[int]) -> None:
    text = yaml.safe_dump({"rate": rate, "rounds": rounds, "layers": layers}, default_flow_style=True, width=10**6)
    values = parse_overrides([f"all={text}"])["all"]
    assert build(Example, values, "settings") == Example(rate, rounds, "a", tuple(layers))


@dataclass(frozen=True)
class Shared:
    """What many share.

    Attributes:
        rate: How fast,
            in steps.
    """

    rate: float = 0.1


@dataclass(frozen=True)
class Own(Shared):
    """One more.

    Attributes:
        k: How many.
    """

    rate: float = 0.2
    k: int = 1


def test_settings_that_extend_others_are_explained_whole() -> None:
    assert explain(Own) == {"rate": "How fast, in steps.", "k": "How many."}
