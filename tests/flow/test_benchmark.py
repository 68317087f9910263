"""captune benchmark from end to end: real cells, failures that stop nothing, a kill and its resumption."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dataset_copies as copies
import numpy as np
import pytest
import yaml
from toys import write_images

from captune.benchmark import measuring
from captune.benchmark.cells import Environment, Results
from captune.benchmark.measuring import measure
from captune.benchmark.runner import run_cells
from captune.benchmark.suite import read_suite
from captune.core.files import locked, write_json

from .conftest import Command

REPOSITORY = Path(__file__).parents[2]
SHORT = {
    "preset": "quick",
    "epochs": 2,
    "iterations": 2,
    "warmup_epochs": 0,
    "strong_views": 1,
    "k": 2,
    "grow_every": 1,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset folder of three classes, ten training and four test images each."""
    root = tmp_path_factory.mktemp("data")
    for part, n_images in (("train", 10), ("test", 4)):
        for number, name in enumerate(("cat", "dog", "owl")):
            write_images(root / part / name, n_images, seed=100 * number + n_images)
    return root


def write_suite(folder: Path, backbone: str, **changes: Any) -> Path:
    content = {
        "datasets": ["folder"],
        "settings": ["ul", "ssl", "trzsl"],
        "seeds": [0],
        "defaults": {"backbone": backbone},
        "methods": {"zero_shot": None, "cap": SHORT},
        **changes,
    }
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def test_a_cell_is_measured_with_what_the_method_never_saw(
    tmp_path: Path, data: Path, backbone: str, clip_folder: Path
) -> None:
    suite = read_suite(write_suite(tmp_path, "hf:{models}/" + clip_folder.name), {"method": "cap", "setting": "trzsl"})
    here = Environment(data, clip_folder.parent, {"workers": 0})
    (cell,), results = suite.cells(), Results(tmp_path / "out")

    def write_and_stop(*words: Any) -> None:  # killed between the cell's file and the end
        write_json(*words)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "write_json", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            measure(cell, results, here)
    assert results.run_folder(cell).exists()
    (results.cell_file(cell).parent / ".captune-x.part").touch()
    os.utime(results.cell_file(cell).parent / ".captune-x.part", (0, 0))
    assert run_cells([cell], here, results, print).skipped == 1  # the next suite does what is left
    assert not list((tmp_path / "out" / "runs").iterdir())
    assert [path.name for path in (tmp_path / "out" / "cells").iterdir()] == [results.cell_file(cell).name]
    content = results.read(cell)
    assert content is not None
    assert results.state(cell, here.inputs(cell)) == "finished"
    metrics = content["metrics"]
    seen, unseen = metrics["seen_accuracy"], metrics["unseen_accuracy"]
    assert content["score"] == pytest.approx(2 * seen * unseen / (seen + unseen) if seen + unseen else 0.0)
    assert content["counts"]["labeled"] == 10
    assert content["counts"]["unlabeled"] == 20
    assert metrics["n_images"] == 12
    assert [step["epoch"] for step in content["pseudo_labels"]] == [1, 2]
    assert all(0 <= step["precision"] <= 1 and step["images"] for step in content["pseudo_labels"])
    assert content["peak_memory_mb"]["process"] > 50
    assert set(content["inputs"]) == {"data", "backbone"}
    assert content["remarks"] == []
    assert not results.run_folder(cell).exists()


def write_embeddings(root: Path, n_classes: int = 4, per_class: int = 20) -> None:
    """Write embeddings in clear groups, and texts that lie near them."""
    generator = np.random.default_rng(0)
    centers = 3 * generator.normal(size=(n_classes, 8))
    arrays: dict[str, Any] = {"names": np.array([f"class {c}" for c in range(n_classes)]), "logit_scale": 20.0}
    for part in ("train", "test"):
        labels = np.repeat(np.arange(n_classes), per_class)
        arrays |= {
            f"{part}_images": centers[labels] + generator.normal(size=(len(labels), 8)),
            f"{part}_labels": labels,
        }
    np.savez(root / "groups.npz", **arrays, texts=centers + 2 * generator.normal(size=centers.shape))


