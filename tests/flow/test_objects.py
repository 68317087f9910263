"""What `adapt` returns is shown, measured, turned into tables and reports, and saved."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from toys import ToyBackbone, write_images

import captune
from captune.core.errors import InputError
from captune.results.image_classifier import ImageClassifier, SkippedWarning
from captune.results.run import Run

NAMES = ["cat", "<b>dog</b>", "bird & co"]
N, BROKEN = 9, 4
LABELS = [NAMES[i % 3] for i in range(N)]


class Photos:
    """A dataset of which one item cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.images = [np.asarray(Image.open(path)) for path in sorted(folder.glob("*.png"))]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, position: int) -> Any:
        if position == BROKEN:
            raise OSError("the disk is gone")
        return self.images[position]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    return Photos(write_images(tmp_path_factory.mktemp("objects") / "photos", N))


@pytest.fixture(scope="module")
def run(photos: Photos) -> Run:
    return captune.adapt(photos, NAMES, method="zero_shot", backbone=ToyBackbone(), workers=0, quiet=True)


class Tags(HTMLParser):
    """The tags and the text of some HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_predictions_as_a_table(run: Run) -> None:
    table = run.predictions.to_pandas()
    assert list(table.columns) == ["path", "label", "confidence", "fits"]
    assert table.index.tolist() == [i for i in range(N) if i != BROKEN]
    assert table.loc[BROKEN + 1, "path"] == f"image-{BROKEN + 1}"
    assert table["label"].tolist() == [NAMES[c] for c in run.predictions.labels]
    whole = run.predictions.to_pandas(probabilities=True)
    np.testing.assert_array_equal(whole[NAMES].to_numpy(), run.predictions.probabilities)


def test_a_class_may_be_called_like_a_column(photos: Photos) -> None:
    run = captune.adapt(photos, ["label", "path"], method="zero_shot", backbone=ToyBackbone(), workers=0, quiet=True)
    table = run.predictions.to_pandas(probabilities=True)
    assert set(table["label"]) <= {"label", "path"}
    np.testing.assert_array_equal(table["label (class)"], run.predictions.probabilities[:, 0])


def test_a_run_is_evaluated_on_the_images_that_could_be_read(run: Run) -> None:
    right = np.mean([label == LABELS[i] for i, label in run.predictions.to_pandas()["label"].items()])
    assert run.evaluate(LABELS).accuracy == pytest.approx(right)
    assert run.evaluate({0: NAMES[0]}).n_images == 1
    with pytest.raises(InputError, match="8 readable images"):
        run.evaluate({BROKEN: NAMES[0]})
    with pytest.raises(InputError, match="9 labels"):
        run.evaluate(LABELS[1:])


def test_the_report_is_one_page(run: Run, tmp_path: Path) -> None:
    report = run.report(LABELS)
    assert f"{run.evaluate(LABELS).accuracy:.1%}" in report.html
    assert "captune.adapt(images, classes, **yaml.safe_load(open('settings.yaml')))" in Tags(report.html).text
    assert "/tmp" not in report.html
    assert report.save(tmp_path / "report.html").read_text(encoding="utf-8") == report.html
    shown = Tags(report._repr_html_())
    assert shown.tags == {"iframe"}, "the page is an attribute, whole and escaped"
    assert report.html.replace("\n", "") in unescaped(report._repr_html_())
    assert len(repr(report)) < 100


def unescaped(html: str) -> str:
    from html import unescape

    return unescape(html).replace("\n", "")


def test_saving_replaces_a_run_only_if_asked_to(run: Run, photos: Photos, tmp_path: Path) -> None:
    folder = run.save(tmp_path / "run")
    assert (folder / "report.html").is_file()
    with pytest.raises(captune.CaptuneError, match="overwrite"):
        run.save(folder)
    run.save(folder, overwrite=True)
    loaded = captune.load(folder, backbone=ToyBackbone())
    np.testing.assert_array_equal(
        loaded.predict_proba(photos.images[:BROKEN]), run.classifier.predict_proba(photos.images[:BROKEN])
    )


def test_the_classifier_speaks_scikit_learn(run: Run, photos: Photos) -> None:
    classifier: ImageClassifier = run.classifier
    assert classifier.classes_.tolist() == NAMES
    images = [image for i, image in enumerate(photos.images) if i != BROKEN]
    labels = [label for i, label in enumerate(LABELS) if i != BROKEN]
    assert classifier.score(images, labels) == run.evaluate(LABELS).accuracy
    vectors = classifier.embed(images)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(classifier.embed(captune.Embeddings(vectors)), vectors, rtol=1e-5)
    assert classifier.embed([]).shape == (0, vectors.shape[1])


def test_bad_images_are_named(run: Run, photos: Photos) -> None:
    with pytest.warns(SkippedWarning, match=f"image-{BROKEN}.*the disk is gone"):
        assert run.classifier.predict(photos)[BROKEN] is None
    for call in (run.classifier.predict, run.classifier.embed):
        with pytest.raises(InputError, match=r"width 5.*width 12"):
            call(captune.Embeddings(np.ones((2, 5))))


def test_objects_show_a_few_facts(run: Run, photos: Photos) -> None:
    found = captune.audit(photos, NAMES, backbone=ToyBackbone(), workers=0, quiet=True)
    for shown in (run, run.predictions, run.classifier, run.evaluate(LABELS), found):
        assert len(repr(shown)) < 300
        assert "\n" not in repr(shown)
        table = Tags(shown._repr_html_())
        assert table.tags == {"table", "caption", "tbody", "tr", "th", "td"}, "class names are escaped"
        assert type(shown).__name__ in table.text
    assert "images=8" in repr(run)
    assert "<b>dog</b>" in Tags(run.classifier._repr_html_()).text
    assert "captune audit" in found.report().html


def test_many_classes_are_counted() -> None:
    texts = captune.ClassTexts([f"class {i}" for i in range(50)], np.eye(50))
    run = captune.adapt(captune.Embeddings(np.eye(50)), texts, method="zero_shot", quiet=True)
    assert "'... (45 more)'" in repr(run.classifier)
    assert "accuracy=1.0" in repr(run.evaluate(np.arange(50)))
