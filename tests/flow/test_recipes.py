"""The recipes of docs/recipes.md run as they are written, each in the folder of the page's beginning."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from captune.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
BEGINNING, *RECIPES = re.split(r"^## ", PAGE, flags=re.MULTILINE)
SECTIONS = {text.partition("\n")[0]: text for text in RECIPES}


def run_blocks(text: str, patch: pytest.MonkeyPatch) -> None:
    """Run the blocks of Python and of commands; commands of captune run in this process."""
    for language, block in re.findall(r"```(\w+)\n(.*?)```", text, flags=re.DOTALL):
        if language == "python":
            exec(compile(block, "recipes.md", "exec"), {})
            continue
        if language == "yaml":
            Path(block.splitlines()[0].removeprefix("# ")).write_text(block, encoding="utf-8")
            continue
        assert language == "sh"
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[0] == "captune":
                assert main(words[1:]) == 0, line
            elif words[0] == "export":
                patch.setenv(*words[1].split("=", 1))
            else:
                subprocess.run(line, shell=True, check=True)


def rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def photograph_animals() -> None:
    """Write photographs with one or no pattern in front of a gray background, and the boxes as MegaDetector would."""
    images = []
    for number, path in enumerate(sorted(Path("photos").glob("*/00000.png"))):
        photo = Image.new("RGB", (320, 240), (90, 100, 80))
        with Image.open(path) as pattern:
            photo.paste(pattern, (200, 100))
        name = f"day/{number}.jpg"
        Path("camera/day").mkdir(parents=True, exist_ok=True)
        photo.save(Path("camera", name))
        box = {"category": "1", "conf": 0.9, "bbox": [200 / 320, 100 / 240, 64 / 320, 64 / 240]}
        unsure = {"category": "1", "conf": 0.1, "bbox": [0, 0, 0.1, 0.1]}
        images.append({"file": name, "detections": [box, unsure, {**box, "category": "2"}]})
    images += [
        {"file": "day/blank.jpg", "detections": []},
        {"file": "day/damaged.jpg", "failure": "Failure image access"},
    ]
    categories = {"1": "animal", "2": "person", "3": "vehicle"}
    Path("detections.json").write_text(json.dumps({"detection_categories": categories, "images": images}))


def annotate() -> None:
    """Write what Label Studio exports after a person has called every pattern a zebra."""
    result = {"from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": ["zebra"]}}
    names = [f"camouflage/0000{number}.png" for number in range(4)]
    tasks = [
        {"data": {"image": f"/data/{name}", "path": name}, "annotations": [{"result": [result]}]} for name in names
    ]
    Path("project.json").write_text(json.dumps(tasks))


def check_update() -> None:
    assert len(rows("run/predictions.csv")) == 24 * 5
    assert len(rows("suggestions.csv")) == 10


def check_two_days() -> None:
    said = [json.loads(line) for line in Path("run/corrections.jsonl").read_text().splitlines()]
    assert [(one["kind"], one["person"]) for one in said] == [
        *(("label", "anna"), ("rename", "anna"), ("merge", "anna")),
        *(("label", "ben"), ("label", "ben"), ("undo", "ben")),
    ]
    found = {row["path"]: row["label"] for row in rows("labels.csv")}
    assert len(found) == 24 * 5
    assert found["zebra/00000.png"] == found["zebra/00001.png"] == "zebra stripes"
    assert found[said[3]["images"][0]] == "ikat"
    assert not {"zebra", "gingham", "checkered"} & set(found.values())
    assert "checks" in found.values()


def check_no_class() -> None:
    found = [row["path"] for row in rows("nothing.csv")]
    assert {"camouflage/00000.png", "camouflage/00001.png"} <= set(found)
    rejected = [row for row in rows("strict/predictions.csv") if row["label"] == "none of these"]
    assert len(rejected) == round(0.05 * 96)
    assert len(rows("labels.csv")) == 96 - len(rejected)


def check_crops() -> None:
    assert len(list(Path("crops/day").iterdir())) == 24
    with Image.open("crops/day/0.jpg-0.jpg") as crop:
        assert crop.size == (64, 64)
    known = {Path(row["path"]).name: row["label"] for row in rows("animals.csv")}
    classes = Path("classes.txt").read_text().split()
    assert sum(known[f"{number}.jpg-0.jpg"] == name for number, name in enumerate(classes)) >= 8


def check_dataset() -> None:
    assert Path("dataset/class_map.txt").read_text().split() == Path("classes.txt").read_text().split()
    assert {path.name for path in Path("dataset").iterdir() if path.is_dir()} == {"train", "val", "test"}
    assert len(list(Path("dataset").rglob("*.png"))) == len(rows("dataset/labels.csv"))


def check_label_studio() -> None:
    assert Path("tasks.xml").is_file()
    assert len(json.loads(Path("tasks.json").read_text())) == 96
    after = {row["path"]: row["label"] for row in rows("after-review.csv")}
    assert {after[f"camouflage/0000{number}.png"] for number in range(4)} == {"zebra"}


def check_own_model() -> None:
    card = json.loads(Path("textiles/run.json").read_text())
    assert card["settings"]["backbone"] == "embedded:patterns"
    assert card["settings"]["template"] == "a photograph of {} cloth"


def check_large() -> None:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table("labels")
    assert table.num_rows == 96
    assert set(table["status"].to_pylist()) == {"ok"}


def check_student() -> None:
    assert len(list(Path("student").glob("*.onnx"))) == 1
    assert len(rows("by-student.csv")) == 24


PREPARATIONS = {"Boxes from MegaDetector": photograph_animals, "Label Studio": annotate}
NEEDS = {"100,000 images on one GPU": "pyarrow", "A small model on a phone": "onnxscript"}
CHECKS: dict[str, Callable[[], None]] = {
    "New photos tomorrow": check_update,
    "Two days and two people": check_two_days,
    "Images of no class": check_no_class,
    "Boxes from MegaDetector": check_crops,
    "ImageFolder for timm, torchvision or YOLO": check_dataset,
    "Label Studio": check_label_studio,
    "Your field's CLIP": check_own_model,
    "100,000 images on one GPU": check_large,
    "A small model on a phone": check_student,
}


@pytest.fixture(scope="module")
def beginning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the folder in which the page's beginning was run, which is called `here` beside it."""
    base = tmp_path_factory.mktemp("recipes")
    (base / "here").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(base / "here")
        run_blocks(BEGINNING, patch)
    return shutil.copytree(base / "here", base / "copy")


SLOW = "100,000 images on one GPU"  # starts processes


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == SLOW)) for name in SECTIONS])
def test_the_recipe_runs(name: str, beginning: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(NEEDS.get(name, "captune"))
    here = beginning.parent / "here"  # the place where the run was made, so its images may be exported
    shutil.rmtree(here)
    monkeypatch.chdir(shutil.copytree(beginning, here))
    PREPARATIONS.get(name, lambda: None)()
    run_blocks(SECTIONS[name], monkeypatch)
    CHECKS[name]()


def test_every_recipe_has_a_check() -> None:
    assert set(CHECKS) == set(SECTIONS)
