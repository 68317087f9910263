"""Two real processes on the CPU: each has its own part of every batch, and together they do what one process does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import NAMES, SHORT, adapt, adapt_and_tell, facts_of, launch, spied
from toys import write_classes
from uneven_steps import N_IMAGES, N_STEPS, take_uneven_steps


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = write_classes(tmp_path_factory.mktemp("photos"), NAMES, 6)
    (base / "cat" / "broken.png").write_bytes(b"no image")
    (base / "striped bird" / "broken.png").write_bytes(b"no image either")
    return base


@pytest.fixture(scope="module", params=["quick", "full"])
def both(
    request: pytest.FixtureRequest, photos: Path, dual_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], list[dict[str, Any]], Path]:
    """Return what one process found, and each of two."""
    folder = tmp_path_factory.mktemp("two")
    file = folder / "descriptions.yaml"
    file.write_text("".join(f"{name}:\n  - the {name} in a field\n  - a striped tree\n" for name in NAMES))
    changes = {"tau": 0.3, "batch_size": 4, "describe": "all", "describer": f"file:{file}", "class_texts": "aligned"}
    started = launch(adapt_and_tell, folder, 2, photos, f"dual:{dual_folder}", request.param, changes)
    record: dict[str, list[Any]] = {"steps": [], "asked": []}
    with pytest.MonkeyPatch.context() as patch:
        from captune.describers.file import FileDescriber
        from captune.training.batch_sources import EmbeddingSource, PixelSource

        for cls, name in ((EmbeddingSource, "views"), (PixelSource, "views"), (FileDescriber, "describe")):
            patch.setattr(cls, name, getattr(cls, name))  # so that what `spied` replaces comes back
        spied(record)
        run = adapt(
            photos, f"dual:{dual_folder}", request.param, out=folder / "one", cache=str(folder / "c"), **changes
        )
    for process in started:
        process.join(120)
    errors = [(folder / f"{rank}.err").read_text() for rank in range(2)]
    assert [process.exitcode for process in started] == [0, 0], errors
    two = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    one: dict[str, Any] = json.loads(json.dumps({**facts_of(run), **record}))
    return one, two, folder


def test_losses_and_parameters_are_those_of_one_process(both: Any) -> None:
    one, two, _ = both
    assert two[0]["seen_by"] == 2
    losses = [[facts["loss"] for facts in told["epochs"]] for told in (one, *two)]
    assert len(losses[0]) == SHORT["epochs"]
    assert np.abs(np.subtract(losses[0], losses[1])).max() < 1e-5
    assert losses[1] == losses[2]
    for name, values in one["parameters"].items():
        assert np.allclose(values, two[0]["parameters"][name], atol=1e-4), name
        assert two[0]["parameters"][name] == two[1]["parameters"][name], name
    assert np.allclose(one["probabilities"], two[0]["probabilities"], atol=1e-4)


def test_pseudo_labels_counts_and_margins_are_those_of_one_process(both: Any) -> None:
    one, two, _ = both
    assert len(one["history"]) >= 2
    for told in two:
        assert told["history"] == one["history"]
        assert told["predicted"] == one["predicted"]
        for facts, other in zip(one["epochs"], told["epochs"], strict=True):
            assert facts["accepted"] == other["accepted"]
            assert facts["pseudo_labeled"] == other["pseudo_labeled"]
            assert facts["accepted_share"] == other["accepted_share"]
            assert facts["largest_margin"] == pytest.approx(other["largest_margin"], abs=1e-3)
    assert sum(one["epochs"][-1]["accepted"]) > 0


def test_no_process_repeats_the_images_of_another(both: Any) -> None:
    one, two, _ = both
    assert len(one["steps"]) == len(two[0]["steps"]) == SHORT["epochs"] * SHORT["iterations"]
    for whole, first, second in zip(one["steps"], two[0]["steps"], two[1]["steps"], strict=True):
        for kind in range(3):
            assert sorted(first[kind] + second[kind]) == sorted(whole[kind])
            assert abs(len(first[kind]) - len(second[kind])) <= 1
    for mine, other in zip(two[0]["embedded"], two[1]["embedded"], strict=True):
        assert not set(mine) & set(other)
    assert sorted(two[0]["embedded"][0] + two[1]["embedded"][0]) == list(range(20))


def test_what_only_one_process_saw_all_know(both: Any) -> None:
    one, two, _ = both
    assert len(one["skipped"]) == 2
    assert two[0]["skipped"] == two[1]["skipped"] == one["skipped"]
    assert sorted(two[0]["asked"]) == sorted(one["asked"]) == sorted(NAMES)
    assert two[1]["asked"] == []  # the describer is asked once for all
    assert two[1]["sentences"] == one["sentences"] != {}


def test_the_first_process_writes(both: Any) -> None:
    _, _, folder = both
    card = json.loads((folder / "run" / "run.json").read_text())
    assert card["environment"]["processes"] == 2
    assert card["settings"]["devices"] == 2
    assert not (folder / "run" / "checkpoints").exists()
    tables = [(folder / run / "predictions.csv").read_text().splitlines() for run in ("one", "run")]
    assert [row.split(",")[:2] for row in tables[0]] == [row.split(",")[:2] for row in tables[1]]


@pytest.mark.parametrize(("tuner", "is_empty"), [("feature_adapter", False), ("maple", False), ("maple", True)])
def test_a_process_without_an_accepted_image_or_any_goes_along(
    clip_folder: Path, tmp_path: Path, tuner: str, is_empty: bool
) -> None:
    told = {}
    for n in (1, 2):
        for process in (started := launch(take_uneven_steps, tmp_path / str(n), n, clip_folder, tuner, is_empty)):
            process.join(120)
        errors = [(tmp_path / str(n) / f"{rank}.err").read_text() for rank in range(n)]
        assert [process.exitcode for process in started] == [0] * n, errors
        told[n] = [json.loads((tmp_path / str(n) / f"{rank}.json").read_text()) for rank in range(n)]
    (one,), two = told[1], told[2]
    assert [facts["agreed"] for facts in two] == [N_IMAGES // 2, 0]
    for facts in two:
        assert sum(facts["accepted"]) == sum(one["accepted"]) > 0
        assert facts["offered"] == one["offered"] == N_IMAGES * N_STEPS // (2 if is_empty else 1)
        assert facts["loss"] == pytest.approx(one["loss"], abs=1e-5)
        for name, values in one["parameters"].items():
            assert np.allclose(facts["parameters"][name], values, atol=1e-5), name
