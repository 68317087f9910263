"""captune from its wheel in a fresh environment: every command finds its files there, the clone is out of sight."""

from __future__ import annotations

import os
import re
import signal
import site
import subprocess
import sys
import venv
from pathlib import Path
from urllib.request import urlopen

import pytest

from captune.world import class_names, write_world

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """Return a folder with a virtual environment that holds the wheel, and borrows all other packages from ours."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", symlinks=True)
    # A line in a .pth file adds the folder alone: an editable captune in it stays out of sight.
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text("\n".join(site.getsitepackages()), encoding="utf-8")
    python = str(folder / "venv" / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    write_world(folder / "photos", 1, seed=0)
    return folder


def surroundings(place: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "CAPTUNE_CACHE": str(place / "cache")}


def run(place: Path, *words: str, program: str = "captune") -> str:
    """Run an installed program in a folder that knows nothing of the clone, and return what it printed."""
    command = [str(place / "venv" / "bin" / program), *words]
    done = subprocess.run(command, cwd=place, env=surroundings(place), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_and_not_the_clone_is_asked(place: Path) -> None:
    where = run(place, "-c", "import captune; print(captune.__file__)", program="python")
    assert Path(where.strip()).is_relative_to(place / "venv")
    assert "usage: captune" in run(place, "--help")
    listed = run(place, "list", "methods")
    assert all(name in listed for name in ("cap", "grip", "zero_shot", "transductive"))


def test_a_run_its_report_and_its_service(place: Path) -> None:
    words = ("--classes", ",".join(class_names()), "--method", "zero_shot", "--backbone", "embedded:patterns")
    run(place, "adapt", "photos", *words, "--workers", "0", "--out", "run")
    run(place, "report", "run", "--labels", "folders", "--out", "page.html")
    page = (place / "page.html").read_text(encoding="utf-8")
    assert "Before and after" in page
    assert "prefers-color-scheme" in page  # the style
    assert "table.sortable" in page  # the script
    command = [str(place / "venv" / "bin" / "captune"), "serve", "run", "--port", "0"]
    with subprocess.Popen(command, cwd=place, env=surroundings(place), stderr=subprocess.PIPE, text=True) as service:
        try:
            assert service.stderr is not None
            said = service.stderr.readline()
            port = re.findall(r"http://\S+:(\d+)/", said)
            assert port, said
            with urlopen(f"http://127.0.0.1:{port[0]}/", timeout=20) as answer:
                assert "herringbone" in answer.read().decode()
            service.send_signal(signal.SIGTERM)
            assert service.wait(timeout=20) == 0
        finally:
            service.kill()
