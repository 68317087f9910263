"""Labels for other tools: every name survives, filters filter, and the tools' own readers agree."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import numpy as np
import pytest
from export_runs import NAMES, make_run
from pyarrow import parquet

from captune.backbones.hf import HuggingFace
from captune.core.errors import InputError
from captune.exports.base import export
from captune.results.run import Run


def predicted(run: Run) -> list[str]:
    return [NAMES[label] for label in run.predictions.labels]


def paths(run: Run) -> list[str]:
    return [run.images.name(i) for i in range(len(run.images))]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv(run: Run, run_folder: Path, tmp_path: Path) -> None:
    found = rows(export(run_folder, "csv", tmp_path / "a.csv", prefix="x/").path)
    assert [row["label"] for row in found] == predicted(run)
    assert [row["path"] for row in found] == [f"x/{path}" for path in paths(run)]


def test_parquet(run: Run, run_folder: Path, tmp_path: Path) -> None:
    found = parquet.read_table(export(run_folder, "parquet", tmp_path / "a.parquet").path).to_pydict()
    assert found["label"] == predicted(run)
    assert found["path"] == paths(run)
    assert found["class_id"] == run.predictions.labels.tolist()
    assert np.allclose(found["confidence"], run.predictions.confidence, atol=1e-5)


def test_coco(run: Run, run_folder: Path, tmp_path: Path) -> None:
    content = json.loads(export(run_folder, "coco", tmp_path / "a.json").path.read_text(encoding="utf-8"))
    names = {category["id"]: category["name"] for category in content["categories"]}
    files = {image["id"]: image["file_name"] for image in content["images"]}
    found = {files[note["image_id"]]: names[note["category_id"]] for note in content["annotations"]}
    assert found == dict(zip(paths(run), predicted(run), strict=True))
    assert min(names) == min(files) == 1
    assert [note["score"] for note in content["annotations"]] == pytest.approx(run.predictions.confidence, abs=1e-5)


def test_label_studio(run: Run, run_folder: Path, tmp_path: Path) -> None:
    made = export(run_folder, "label-studio", tmp_path / "a.json").path
    tasks = json.loads(made.read_text(encoding="utf-8"))
    interface = ElementTree.fromstring(made.with_suffix(".xml").read_text(encoding="utf-8"))
    assert [choice.get("value") for choice in interface.iter("Choice")] == list(NAMES)
    for task, path, name in zip(tasks, paths(run), predicted(run), strict=True):
        assert parse_qs(urlsplit(task["data"]["image"]).query) == {"d": [path]}
        [prediction] = task["predictions"]
        assert prediction["result"][0]["value"] == {"choices": [name]}
        assert 0 <= prediction["score"] <= 1


@pytest.mark.parametrize(
    ("prefix", "shown"),
    [("https://h/i/", "https://h/i/a%20b%231.jpg"), ("s3://b/", "s3://b/a b#1.jpg"), ("", "a b#1.jpg")],
)
def test_label_studio_addresses(prefix: str, shown: str) -> None:
    from captune.exports.label_studio import _address

    assert _address(prefix, "a b#1.jpg") == shown


def test_cleanlab(run: Run, run_folder: Path, tmp_path: Path) -> None:
    folder = export(run_folder, "cleanlab", tmp_path / "c").path
    labels, probabilities, names = (np.load(folder / f"{n}.npy") for n in ("labels", "pred_probs", "paths"))
    assert np.array_equal(labels, run.predictions.labels)
    assert np.allclose(probabilities, run.predictions.probabilities)
    assert names.tolist() == paths(run)
    assert json.loads((folder / "classes.json").read_text(encoding="utf-8")) == list(NAMES)


def test_cleanlab_with_labels_of_ones_own(run: Run, run_folder: Path, tmp_path: Path) -> None:
    with (tmp_path / "own.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("path", "label"), ("two/001.png", NAMES[1]), ("one/003.png", NAMES[0])])
    folder = export(run_folder, "cleanlab", tmp_path / "c", labels=str(tmp_path / "own.csv")).path
    assert np.load(folder / "paths.npy").tolist() == ["one/003.png", "two/001.png"]
    assert np.load(folder / "labels.npy").tolist() == [0, 1]
    expected = run.predictions.probabilities[[paths(run).index("one/003.png"), paths(run).index("two/001.png")]]
    assert np.allclose(np.load(folder / "pred_probs.npy"), expected)


def test_probabilities_that_were_not_kept_are_computed_again(run: Run, run_folder: Path) -> None:
    finished = Run.read(run_folder)
    wanted = np.asarray([1, 5, 7])
    finished.arrays = {}
    assert np.allclose(finished.probabilities_of(wanted), run.predictions.probabilities[wanted], atol=1e-5)


def test_sure_images_only(run: Run, run_folder: Path, tmp_path: Path) -> None:
    limit = float(np.median(run.predictions.confidence))
    found = rows(export(run_folder, "csv", tmp_path / "a.csv", min_confidence=limit).path)
    assert 0 < len(found) < len(run.images)
    assert all(float(row["confidence"]) >= limit for row in found)


def test_what_the_training_used(run: Run, run_folder: Path, tmp_path: Path) -> None:
    found = rows(export(run_folder, "csv", tmp_path / "a.csv", source="pseudo-labels").path)
    assert [row["path"] for row in found] == paths(run)[::2]
    assert [row["label"] for row in found] == [NAMES[i % len(NAMES)] for i in range(0, len(run.images), 2)]


def test_nothing_to_export_is_an_error(clip: HuggingFace, tmp_path: Path) -> None:
    make_run(tmp_path / "run", clip, pseudo_labels=False)
    with pytest.raises(InputError):
        export(tmp_path / "run", "csv", tmp_path / "a.csv", source="pseudo-labels")
    with pytest.raises(InputError, match=r"1\.0.* 0\.\d+"):
        export(tmp_path / "run", "csv", tmp_path / "a.csv", min_confidence=1.0)
