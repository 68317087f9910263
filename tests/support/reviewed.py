"""A real review page: a session on images of the embedded world, in this process or in one that can be killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from served import parse

import captune
from captune.review.corrections import FILE, Corrections
from captune.review.opening import open_session
from captune.review.session import Session
from captune.web.review.review_app import reviewing
from captune.web.server import Limits, Service, running
from captune.world import write_world

NASTY = "<img src=x onerror=document.title='hacked'>"


def make_review(folder: Path, per_class: int = 4, **settings: Any) -> Path:
    """Write images and a run folder with nothing answered yet."""
    write_world(folder / "images", per_class, seed=3)
    names = sorted(path.name for path in (folder / "images").iterdir())
    session = captune.open_session(folder / "images", names, backbone="embedded:patterns", workers=0, **settings)
    session.save(folder / "run")
    return folder / "run"


def session_of(run: Path) -> Session:
    return open_session(run, person="tester")


class ReviewClient:
    """Asks a review page."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str) -> Any:
        with urlopen(self.address + path, timeout=60) as answer:
            return parse(answer.read()) if "json" in answer.headers["Content-Type"] else answer.read()

    def post(self, path: str, **body: Any) -> Any:
        import json

        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        with urlopen(Request(self.address + path, data, headers), timeout=60) as answer:
            return parse(answer.read()) if "json" in answer.headers["Content-Type"] else answer.read()


@contextmanager
def review_page(run: Path, **limits: Any) -> Iterator[str]:
    """Serve a run in this process and yield the address."""
    with (
        Service("127.0.0.1", 0, Limits(**limits)) as service,
        reviewing(session_of(run), "patterns <i>") as app,
        running(service, app),
    ):
        yield service.address


class ReviewProcess:
    """`captune review` as a process that can be killed and started again on the same port."""

    def __init__(self, run: Path, port: int = 0, *options: str) -> None:
        command = [sys.executable, "-m", "captune.cli", "review", str(run), "--port", str(port), *options]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        said = ""
        while "Reviewing" not in said:
            line = self.process.stderr.readline()
            assert line, f"ended with {said}"
            said = line
        self.port = int(re.findall(r":(\d+)/", said)[0])
        self.address = f"http://127.0.0.1:{self.port}/"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)


def saved_answers(run: Path) -> list[tuple[str, str]]:
    """Return kind and label of everything that holds in a corrections file."""
    return [(said.kind, said.label) for said in Corrections(run / FILE).active()]
