"""captune export as a person meets it: a run goes out as a file, and predict reads the file like the run."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def run(captune: Any, photos: Path, backbone: str, tmp_path: Path) -> Path:
    words = ("--classes", photos, "--method", "zero_shot", "--backbone", backbone, "--workers", 0)
    assert captune("adapt", photos, *words, "--out", tmp_path / "run").code == 0
    return tmp_path / "run"


def test_a_run_and_its_onnx_file_answer_alike(captune: Any, run: Path, photos: Path) -> None:
    made = captune("export", run, "--format", "onnx", "--int8", "--images", photos, "--labels", "folders")
    assert made.code == 0, made.err
    model = run / "exports" / "model.onnx"
    assert made.out.splitlines()[0].startswith("float32: ")
    assert "int8: " in made.out
    assert made.out.splitlines()[-1] == f"Written: {model}"
    assert model.with_name("model.int8.onnx").is_file()

    answers = [captune("predict", source, photos, "--top-k", 2, "--workers", 0) for source in (run, model)]
    first, second = (list(csv.reader(io.StringIO(answer.out))) for answer in answers)
    assert [row[:2] for row in first] == [row[:2] for row in second]
    for a, b in zip(first[1:], second[1:], strict=True):
        assert float(a[2]) == pytest.approx(float(b[2]), abs=1e-4)
    measured = [captune("evaluate", s, photos, "--labels", "folders", "--workers", 0) for s in (run, model)]
    assert measured[0].out.splitlines()[:3] == measured[1].out.splitlines()[:3]


def test_wrong_words_name_the_value(captune: Any, run: Path, tmp_path: Path) -> None:
    for words, named in (
        (("--format", "onnx", "--min-confidence", 0.5), "--min-confidence"),
        (("--format", "csv", "--out", tmp_path), str(tmp_path)),
        (("--format", "csv", "--source", "pseudo-labels"), "pseudo-labels"),
    ):
        answer = captune("export", run, *words)
        assert answer.code == 2, words
        assert named in answer.err
        assert answer.out == ""
    (tmp_path / "fake.onnx").write_bytes(b"text")
    assert captune("predict", tmp_path / "fake.onnx", tmp_path).code == 2
