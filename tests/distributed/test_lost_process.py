"""What happens to two processes when one is killed, stopped or interrupted, and how the run goes on afterwards."""

from __future__ import annotations

import json
import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import NAMES, adapt, adapt_slowly, facts_of, launch
from toys import write_classes

from captune.results.run import read_run_card

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CHANGES: dict[str, Any] = {"tau": 0.3, "epochs": 6}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("photos"), NAMES, 5)


def start(folder: Path, photos: Path, dual: Path, pause: float = 0.3) -> list[BaseProcess]:
    """Start two slow processes and wait until an epoch is saved."""
    started = launch(adapt_slowly, folder, 2, photos, f"dual:{dual}", pause, CHANGES)
    deadline = time.monotonic() + 120
    while not list((folder / "run" / "checkpoints").glob("*.safetensors")):
        assert time.monotonic() < deadline, [path.read_text() for path in folder.glob("*.err")]
        assert all(process.is_alive() for process in started), [path.read_text() for path in folder.glob("*.err")]
        time.sleep(0.02)
    return started


def losses(facts: list[dict[str, Any]]) -> list[float]:
    return [entry["loss"] for entry in facts if entry["step"] == "epoch"]


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_other_and_any_number_goes_on(
    photos: Path, dual_folder: Path, tmp_path: Path, killed: int
) -> None:
    started = start(tmp_path, photos, dual_folder)
    os.kill(started[killed].pid or 0, signal.SIGKILL)
    began = time.monotonic()
    other = started[1 - killed]
    other.join(60)
    assert not other.is_alive()
    assert time.monotonic() - began < 60
    assert other.exitcode not in (0, None)
    said = (tmp_path / f"{1 - killed}.err").read_text()
    assert "is gone" in said
    assert "--resume" in said
    assert not (tmp_path / "run" / "run.json").exists()

    whole = facts_of(adapt(photos, f"dual:{dual_folder}", "quick", cache=str(tmp_path / "cache"), **CHANGES))
    if killed == 0:  # two go on where two were, else one does
        resumed = launch(adapt_slowly, tmp_path, 2, photos, f"dual:{dual_folder}", 0.0, CHANGES)
        for process in resumed:
            process.join(120)
        assert [process.exitcode for process in resumed] == [0, 0], (tmp_path / "0.err").read_text()
    else:
        out, cache = tmp_path / "run", str(tmp_path / "cache")
        adapt(photos, f"dual:{dual_folder}", "quick", out=out, cache=cache, resume=True, **CHANGES)
    card = read_run_card(tmp_path / "run")
    assert card["environment"]["processes"] == 2 - killed
    assert np.allclose(losses(card["rounds"]), losses(whole["epochs"]), rtol=1e-5)
    predicted = (tmp_path / "run" / "predictions.csv").read_text().splitlines()[1:]
    assert [NAMES.index(row.split(",")[1]) for row in predicted] == whole["predicted"]


def test_a_process_that_hangs_is_noticed_too(photos: Path, dual_folder: Path, tmp_path: Path) -> None:
    started = start(tmp_path, photos, dual_folder)
    os.kill(started[1].pid or 0, signal.SIGSTOP)  # its connections stay open: only signs of life tell
    try:
        started[0].join(60)
        assert started[0].exitcode == 2
        assert "Process 1 of 2 is gone" in (tmp_path / "0.err").read_text()
    finally:
        os.kill(started[1].pid or 0, signal.SIGKILL)


def test_an_interrupt_of_one_stops_both_after_the_same_step(photos: Path, dual_folder: Path, tmp_path: Path) -> None:
    started = start(tmp_path, photos, dual_folder)
    os.kill(started[1].pid or 0, signal.SIGINT)
    for process in started:
        process.join(60)
        assert process.exitcode == 1
    assert all("KeyboardInterrupt" in (tmp_path / f"{rank}.err").read_text() for rank in range(2))
    out, cache = tmp_path / "run", str(tmp_path / "cache")
    whole = adapt(photos, f"dual:{dual_folder}", "quick", cache=cache, **CHANGES)
    resumed = adapt(photos, f"dual:{dual_folder}", "quick", out=out, cache=cache, resume=True, **CHANGES)
    assert np.allclose(losses(list(resumed.rounds)), losses(list(whole.rounds)), rtol=1e-5)
    assert json.loads((out / "run.json").read_text())["environment"]["processes"] == 1
