"""`captune serve` as a process: a real run, a real image, and an end without a traceback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
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
    assert re.fullmatch(r"\S+ \S+ 127\.0\.0\.1 POST /predict 200 \d+\.\d+ s\nStopped\.\n", rest)
    classifier = load(run)
    row = classifier.predict_proba([image])[0]
    assert {entry["label"]: entry["probability"] for entry in found} == pytest.approx(
        dict(zip(classifier.names, row.tolist(), strict=True)), abs=1e-5
    )


def test_an_onnx_export_is_served_with_the_run_s_answers_and_without_pytorch(run: Path, photos: Path) -> None:
    from captune import export

    model = export(run, "onnx").path
    image = photos / "red dog" / "000.png"
    with process(model.parent, "--quiet") as (started, port, _):
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


def test_an_open_address_needs_its_token_and_an_interrupt_ends_it(run: Path) -> None:
    with process(run, "--host", "0.0.0.0", "--token", "open5esame", "--quiet") as (started, port, said):
        assert "?token=open5esame" in said
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=20) as answer:
            assert json.load(answer)["status"] == "ok"
        with pytest.raises(HTTPError, match="401"):
            urlopen(f"http://127.0.0.1:{port}/", timeout=20)
        started.send_signal(signal.SIGINT)
        _, rest = started.communicate(timeout=20)
    assert (started.returncode, rest) == (0, "Stopped.\n")


def test_an_end_during_a_request_answers_it_and_leaves_no_process(run: Path, photos: Path) -> None:
    content = (photos / "cat" / "000.jpg").read_bytes()
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(content)
    with process(run, "--quiet") as (started, port, _):
        with urlopen(f"http://127.0.0.1:{port}/predict", data=content, timeout=20):
            pass
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children")
        decoders = children.read_text(encoding="ascii").split() if children.exists() else []
        with socket.create_connection(("127.0.0.1", int(port)), timeout=20) as connection:
            connection.sendall(head + content[:100])
            time.sleep(0.3)
            started.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            connection.sendall(content[100:])
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert started.communicate(timeout=20)[1] == "Stopped.\n"
    assert started.returncode == 0
    assert not [number for number in decoders if Path(f"/proc/{number}").exists()]


def test_it_works_without_a_home_or_a_user_name(run: Path, photos: Path) -> None:
    nobody = "import pwd\ndef getpwuid(number): raise KeyError(number)\npwd.getpwuid = getpwuid\n"
    command = [sys.executable, "-c", nobody + SERVE, "serve", str(run), "--port", "0"]
    clean = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "HF_HUB_OFFLINE")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean, cwd="/") as started:
        assert started.stderr is not None
        line = started.stderr.readline()
        assert line.startswith("Serving 2 classes"), line
        image = (photos / "cat" / "000.jpg").read_bytes()
        port = re.findall(r":(\d+)/", line)[0]
        with urlopen(f"http://127.0.0.1:{port}/predict", data=image, timeout=20) as answer:
            assert len(json.load(answer)["predictions"]) == 2
        started.send_signal(signal.SIGTERM)
        assert started.wait(20) == 0


def test_the_container_s_own_health_check_tells_whether_it_is_served(run: Path) -> None:
    text = (Path(__file__).parents[2] / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in text.splitlines() if line}
    assert lines["USER"].split(":")[0] not in ("root", "0")
    assert json.loads(lines["CMD"])[:2] == ["serve", "/model"]
    check = json.loads(lines["HEALTHCHECK"].partition("CMD")[2])
    check[0] = sys.executable
    with process(run, "--quiet", "--token", "open5esame") as (_, port, _):
        here = [word.replace(":8000/", f":{port}/") for word in check]
        assert subprocess.run(here, check=False).returncode == 0
    assert subprocess.run(here, check=False, stderr=subprocess.DEVNULL).returncode != 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_the_curl_commands_of_the_docs_work(run: Path, photos: Path, tmp_path: Path) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8").replace("\\\n", "")
    commands = [line for line in docs.splitlines() if line.startswith("curl ")]
    for part in ("--data-binary", "-F image=", "/predict/batch"):
        assert any(part in command for command in commands)
    for name in ("image.jpg", "a.jpg", "b.jpg"):
        shutil.copy(photos / "cat" / "000.jpg", tmp_path / name)
    with process(run, "--token", "chooseALongOne") as (_, port, _said):
        for command in commands:
            words = command.replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace("curl ", "curl --silent --fail ", 1)
            own = words if "Authorization" in words else f"{words} -H 'Authorization: Bearer chooseALongOne'"
            done = subprocess.run(own, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
            answer = json.loads(done.stdout)
            files = answer.get("files", [answer])
            assert all(entry["predictions"][0]["label"] in ("cat", "red dog") for entry in files)