def test_cells_of_embeddings_report_what_is_adapted_and_what_is_kept(captune: Command, tmp_path: Path) -> None:
    write_embeddings(tmp_path)
    rows = {"groups": {"dataset": "npz:groups.npz", "backbone": "precomputed"}}
    changes = {"datasets": rows, "settings": ["ul"], "defaults": {"preset": "quick"}}
    methods = {"zero_shot": None, "zlap": None, "cap": {**SHORT, "epochs": 1}}
    split = {"images_per_class": 15, "absent_share": 0.25}
    suite = write_suite(tmp_path, "", methods=methods, **{**changes, "defaults": {"preset": "quick", "split": split}})
    done = captune("benchmark", suite, "--data", tmp_path, "--out", tmp_path / "out", "--workers", 0)
    assert done.code == 0, done.out + done.err
    found = {}
    for path in (tmp_path / "out" / "cells").glob("*.json"):
        content = json.loads(path.read_text())
        found[content["cell"]["settings"]["method"]] = content
    zero_shot = found["zero_shot"]
    assert zero_shot["counts"] == zero_shot["counts"] | {"unlabeled": 45, "test": 60, "classes": 4}
    for method, content in found.items():
        kept = content["kept"]
        is_adapted = method == "zero_shot" or content["health"]["verdict"] == "helpful"
        assert kept["classifier"] == ("adapted" if is_adapted else "zero_shot")
        source = content if is_adapted else zero_shot
        assert kept["pool"] == source["pool"]
        assert kept["metrics"] == source["metrics"]
    assert found["zlap"]["pool"] != zero_shot["pool"]
    assert found["cap"]["pseudo_labels"][0]["precision"] is not None


def test_methods_may_get_embeddings_of_the_images(tmp_path: Path, data: Path, backbone: str) -> None:
    defaults = {"backbone": backbone, "split": {"embedded": True}}
    suite = read_suite(write_suite(tmp_path, backbone, settings=["ul", "ssl"], defaults=defaults))
    here, results = Environment(data, None, {"workers": 0}), Results(tmp_path / "out")
    for cell in suite.cells():
        content = measure(cell, results, here)
        assert content["counts"]["unlabeled"] == {"ul": 30, "ssl": 24}[cell.setting]
        plain = dataclasses.replace(cell, split=dataclasses.replace(cell.split, embedded=False))
        if cell.method == "zero_shot":
            assert measure(plain, results, here)["metrics"] == content["metrics"]


def test_two_suites_on_one_folder_measure_a_cell_once(tmp_path: Path, data: Path, backbone: str) -> None:
    suite = read_suite(write_suite(tmp_path, backbone), {"method": "zero_shot", "setting": "ul"})
    here, results = Environment(data, None, {"workers": 0}), Results(tmp_path / "out")
    (cell,) = suite.cells()
    content = measure(cell, results, here)
    saved = results.cell_file(cell).read_bytes()
    results.cell_file(cell).unlink()
    answers: list[Any] = []
    second = threading.Thread(target=lambda: answers.append(measure(cell, results, here)))
    with locked(results.lock_file(cell), "busy"):
        second.start()  # it waits, because the first is at this cell
        time.sleep(0.5)
        assert not answers
        results.cell_file(cell).write_bytes(saved)
    second.join(60)
    assert answers == [json.loads(saved)] == [json.loads(json.dumps(content))]
    assert results.cell_file(cell).read_bytes() == saved


def test_failures_stop_nothing_and_are_listed(captune: Command, tmp_path: Path, data: Path, backbone: str) -> None:
    methods = {"cap": {**SHORT, "backbone": "hf:{models}/clip"}, "zero_shot": None}
    suite = write_suite(tmp_path, backbone, settings=["ul"], methods=methods)
    words = ("benchmark", suite, "--data", data, "--out", tmp_path / "out", "--workers", 0)
    listed = captune(*words, "--dry-run")
    assert listed.code == 0
    assert "2 cells, 0 finished" in listed.out
    done = captune(*words)
    assert done.code == 1
    assert "1 cells measured, 0 already finished, 1 failed." in done.out
    assert "failed: folder UL cap " in done.out
    assert "--models FOLDER" in done.out
    page = (tmp_path / "out" / "tables" / "small.md").read_text(encoding="utf-8")
    assert "1 of 2 cells" in page
    again = captune(*words, "--only", "method=zero_shot")
    assert again.code == 0
    assert "0 cells measured, 1 already finished, 0 failed." in again.out
    (cell,) = (tmp_path / "out" / "cells").glob("*.json")
    cell.write_text('{"format": "captune-cell", "version": 1}', encoding="utf-8")
    damaged = captune(*words, "--table")
    assert damaged.code == 0
    assert "0 of 2 cells are finished" in damaged.out
    assert f"damaged: {cell}" in damaged.out


@pytest.mark.slow
def test_a_process_that_fails_says_why(captune: Command, tmp_path: Path, data: Path, backbone: str) -> None:
    suite = write_suite(tmp_path, backbone, settings=["ul"], methods={"cap": {**SHORT, "tuner": "no_such"}})
    done = captune("benchmark", suite, "--data", data, "--out", tmp_path / "out", "--workers", 0)
    assert done.code == 1
    assert "'no_such'" in done.out


