"""A folder of labeled images, a tiny CLIP, and the command line as a person meets it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from toys import write_images

from captune.cli import main


@dataclass(frozen=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str


Command = Callable[..., Answer]
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel that is really built."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel: pip install 'captune[dev]'")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    (built,) = folder.glob("captune-*.whl")
    return built


@pytest.fixture
def captune(capfd: pytest.CaptureFixture[str]) -> Command:
    """Return the function that runs one command in this process and catches what it prints."""

    def run(*words: object) -> Answer:
        capfd.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capfd.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return Answer(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with three images of each of two classes."""
    base = tmp_path_factory.mktemp("photos")
    write_images(base / "cat", 3, side=40, seed=1, suffix=".jpg")
    write_images(base / "red dog", 3, side=40, seed=2)
    return base


@pytest.fixture(scope="session")
def backbone(clip_folder: Path) -> str:
    """Return the id of a tiny CLIP."""
    return f"hf:{clip_folder}"
