"""Write docs/bad-input.md, a table of bad input and error messages, by running each command.

Run with `python scripts/bad_input_table.py`; tests/flow/test_bad_input.py runs the same cases.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from bad_input_cases import CASES, adapt

REPOSITORY = Path(__file__).parents[1]
HEADING = """# What captune answers to bad input

Made by `python scripts/bad_input_table.py`, which runs every command in a folder with six photos of two classes, a tiny
CLIP in `model/` and a finished run in `run/`. The exit code is 2 each time, and there is never a traceback. Image files
that cannot be read never stop a run: they are skipped, counted on screen and listed in `skipped.csv`.

| bad input | command | answer |
|---|---|---|
"""


def make_place(folder: Path, model: Path) -> None:
    """Create the folder in which the cases run: six photos and a tiny model."""
    shutil.copytree(model, folder / "model")
    for i in range(6):
        noise = np.random.default_rng(i).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        (folder / "photos" / ("cat" if i < 3 else "dog")).mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise).save(folder / "photos" / ("cat" if i < 3 else "dog") / f"{i}.png")
    code, answer = run_captune(
        folder, adapt("--out", "run", "--method", "cap", "--set", "epochs=1", "--set", "iterations=2")
    )
    if code != 0:
        raise RuntimeError(answer)


def run_captune(folder: Path, words: tuple[str, ...]) -> tuple[int, str]:
    """Run one command in a folder and return its exit code and error output."""
    from captune.cli import main

    complaint, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(io.StringIO()):
            code = main(words)
    finally:
        os.chdir(before)
    return code, complaint.getvalue()


def main() -> None:
    """Run every case and write the table."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path.insert(0, str(REPOSITORY / "tests" / "support"))
    from models import tiny_clip

    rows = []
    with tempfile.TemporaryDirectory() as name:
        base = Path(name) / "base"
        make_place(base, tiny_clip(Path(name) / "clip"))
        for number, case in enumerate(CASES):
            place = Path(name) / f"{number:02d}"
            shutil.copytree(base, place)
            os.chdir(place)
            case.prepare()
            code, answer = run_captune(place, case.command)
            answer = answer[answer.find("error: ") :].replace(f"{place}/", "").replace(f"{base}/", "").strip()
            if code != 2 or "Traceback" in answer or not all(word in answer for word in case.words):
                sys.exit(f"{case.what}: code {code}, expected 2 and {case.words}, got:\n{answer}")
            shown = "<br>".join(line.strip().replace("|", "\\|").replace("<", "&lt;") for line in answer.splitlines())
            command = " ".join(f"'{word}'" if " " in word or not word else word for word in case.command)
            command = command.replace(" --backbone hf:model --workers 0 --out new-run", " ...")
            rows.append(f"| {case.what} | `captune {ascii(command)[1:-1]}` | {shown} |\n")
            print(f"{number + 1}/{len(CASES)} {case.what}")
            shutil.rmtree(place)
    (REPOSITORY / "docs" / "bad-input.md").write_text(HEADING + "".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
