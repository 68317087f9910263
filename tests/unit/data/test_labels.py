"""Labels from folder names or tables: -1 where none is given, all problems at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from captune.core.errors import InputError
from captune.data.images import ImageCollection, find_images
from captune.data.labels import read_labels
from captune.data.task import NONE_ID, AdaptationTask, LabeledImages, make_task
from captune.data.vocabulary import Vocabulary

NAMES = ("forest", "river")


@pytest.fixture
def photos(tmp_path: Path) -> ImageCollection:
    for name in ("forest/1.jpg", "forest/2.jpg", "river/1.jpg"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(b"x")
    return find_images(tmp_path / "photos")


def test_labels_from_folders(photos: ImageCollection) -> None:
    assert read_labels("folders", photos, NAMES).tolist() == [0, 0, 1]


@pytest.mark.parametrize("place", ["labels.csv", "photos/labels.csv"])
def test_labels_from_a_table_beside_or_inside(tmp_path: Path, photos: ImageCollection, place: str) -> None:
    (tmp_path / place).write_text("path,class\nforest/2.jpg, river \nriver/1.jpg,\n", encoding="utf-8")
    assert read_labels(tmp_path / place, photos, NAMES).tolist() == [-1, 1, -1]


def test_labels_from_parquet(tmp_path: Path, photos: ImageCollection) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"path": ["forest/1.jpg", "river/1.jpg"], "label": ["forest", None]})
    parquet.write_table(table, tmp_path / "labels.parquet")
    assert read_labels(tmp_path / "labels.parquet", photos, NAMES).tolist() == [0, -1, -1]


def test_all_wrong_labels_and_paths_are_listed_at_once(tmp_path: Path, photos: ImageCollection) -> None:
    rows = ["forest/1.jpg,Forest", "forest/2.jpg,lake", "river/1.jpg,lake", "gone.jpg,river", "forest/1.jpg,forest"]
    rows += ["forest/1.jpg,river"]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_labels(tmp_path / "labels.csv", photos, NAMES)
    message = str(caught.value)
    expected = ("'Forest'", "'lake' is not a class (images: 2)", "'gone.jpg'")
    for words in (*expected, "'forest' and 'river'", "forest, river"):
        assert words in message


def test_unknown_folders_are_listed(photos: ImageCollection) -> None:
    with pytest.raises(InputError, match=r"(?s)'forest'.*2.*'river'.*1"):
        read_labels("folders", photos, ("lake", "town"))


@pytest.mark.parametrize(("content", "words"), [(None, "labels.csv"), ("path\nx\n", "'label'"), ("a,b\n", "'path'")])
def test_a_table_that_cannot_be_used(tmp_path: Path, photos: ImageCollection, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "labels.csv").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        read_labels(tmp_path / "labels.csv", photos, NAMES)


def test_a_task_splits_labeled_and_unlabeled_images(photos: ImageCollection) -> None:
    task = make_task(Vocabulary(NAMES), photos, np.array([-1, 1, -1]))
    assert [task.unlabeled.name(i) for i in range(2)] == ["forest/1.jpg", "river/1.jpg"]
    assert len(task.labeled) == 1
    assert (task.labeled.images.name(0), task.labeled.labels.tolist()) == ("forest/2.jpg", [1])
    assert len(make_task(Vocabulary(NAMES), photos, None).labeled) == 0


def test_all_classes_are_targets_unless_those_with_labels_are_complete(photos: ImageCollection) -> None:
    some, none, both = np.array([-1, 1, -1]), np.array([-1, -1, -1]), np.array([0, 1, -1])
    assert make_task(Vocabulary(NAMES), photos, some).target_classes.tolist() == [0, 1]
    complete = make_task(Vocabulary(NAMES), photos, some, labeled_are_complete=True)
    assert (complete.target_classes.tolist(), complete.seen_classes.tolist()) == ([0], [1])
    for labels in (none, both):
        task = make_task(Vocabulary(NAMES), photos, labels, labeled_are_complete=True)
        assert task.target_classes.tolist() == [0, 1]


def test_seen_classes_are_those_that_are_no_target(photos: ImageCollection) -> None:
    assert AdaptationTask(Vocabulary(NAMES), photos, target_classes=np.array([1])).seen_classes.tolist() == [0]


def test_a_task_lists_all_that_is_wrong_with_it(photos: ImageCollection) -> None:
    labeled = LabeledImages(photos.subset([0]), np.array([7]))
    with pytest.raises(InputError) as caught:
        AdaptationTask(Vocabulary(NAMES), photos.subset([]), labeled, np.array([2]))
    for words in ("no unlabeled images", "label 7", "target class 2"):
        assert words in str(caught.value)
    with pytest.raises(InputError, match="3 labels"):
        LabeledImages(photos, np.array([1]))


def test_images_that_fit_no_class_are_neither_labeled_nor_unlabeled(photos: ImageCollection) -> None:
    task = make_task(Vocabulary(NAMES), photos, np.array([-1, 1, NONE_ID]))
    assert (len(task.unlabeled), len(task.labeled), len(task.unknown)) == (1, 1, 1)
    assert task.unknown.name(0) == photos.name(2)
