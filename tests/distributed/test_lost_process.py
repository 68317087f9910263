"""Two real processes of one command: one is killed or interrupted, and the resumed run ends with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ranks import NAMES, SHORT
from toys import write_classes

from captune.results.run_folder import read_run_card

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ALONE = [sys.executable, "-m", "captune.cli"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
RESTARTING = [*TORCHRUN, "--max-restarts", "1", "-m", "captune.cli"]
TWO = ["--devices", "2", "--accelerator", "cpu"]
LONG = {**SHORT, "epochs": 30, "iterations": 25, "tau": 0.3, "keep_better": "false"}


class Commands:
    """Runs of the same training with one cache, so that only the training differs."""

    def __init__(self, folder: Path, photos: Path, dual: Path) -> None:
        self.folder = folder
        settings = [part for key, value in LONG.items() for part in ("--set", f"{key}={value}")]
        self.options = ["adapt", str(photos), "--classes", ",".join(NAMES), "--backbone", f"dual:{dual}"]
        self.options += ["--method", "cap", "--preset", "quick", "--workers", "0", *settings]

    def start(self, out: Path, prefix: list[str], *more: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CAPTUNE_CACHE": str(self.folder / "cache")}
        return subprocess.Popen(
            [*prefix, *self.options, "--out", str(out), *more], stderr=subprocess.PIPE, text=True, env=environment
        )

    def finish(self, out: Path, *more: str) -> None:
        process = self.start(out, ALONE, *more)
        said = process.communicate(timeout=600)[1]
        assert process.returncode == 0, said

    def start_training(self, out: Path, prefix: list[str], *more: str) -> tuple[subprocess.Popen[str], list[int]]:
        """Start a run, wait until an epoch is saved, and return it with the ids of its processes by rank."""
        process = self.start(out, prefix, *more)
        deadline = time.monotonic() + 900  # on a busy machine, two processes take minutes to start
        while not list((out / "checkpoints").glob("*.safetensors")):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return process, workers_of(process.pid)


def workers_of(parent: int) -> list[int]:
    """Return the processes that a launcher started, in the order of their ranks."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    commands = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return sorted(child for child, command in commands.items() if b"resource_tracker" not in command)


def bits(run: Path) -> list[bytes]:
    files = ("predictions.csv", "pseudo_labels.csv", "classifier/classifier.safetensors")
    return [(run / name).read_bytes() for name in files]


def losses(run: Path) -> list[float]:
    return [facts["loss"] for facts in read_run_card(run)["rounds"] if facts["step"] == "epoch"]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory, dual_folder: Path) -> Commands:
    folder = tmp_path_factory.mktemp("runs")
    commands = Commands(folder, write_classes(tmp_path_factory.mktemp("photos"), NAMES, 5), dual_folder)
    commands.finish(folder / "whole", *TWO)
    return commands


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_run_and_it_can_be_resumed(commands: Commands, killed: int, tmp_path: Path) -> None:
    out, whole = tmp_path / "run", commands.folder / "whole"
    process, workers = commands.start_training(out, ALONE, *TWO)
    os.kill(workers[killed], signal.SIGKILL)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, said
    assert f"Process {killed} of 2 was killed by SIGKILL" in errors[0]
    assert "--resume" in errors[0]
    assert "Traceback" not in said
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert not (out / "run.json").exists()

    commands.finish(out, "--resume", *(TWO if killed == 0 else []))
    assert read_run_card(out)["environment"]["processes"] == 2 - killed
    if killed == 0:
        assert bits(out) == bits(whole)
    else:  # one process rounds differently than two, which grows from step to step
        assert len(losses(out)) == len(losses(whole)) == LONG["epochs"]
        assert np.allclose(losses(out)[:5], losses(whole)[:5], rtol=1e-4)


@pytest.mark.parametrize("interrupted", ["launcher", "worker"])
def test_an_interrupt_stops_all_processes_after_the_same_step(
    commands: Commands, interrupted: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process, workers = commands.start_training(out, ALONE, *TWO)
    os.kill(process.pid if interrupted == "launcher" else workers[1], signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert said.count("Stopped in epoch") == 1
    commands.finish(out, "--resume", *TWO)
    assert bits(out) == bits(commands.folder / "whole")


def test_processes_end_with_a_killed_launcher(commands: Commands, tmp_path: Path) -> None:
    process, workers = commands.start_training(tmp_path / "run", ALONE, *TWO)
    process.kill()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.communicate()


def test_processes_restarted_by_torchrun_resume(commands: Commands, tmp_path: Path) -> None:
    process, workers = commands.start_training(tmp_path / "run", RESTARTING)
    os.kill(workers[1], signal.SIGKILL)
    said = process.communicate(timeout=600)[1]
    assert process.returncode == 0, said
    assert bits(tmp_path / "run") == bits(commands.folder / "whole")
