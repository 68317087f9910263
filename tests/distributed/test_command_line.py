"""The command line and Python in several processes, started by captune and by torchrun; errors are printed once."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tarfile
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


def test_a_collection_of_tar_shards_is_embedded_and_predicted_by_both(
    runs: Path, photos: Path, dual_folder: Path, tmp_path: Path
) -> None:
    shards, files = tmp_path / "shards", sorted(photos.rglob("*.*"))
    shards.mkdir()
    for number in range(2):  # as WebDataset names them
        with tarfile.open(shards / f"photos-{number:06}.tar", "w") as tar:
            for position, file in enumerate(files[number::2]):
                tar.add(file, f"{number}{position:04}{file.suffix}")
    predicted = []
    for name, words in {"one": ALONE, "two": TORCHRUN}.items():
        known = {"CAPTUNE_CACHE": str(tmp_path / f"cache-{name}")}
        options = ["adapt", str(shards), "--classes", ",".join(NAMES), "--backbone", f"dual:{dual_folder}"]
        adapted = run([*words, *options, "--method", "transductive", "--out", str(tmp_path / name)], **known)
        assert adapted.returncode == 0, adapted.stderr
        out = tmp_path / f"{name}.csv"
        assert run([*words, "predict", str(runs / "one"), str(shards), "--out", str(out)], **known).returncode == 0
        tables = (out, tmp_path / name / "predictions.csv")
        predicted.append([[row[:2] for row in csv.reader(table.open())] for table in tables])
    assert predicted[0] == predicted[1]
    assert [len(table) for table in predicted[0]] == [len(files) + 1] * 2


def test_a_problem_is_told_once(runs: Path, photos: Path, dual_folder: Path) -> None:
    done = run([*ALONE, *adapt(photos, dual_folder, runs / "one"), "--devices", "2", "--accelerator", "cpu"])
    assert done.returncode == 2
    assert done.stderr.count("error: ") == done.stderr.count("--overwrite") == 1
    wrong = run([*ALONE, *adapt(photos, dual_folder, runs / "new"), "--devices", "0", "--precision", "8"])
    assert wrong.returncode == 2
    assert "devices = 0" in wrong.stderr
    assert "precision = '8'" in wrong.stderr


API = """
import captune
def main():
    run = captune.adapt({photos!r}, {names!r}, backbone={backbone!r}, devices=2, accelerator="cpu", quiet=True)
    print(run.environment["processes"], len(run.predictions.labels), run.classifier.names)
"""


def test_python_starts_processes_from_a_guarded_script_and_without_a_script(
    photos: Path, dual_folder: Path, tmp_path: Path
) -> None:
    names, backbone = ["cat", "red dog"], f"dual:{dual_folder}"
    code = API.format(photos=str(photos), names=names, backbone=backbone)
    script = tmp_path / "script.py"
    known = {"CAPTUNE_CACHE": str(tmp_path / "cache")}
    script.write_text(code + "if __name__ == '__main__':\n    main()\n")
    expected = f"2 12 {tuple(names)}"
    assert run([sys.executable, str(script)], **known).stdout.strip() == expected
    assert run([sys.executable, "-c", code + "main()"], **known).stdout.strip() == expected
    script.write_text(code + "main()\n")
    unguarded = run([sys.executable, str(script)], **known)
    assert unguarded.returncode == 1
    assert unguarded.stderr.count("if __name__ == '__main__'") == 1
    assert "InputError" in unguarded.stderr


def test_errors_of_processes_are_raised_with_their_class() -> None:
    code = """
from captune.core import errors, registry
from captune.core.launching import launch
try:
    launch(2, 1, {work}, *{arguments})
except {kind} as error:
    print(error)
"""
    words = {"work": "registry.load", "arguments": ["methods", "nope"], "kind": "errors.UnknownNameError"}
    known = run([sys.executable, "-c", code.format(**words)])
    assert "'nope'" in known.stdout, known.stderr
    words = {"work": "__import__", "arguments": ["nope"], "kind": "RuntimeError"}
    unexpected = run([sys.executable, "-c", code.format(**words)])
    assert unexpected.stdout.startswith("ModuleNotFoundError: No module named 'nope'"), unexpected.stderr
    assert known.stderr == unexpected.stderr == ""
