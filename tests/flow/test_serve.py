"""`captune serve` as a process: a real run, a real image, and an end without a traceback."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from captune import load

SERVE = """
import sys, captune.cli
code = captune.cli.main(sys.argv[1:])
if sys.argv[2].endswith("exports"):
    assert not {"torch", "transformers"} & set(sys.modules), "PyTorch was loaded for an ONNX file"
sys.exit(code)
"""


@pytest.fixture(scope="module")
def run(photos: Path, backbone: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from captune import adapt

    folder = tmp_path_factory.mktemp("served") / "run"
    adapt(photos, ["cat", "red dog"], method="zero_shot", backbone=backbone, out=folder, workers=0, quiet=True)
    return folder


@contextmanager
def process(run: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Start the command on a free port and wait for the line that says where it is."""
    command = [sys.executable, "-c", SERVE, "serve", str(run), "--port", "0", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
        said = ""
        try:
            assert started.stderr is not None
            while "Serving" not in said:
                line = started.stderr.readline()
                assert line, f"ended with {said}"
                said += line
            yield started, re.findall(r"http://\S+:(\d+)/", said)[0], said
        finally:
            started.kill()


def test_a_run_is_served_and_ends_when_told(run: Path, photos: Path) -> None:
    image = photos / "cat" / "000.jpg"
    with process(run) as (started, port, said):
        assert "warning" not in said
        with urlopen(f"http://127.0.0.1:{port}/predict", data=image.read_bytes(), timeout=20) as answer:
            found = json.load(answer)["predictions"]
        started.send_signal(signal.SIGTERM)
        _, rest = started.communicate(timeout=20)
    assert started.returncode == 0
    assert rest == "Stopped.\n"
    classifier = load(run)
    row = classifier.predict_proba([image])[0]
    assert {entry["label"]: entry["probability"] for entry in found} == pytest.approx(
        dict(zip(classifier.names, row.tolist(), strict=True)), abs=1e-5
    )


def test_an_onnx_export_is_served_with_the_run_s_answers_and_without_pytorch(run: Path, photos: Path) -> None:
    from captune import export

    model = export(run, "onnx").path
    image = photos / "red dog" / "000.png"
    with process(model.parent) as (started, port, _):
        with urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
            page = answer.read().decode()
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=20) as answer:
            assert json.load(answer)["classes"] == 2
        with urlopen(f"http://127.0.0.1:{port}/predict", data=image.read_bytes(), timeout=20) as answer:
            found = json.load(answer)["predictions"]
        started.send_signal(signal.SIGTERM)
        assert started.communicate(timeout=20)[1] == "Stopped.\n"
    assert started.returncode == 0
    assert "<li>red dog</li>" in page
    classifier = load(run)
    row = classifier.predict_proba([image])[0]
    assert [entry["label"] for entry in found] == [classifier.names[c] for c in (-row).argsort(kind="stable")]
    assert [entry["probability"] for entry in found] == pytest.approx(sorted(row.tolist(), reverse=True), abs=1e-4)


@pytest.mark.slow
def test_an_open_address_is_warned_of_and_an_interrupt_ends_it(run: Path) -> None:
    with process(run, "--host", "0.0.0.0") as (started, port, said):
        assert said.startswith("warning: 0.0.0.0")
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=20) as answer:
            assert json.load(answer)["status"] == "ok"
        started.send_signal(signal.SIGINT)
        _, rest = started.communicate(timeout=20)
    assert (started.returncode, rest) == (0, "Stopped.\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--port", "99999"), "--port is 99999"),
        (("--max-bytes", "0"), "--max-bytes is 0"),
        (("--host", "no.such.host.invalid"), "--host 'no.such.host.invalid'"),
    ],
)
def test_wrong_words_are_clear_errors(captune: Any, run: Path, words: tuple[str, ...], sentence: str) -> None:
    answer = captune("serve", run, *words)
    assert answer.code == 2
    assert sentence in answer.err


def test_what_is_no_run_is_told(captune: Any, tmp_path: Path) -> None:
    assert "is not a run folder" in captune("serve", tmp_path, "--port", 0).err
