"""Embeddings of a real CLIP, through the command line and through Python, reach the published zero-shot accuracies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import captune
from captune.cli import main

FILE = Path(os.environ.get("CAPTUNE_TESTBED", "")) / "data" / "clip-vit-b32" / "cars-a.npz"
TRAIN, TEST = 74.2, 72.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FILE.is_file(), reason="needs CAPTUNE_TESTBED with data/clip-vit-b32/cars-a.npz"),
]


def measured(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(list(words)) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    assert main(["adapt", f"{FILE}:train_images", "--classes", str(FILE), "--method", "zero_shot", "--out", run]) == 0
    capsys.readouterr()
    for part, expected in (("train", TRAIN), ("test", TEST)):
        labels = ("--labels", f"{FILE}:{part}_labels", "--json")
        found = measured(capsys, "evaluate", run, f"{FILE}:{part}_images", *labels)
        assert 100 * found["accuracy"] == pytest.approx(expected, abs=0.05)
    assert main(["predict", run, f"{FILE}:test_images", "--out", str(tmp_path / "test.csv")]) == 0
    assert len((tmp_path / "test.csv").read_text().splitlines()) == 1 + 807
    assert main(["report", run, "--labels", f"{FILE}:train_labels"]) == 0
    assert main(["export", run, "--format", "csv"]) == 0


@pytest.mark.parametrize("method", ["zero_shot", "transductive"])
def test_python(method: str) -> None:
    arrays = np.load(FILE)
    texts = captune.ClassTexts(arrays["names"], arrays["texts"], arrays["logit_scale"])
    names = arrays["names"]
    run = captune.adapt(captune.Embeddings(arrays["train_images"]), texts, method=method, keep_better=False, quiet=True)
    model = captune.CaptuneClassifier(texts, method=method, settings={"keep_better": False})
    model.fit(arrays["train_images"])
    accuracies = [
        run.evaluate(arrays["train_labels"]).accuracy,
        run.classifier.score(captune.Embeddings(arrays["test_images"]), arrays["test_labels"]),
    ]
    same = [model.score(arrays[f"{part}_images"], names[arrays[f"{part}_labels"]]) for part in ("train", "test")]
    assert same == pytest.approx(accuracies)
    if method == "zero_shot":
        assert [100 * value for value in accuracies] == pytest.approx([TRAIN, TEST], abs=0.05)
    else:
        assert 100 * accuracies[0] > TRAIN + 2
