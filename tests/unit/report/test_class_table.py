"""Matrices of classes that exchange images, their pictures, and what is capped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from captune.report import class_table, pictures
from captune.report.class_table import Column, capped, listing
from captune.report.measures import Measures
from captune.results.run import Run


@pytest.fixture
def unadapted(run_folder: Any) -> Measures:
    folder = run_folder(adapted=False)
    return Measures(Run.read(folder, folder.parent / "images" / "labels.csv"))


def test_the_matrix_counts_the_labeled_images(unadapted: Measures) -> None:
    run, found = unadapted.run, class_table.mistakes(unadapted)
    assert found is not None
    assert run.truth is not None
    from sklearn.metrics import confusion_matrix

    classes = [run.names.index(name) for name in found.names]
    expected = confusion_matrix(run.truth, run.labels, labels=range(run.n_classes))[np.ix_(classes, classes)]
    assert [[cell.count for cell in row] for row in found.cells] == expected.tolist()
    assert found.n_moved == int((run.truth != run.labels).sum()) == sum(pair.n_images for pair in found.pairs)


def test_cells_lead_to_the_pictures_of_their_pair(unadapted: Measures) -> None:
    found = class_table.mistakes(unadapted)
    assert found is not None
    linked = {
        cell.pair: (a, b, cell.count)
        for a, row in zip(found.names, found.cells, strict=True)
        for b, cell in zip(found.names, row, strict=True)
        if cell.pair
    }
    assert linked == {i: (pair.first, pair.second, pair.n_images) for i, pair in enumerate(found.pairs, start=1)}
    folders = {name: f"class {i}" for i, name in enumerate(unadapted.run.names)}
    for pair in found.pairs:
        assert pair.pictures
        assert all(picture.path.startswith(folders[pair.first]) for picture in pair.pictures)


def test_many_classes_and_pairs_are_capped_saying_so(unadapted: Measures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_table, "MOST_CLASSES", 2)
    monkeypatch.setattr(class_table, "MOST_PAIRS", 1)
    whole = class_table.hesitations(unadapted)
    assert whole is not None
    assert len(whole.names) == len(whole.cells) == 2
    assert "2 classes that exchange the most images, of " in whole.caption
    assert whole.left_out.startswith("The 1 most frequent of ")


def test_changed_images_tell_whether_they_are_right_now(run_folder: Any) -> None:
    folder = run_folder()
    measures = Measures(Run.read(folder, folder.parent / "images" / "labels.csv"))
    found = class_table.changes(measures)
    assert found is not None
    assert {words.split("; ")[1] for pair in found.pairs for words in (p.words for p in pair.pictures)} == {"now right"}


def test_tables_and_lists_are_capped_saying_so() -> None:
    columns, sentence = capped([Column("Class", ["a", "b", "c"], "name")], [1, 0, 5], most=2)
    assert columns[0].values == ["a", "c"]
    assert sentence == "The table shows the 2 classes with the most images, of 3."
    names = [str(i) for i in range(class_table.MOST_NAMES + 3)]
    assert listing(names).endswith("and 3 more")


def test_the_least_confident_come_first(unadapted: Measures) -> None:
    run = unadapted.run
    shown = pictures.unsure_pictures(unadapted)
    assert shown[0].path == run.images.name(int(run.confidence.argmin()))
    assert len(shown) == pictures.MOST_UNSURE


def test_a_noisy_picture_is_made_smaller(tmp_path: Any) -> None:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (900, 900, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png", compress_level=1)
    found = pictures.encode_picture(tmp_path / "noise.png")
    assert found is not None
    assert len(found) < 1.4 * pictures.MOST_BYTES
    (tmp_path / "noise.png").write_bytes(b"nothing")
    assert pictures.encode_picture(tmp_path / "noise.png") is None
