"""The command line in several processes, started by itself and by torchrun; problems are told once."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import NAMES, SHORT
from toys import write_classes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ALONE = [sys.executable, "-m", "captune.cli"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "captune.cli"]


def run(words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    known = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(words, check=False, capture_output=True, text=True, env=known, timeout=600)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("photos"), NAMES, 4)


def adapt(photos: Path, dual: Path, out: Path) -> list[str]:
    settings = [word for key, value in {**SHORT, "epochs": 2}.items() for word in ("--set", f"{key}={value}")]
    words = ["adapt", str(photos), "--classes", ",".join(NAMES), "--backbone", f"dual:{dual}", "--method", "cap"]
    return [*words, "--preset", "full", "--out", str(out), *settings]


@pytest.fixture(scope="module")
def runs(photos: Path, dual_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, words in {"one": ALONE, "two": ALONE, "torchrun": TORCHRUN}.items():
        more = ["--devices", "2", "--strategy", "ddp", "--accelerator", "cpu"] if name == "two" else []
        done = run([*words, *adapt(photos, dual_folder, folder / name), *more], CAPTUNE_CACHE=str(folder / f"c-{name}"))
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("Run folder") == 1  # the first process speaks for all
        assert "Warning" not in done.stderr.replace("W1", "")
    return folder


def test_runs_agree_however_they_were_started(runs: Path) -> None:
    cards = {name: json.loads((runs / name / "run.json").read_text()) for name in ("one", "two", "torchrun")}
    assert {name: card["environment"]["processes"] for name, card in cards.items()} == {
        "one": 1,
        "two": 2,
        "torchrun": 2,
    }
    losses = [[r["loss"] for r in card["rounds"] if r["step"] == "epoch"] for card in cards.values()]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)


def test_predict_and_evaluate_share_the_images(runs: Path, photos: Path, tmp_path: Path) -> None:
    tables = []
    for number, words in enumerate((ALONE, TORCHRUN)):
        out = tmp_path / f"{number}.csv"
        assert run([*words, "predict", str(runs / "one"), str(photos), "--out", str(out)]).returncode == 0
        tables.append([row[:2] for row in csv.reader(out.open())])
    assert tables[0] == tables[1]
    assert len(tables[0]) == 13
    words = ["evaluate", str(runs / "one"), str(photos), "--labels", "folders", "--json"]
    one, two = (run([*ALONE, *words, *more]) for more in ([], ["--devices", "2", "--accelerator", "cpu"]))
    assert json.loads(one.stdout)["accuracy"] == json.loads(two.stdout)["accuracy"]


def test_a_problem_is_told_once(runs: Path, photos: Path, dual_folder: Path) -> None:
    done = run([*ALONE, *adapt(photos, dual_folder, runs / "one"), "--devices", "2", "--accelerator", "cpu"])
    assert done.returncode == 2
    assert done.stderr.count("holds a run: pass --overwrite") == 1
    wrong = run([*ALONE, *adapt(photos, dual_folder, runs / "new"), "--devices", "0", "--precision", "8"])
    assert wrong.returncode == 2
    assert "devices = 0" in wrong.stderr
    assert "precision = '8'" in wrong.stderr
