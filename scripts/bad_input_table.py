"""Kinds of bad input and what captune answers: `python scripts/bad_input_table.py` writes docs/bad-input.md.

The table is made by running each command; tests/flow/test_bad_input.py runs the same list.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

REPOSITORY = Path(__file__).parents[1]
HEADING = """# What captune answers to bad input

Made by `python scripts/bad_input_table.py`, which runs every command in a folder with six photos of two classes, a tiny
CLIP in `model/` and a finished run in `run/`. The exit code is 2 each time, and there is never a traceback. Image files
that cannot be read never stop a run: they are set aside, counted on screen and listed in `set_aside.csv`.

| bad input | command | answer |
|---|---|---|
"""
ADAPT = ("adapt", "photos", "--classes", "cat,dog", "--backbone", "hf:model", "--workers", "0", "--out", "new-run")


@dataclass(frozen=True)
class Case:
    """One mistake: what is done before, the command, and key words of the answer."""

    what: str
    command: tuple[str, ...]
    words: tuple[str, ...]
    prepare: Callable[[], object] = lambda: None


def adapt(
    *changes: str, images: str = "photos", classes: str = "cat,dog", backbone: str = "hf:model"
) -> tuple[str, ...]:
    """Return the words of a good `captune adapt`, with some of them changed."""
    replaced = {"photos": images, "cat,dog": classes, "hf:model": backbone}
    return (*(replaced.get(word, word) for word in ADAPT), *changes)


def write(path: str, content: str | bytes) -> Callable[[], object]:
    """Return the step that writes a file."""
    data = content.encode() if isinstance(content, str) else content

    def step() -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)

    return step


def make_place(folder: Path, model: Path) -> None:
    """Make the folder that the cases are tried in: six photos and a tiny model."""
    shutil.copytree(model, folder / "model")
    for i in range(6):
        noise = np.random.default_rng(i).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        (folder / "photos" / ("cat" if i < 3 else "dog")).mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise).save(folder / "photos" / ("cat" if i < 3 else "dog") / f"{i}.png")
    code, answer = run_captune(folder, adapt("--out", "run"))
    if code != 0:
        raise RuntimeError(answer)


def run_captune(folder: Path, words: tuple[str, ...]) -> tuple[int, str]:
    """Run one command in a folder and return its exit code and what it complained of."""
    from captune.cli import main

    complaint, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(io.StringIO()):
            code = main(words)
    finally:
        os.chdir(before)
    return code, complaint.getvalue()


def _tamper() -> None:
    path = Path("tampered/classifier/classifier.safetensors")
    shutil.copytree("run", "tampered")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _age() -> None:
    shutil.copytree("run", "future")
    card = json.loads(Path("future/run.json").read_text())
    Path("future/run.json").write_text(json.dumps({**card, "version": 9}))


def _swap_model() -> None:
    shutil.copytree("run", "moved")
    card = json.loads(Path("moved/classifier/classifier.json").read_text())
    card["backbone_fingerprint"] = "another model"
    Path("moved/classifier/classifier.json").write_text(json.dumps(card))


def _cut_weights() -> None:
    shutil.copytree("model", "cut-model")
    path = Path("cut-model/model.safetensors")
    path.write_bytes(path.read_bytes()[:1000])


def _unreadable_only() -> None:
    Path("damaged").mkdir()
    Path("damaged/empty.jpg").write_bytes(b"")
    Path("damaged/text.png").write_bytes(b"this is text")
    Path("damaged/cut.png").write_bytes(Path("photos/cat/0.png").read_bytes()[:200])


CASES = (
    Case("images: no such folder", adapt(images="fotos"), ("No images at 'fotos'", "Expected a folder")),
    Case("images: an empty folder", adapt(images="void"), ("No images in 'void'",), lambda: Path("void").mkdir()),
    Case("images: not one can be read", adapt(images="damaged"), ("None of the 3 images", "empty"), _unreadable_only),
    Case(
        "manifest: no path column", adapt(images="m.csv"), ("no 'path' column", "found: id"), write("m.csv", "id\n1\n")
    ),
    Case(
        "manifest: paths that leave the root",
        adapt("--root", "photos", images="out.csv"),
        ("leads outside",),
        write("out.csv", "path\nphotos/cat/0.png\n../secret.png\n"),
    ),
    Case(
        "manifest: empty and repeated rows",
        adapt(images="rows.csv"),
        ("row 1 has an empty path", "listed 2 times"),
        write("rows.csv", "path,n\n,1\nphotos/cat/0.png,2\nphotos/cat/0.png,3\n"),
    ),
    Case("manifest: not a Parquet file", adapt(images="m.parquet"), ("not a Parquet file",), write("m.parquet", "x")),
    Case("manifest: an image instead of a list", adapt(images="photos/cat/0.png"), ("captune predict",)),
    Case(
        "classes: file not found", adapt(classes="classes.txt"), ("No class names in 'classes.txt'", "Check the path")
    ),
    Case("classes: only one", adapt(classes="one.txt"), ("at least 2 are needed",), write("one.txt", "cat\n")),
    Case(
        "classes: empty and repeated names",
        adapt(classes="cat,,Cat"),
        ("class name 1 is empty", "'cat' stands 2 times"),
    ),
    Case(
        "classes: YAML turns a name into a truth",
        adapt(classes="c.yaml"),
        ("quote names",),
        write("c.yaml", "[yes, cat]"),
    ),
    Case("template without a placeholder", adapt("--template", "a photo"), ("'a photo' must hold the placeholder {}",)),
    Case("method: misspelt", adapt("--method", "zeroshot"), ("Did you mean 'zero_shot'",)),
    Case("backbone: unknown source", adapt(backbone="duel:model"), ("Did you mean 'dual'",)),
    Case("backbone: an id without a source", adapt(backbone="openai/clip"), ("source:name",)),
    Case("backbone: no such model", adapt(backbone="hf:no/such-model"), ("No model 'no/such-model'",)),
    Case("backbone: a folder without a dual encoder", adapt(backbone="dual:photos"), ("dual_encoder.json",)),
    Case("backbone: damaged weights", adapt(backbone="hf:cut-model"), ("cut-model",), _cut_weights),
    Case(
        "settings: several wrong at once",
        adapt("--set", "batch_size=many", "--set", "sead=3", "--set", "workers=-7"),
        ("batch_size = 'many'", "no setting 'sead'. Did you mean 'seed'", "workers = -7"),
    ),
    Case("settings: not key=value", adapt("--set", "seed"), ("'seed' is not of the form key=value",)),
    Case(
        "settings file: a key stands twice",
        adapt("--config", "s.yaml"),
        ("stands twice",),
        write("s.yaml", "seed: 1\nseed: 2\n"),
    ),
    Case("settings file: not found", adapt("--config", "gone.yaml"), ("'gone.yaml' cannot be read",)),
    Case("seed: negative", adapt("--seed", "-1"), ("seed = -1", "greater than or equal to 0")),
    Case(
        "several things wrong at once",
        adapt("--method", "capp", "--template", "photo", images="fotos", classes="cat,cat"),
        ("This run cannot start", "'capp'", "'photo'", "'cat' stands 2 times", "No images at 'fotos'"),
    ),
    Case(
        "labels: names that are no class",
        adapt("--labels", "labels.csv"),
        ("'lion' names no class", "'gone.png'"),
        write("labels.csv", "path,label\nphotos/cat/0.png,lion\ngone.png,cat\n"),
    ),
    Case("output: a folder with other files", adapt("--out", "photos"), ("'photos' is not empty and holds no run",)),
    Case("output: an existing run", adapt("--out", "run"), ("'run' holds a run: pass --overwrite",)),
    Case("predict: not a run folder", ("predict", "photos", "photos"), ("is not a run folder", "captune adapt")),
    Case("predict: a tampered classifier", ("predict", "tampered", "photos"), ("damaged or changed",), _tamper),
    Case("predict: a run of a newer version", ("predict", "future", "photos"), ("version 9", "Upgrade captune"), _age),
    Case("predict: other model weights", ("predict", "moved", "photos"), ("are not those",), _swap_model),
    Case("predict: no class to show", ("predict", "run", "photos", "--top-k", "0"), ("--top-k is 0",)),
    Case(
        "evaluate: folders that are no classes",
        ("evaluate", "run", "damaged", "--labels", "folders"),
        ("'damaged' names no class (3 images)",),
        _unreadable_only,
    ),
    Case(
        "evaluate: no labels at all",
        ("evaluate", "run", "photos", "--labels", "none.csv"),
        ("No labels at 'none.csv'",),
    ),
    Case(
        "list: a download without a place",
        ("list", "datasets", "--download", "dtd"),
        ("--download needs --data ROOT",),
    ),
    Case(
        "list: a dataset that is not known",
        ("list", "datasets", "--data", "photos", "--download", "flowers"),
        ("No 'flowers' in datasets", "Did you mean 'flowers102'"),
    ),
)


def main() -> None:
    """Run every case and write the table."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path.insert(0, str(REPOSITORY / "tests"))
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
            rows.append(f"| {case.what} | `captune {command}` | {shown} |\n")
            print(f"{number + 1}/{len(CASES)} {case.what}")
            shutil.rmtree(place)
    (REPOSITORY / "docs" / "bad-input.md").write_text(HEADING + "".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
