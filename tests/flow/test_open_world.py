"""Images that fit no name: from `reject` and the answer NONE to predictions.csv and exports."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

import captune
from captune.core.arrays import unit_rows
from captune.results.run import Run


def make() -> tuple[captune.Embeddings, captune.ClassTexts]:
    generator = np.random.default_rng(0)
    centers = unit_rows(generator.normal(size=(4, 16)).astype(np.float32))
    images = centers[np.repeat(np.arange(4), 25)] + 0.15 * generator.normal(size=(100, 16))
    return captune.Embeddings(images), captune.ClassTexts(("cat", "dog", "fox"), centers[:3], 20.0)


def test_rejected_images_are_none_of_these_in_the_table_and_left_out_of_exports(tmp_path: Path) -> None:
    images, texts = make()
    run = captune.adapt(images, texts, method="transductive", reject=0.2, out=tmp_path / "run", quiet=True)
    assert run.predictions.is_rejected.sum() == 20
    assert run.predictions.is_rejected[75:].sum() >= 15
    with (tmp_path / "run" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sum(row["label"] == captune.NONE for row in rows) == 20
    read = Run.read(tmp_path / "run")
    assert np.array_equal(read.is_rejected, run.predictions.is_rejected)
    assert np.array_equal(read.labels, run.predictions.labels)
    captune.export(tmp_path / "run", "csv", tmp_path / "labels.csv")
    with (tmp_path / "labels.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 80


def test_an_answer_that_no_name_fits_lowers_the_fit_of_similar_images(tmp_path: Path) -> None:
    images, texts = make()
    session = captune.open_session(images, texts, method="transductive", keep_better=False)
    before = session.predictions.fits
    for image in (80, 90, 95):
        session.label(image, captune.NONE)
    after = session.predictions.fits
    assert before is not None
    assert after is not None
    assert after[[80, 90, 95]].tolist() == [0, 0, 0]
    assert after[75:].mean() < before[75:].mean()
    session.save(tmp_path / "run")
    assert Run.read(tmp_path / "run").is_rejected[[80, 90, 95]].all()


def test_a_run_names_what_no_image_seems_to_show() -> None:
    generator = np.random.default_rng(0)
    centers = unit_rows(generator.normal(size=(30, 16)).astype(np.float32))
    images = centers[np.repeat(np.arange(3), 30)] + 0.2 * generator.normal(size=(90, 16))
    texts = captune.ClassTexts([f"name {i}" for i in range(30)], centers, 20.0)
    run = captune.adapt(captune.Embeddings(images), texts, method="transductive", quiet=True)
    assert len(run.absent_names) >= 25
    assert not {"name 0", "name 1", "name 2"} & set(run.absent_names)
