"""Files and functions of captune that each road enters: adapt (command line and Python), one answer, predict, serve.

    python benchmarks/roads.py

Counted by the profiler of Python in all threads, on 48 photographs of the embedded world and its own encoder.
A number is what a newcomer would have to open to follow that road from end to end.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import captune
from captune.cli import main as captune_main

SOURCE = str(Path(captune.__file__).parent)


def entered(road: Callable[[], Any]) -> tuple[int, int]:
    """Return how many files and functions of captune a call enters, in this process and all its threads."""
    seen: set[tuple[str, int]] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and code.co_name not in ("<module>", "<lambda>"):
            seen.add((code.co_filename, code.co_firstlineno))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            road()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return len({file for file, _ in seen}), len(seen)


def serve(run: Path, photo: Path) -> None:
    """Start the service's application and classify one photograph."""
    from fastapi.testclient import TestClient

    from captune.web.prediction import predicting
    from captune.web.server import Limits

    with predicting(captune.load(run), "run", Limits()) as app, TestClient(app, "http://127.0.0.1") as client:
        answer = client.post("/predict", content=photo.read_bytes())
        assert answer.status_code == 200, answer.text


def main() -> None:
    """Print a table row for each road."""
    from captune.world import class_names, write_world

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["CAPTUNE_CACHE"] = str(folder / "cache")
        photos, run = folder / "photos", folder / "run"
        names = class_names()
        photo = write_world(photos, 2, 0)[0]
        words = [
            "adapt",
            str(photos),
            "--classes",
            ",".join(names),
            "--backbone",
            "embedded:patterns",
            "--workers",
            "0",
        ]
        quick = {"method": "cap", "preset": "quick", "backbone": "embedded:patterns", "workers": 0, "quiet": True}
        print("| road | files | functions |\n|---|---|---|")

        def show(road: str, call: Callable[[], Any]) -> None:
            print(f"| {road} | {' | '.join(map(str, entered(call)))} |", flush=True)

        cap = ["--method", "cap", "--preset", "quick"]
        show("captune adapt, CAP quick", lambda: captune_main([*words, *cap, "--out", str(run)]))
        show("captune.adapt, CAP quick", lambda: captune.adapt(photos, list(names), **quick))
        show(
            "captune predict", lambda: captune_main(["predict", str(run), str(photos), "--out", str(folder / "p.csv")])
        )
        opened = getattr(captune, "open_session", None) or captune.open_session
        session = opened(run)
        image = session.suggest(1)[0].image
        show("one answer", lambda: session.label(image, names[0]))
        show("serve one photograph", lambda: serve(run, photo))


if __name__ == "__main__":
    main()