def test_missing_data_and_wrong_words_are_sentences(captune: Command, tmp_path: Path, backbone: str) -> None:
    suite = write_suite(tmp_path, backbone, settings=["ul"], methods={"zero_shot": None})
    done = captune("benchmark", suite, "--out", tmp_path / "out")
    assert done.code == 1
    assert "--data FOLDER" in done.out
    for words, expected in (
        (("--shard", "3/2"), "--shard '3/2'"),
        (("--only", "method"), "--only 'method'"),
        (("--only", "sed=1"), "sed"),
        (("--only", "method=zeroshot"), "'zero_shot'"),
        (("--data", tmp_path / "gone"), "gone'"),
        (("--models", suite), "small.yaml'"),
        (("--workers", -2), "workers = -2"),
        (("--out", suite, "--data", tmp_path), str(suite)),
    ):
        answer = captune("benchmark", suite, *words)
        assert answer.code == 2
        assert expected in answer.err
    assert captune("benchmark", suite, "--shard", "9/9", "--dry-run").code == 0
    lost = captune("benchmark", "smok")
    assert lost.code == 2
    assert "'smoke'" in lost.err


def test_a_damaged_dataset_is_said_before_anything_runs(captune: Command, tmp_path: Path, backbone: str) -> None:
    copies.flowers_official(tmp_path)
    (tmp_path / "flowers-102" / "setid.mat").write_bytes(b"broken")
    suite = write_suite(tmp_path, backbone, datasets=["flowers102"], settings=["ul"], methods={"zero_shot": None})
    listed = captune("benchmark", suite, "--data", tmp_path, "--dry-run")
    assert listed.code == 0
    assert "setid.mat" in listed.out


def test_the_paper_would_be_270_cells(captune: Command, tmp_path: Path) -> None:
    listed = captune("benchmark", REPOSITORY / "suites" / "paper.yaml", "--data", tmp_path, "--dry-run")
    assert listed.code == 0
    assert "270 cells, 0 finished" in listed.out
    assert listed.out.count("data missing") == 270


@contextmanager
def started_suite(suite: Path, data: Path, out: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a suite as a person would, and never leave it running."""
    environment = {**os.environ, "CAPTUNE_CACHE": str(out.parent / "cache")}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where tests run in the background it may be ignored
    words = [sys.executable, "-m", "captune.cli", "benchmark", suite, "--data", data, "--out", out, "--workers", "0"]
    with subprocess.Popen([str(word) for word in words], env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(is_so: Callable[[], object], seconds: float = 400) -> None:
    limit = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_suite_that_is_killed_goes_on_where_it_was(
    tmp_path: Path, data: Path, backbone: str, how: signal.Signals
) -> None:
    long = {**SHORT, "epochs": 40, "iterations": 20, "grow_every": 10}
    suite = write_suite(tmp_path, backbone, settings=["ul"], methods={"zero_shot": None, "cap": long})
    out = tmp_path / "killed"
    with started_suite(suite, data, out) as victim:
        wait_until(lambda: victim.poll() is not None or list(out.glob("runs/*/checkpoints/*.safetensors")))
        victim.send_signal(how)
        victim.wait()
    assert victim.returncode == (130 if how == signal.SIGINT else -how)
    assert len(list(out.glob("cells/*.json"))) == 1
    (log,) = out.glob("logs/*cap*.log")  # the cell's process notices that its suite is gone, and ends its step
    wait_until(lambda: "interrupted" in log.read_text(encoding="utf-8"))

    with started_suite(suite, data, out) as resumed:
        said, _ = resumed.communicate()
    assert "resuming" in said
    assert "1 cells measured, 1 already finished, 0 failed." in said
    with started_suite(suite, data, tmp_path / "fresh") as fresh:
        fresh.communicate()
    assert (resumed.returncode, fresh.returncode) == (0, 0)
    for path in sorted(out.glob("cells/*.json")):
        one, other = (json.loads((folder / "cells" / path.name).read_text()) for folder in (out, tmp_path / "fresh"))
        assert one["metrics"] == other["metrics"]
        assert one["pseudo_labels"] == other["pseudo_labels"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_method_in_the_smoke_suite(captune: Command, tmp_path: Path) -> None:
    suite = REPOSITORY / "suites" / "smoke.yaml"
    done = captune("benchmark", suite, "--out", tmp_path / "out")
    assert done.code == 0, done.out
    page = (tmp_path / "out" / "tables" / "smoke.md").read_text(encoding="utf-8")
    cells = len(read_suite(suite).cells())
    assert f"{cells} of {cells} cells" in page
