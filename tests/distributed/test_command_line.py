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
        more = ["--devices", "2", "--accelerator", "cpu"] if name == "two" else []
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


SCRIPT = """
import captune
run = captune.adapt({photos!r}, {names!r}, backbone={backbone!r}, devices=2, accelerator="cpu", quiet=True)
if captune.core.distributed.rank() == 0:
    print(run.environment["processes"], len(run.predictions.labels), run.classifier.names)
"""


def test_a_script_is_started_with_torchrun(photos: Path, dual_folder: Path, tmp_path: Path) -> None:
    names, script = ["cat", "red dog"], tmp_path / "script.py"
    script.write_text(SCRIPT.format(photos=str(photos), names=names, backbone=f"dual:{dual_folder}"))
    known = {"CAPTUNE_CACHE": str(tmp_path / "cache")}
    assert run([*TORCHRUN[:-2], str(script)], **known).stdout.strip() == f"2 12 {tuple(names)}"
    alone = run([sys.executable, str(script)], **known)
    assert alone.returncode == 1
    assert "torchrun --nproc-per-node 2" in alone.stderr


def test_an_error_of_another_process_is_told(photos: Path, dual_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('LOCAL_RANK') == '1':\n"
        "    import captune.data.inputs\n"
        "    from captune.core.errors import InputError\n"
        "    def fail(*words, **options): raise InputError('only the second process sees this')\n"
        "    captune.data.inputs.collect_images = fail\n"
    )
    words = [*ALONE, *adapt(photos, dual_folder, tmp_path / "run"), "--devices", "2", "--accelerator", "cpu"]
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    done = run(words, PYTHONPATH=path, CAPTUNE_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 2
    assert done.stderr.count("only the second process sees this") == 1
