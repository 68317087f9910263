"""Distillation: a student of any source learns from the labels of a run, and is a classifier like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reviewed import make_review
from vision_folder import import_vision

import captune
from captune.core import runtime
from captune.core.errors import InputError, ModelError
from captune.data.views import StrongView
from captune.distill import SMALLEST_AREA, Distilled, SoftLabelObjective, Student, distill, teach
from captune.results.image_classifier import OnnxClassifier
from captune.results.run import Run
from captune.review.opening import open_session
from captune.world import class_names, write_world

timm, REASON = import_vision("timm")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run.read(make_review(tmp_path_factory.mktemp("distill"), per_class=3))


@pytest.fixture(scope="module")
def made(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Distilled:
    return short(run, tmp_path_factory.mktemp("student"), test=run.folder.parent / "images")


def short(run: Run, out: Path, student: str = "small", **settings: Any) -> Distilled:
    return distill(run, out, student, **{"epochs": 1, "workers": 0, "quiet": True, **settings})


def card(made: Distilled) -> Any:
    return OnnxClassifier(made.path).card


def test_the_student_is_a_classifier_like_any_other(run: Run, made: Distilled) -> None:
    student = captune.load(made.path.parent)
    assert student.names == run.names
    assert (made.n_images, made.path.name) == (len(run.readable), "model.onnx")
    probabilities = student.predict_proba(run.readable.paths[:5])
    assert probabilities.shape == (5, len(run.names))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    (own, teacher, n_images) = made.accuracies["labeled images"]
    assert n_images == len(run.readable)
    assert own == student.score(run.folder.parent / "images", "folders")
    assert teacher == run.classifier.score(run.folder.parent / "images", "folders")
    assert made.operations[0] < 0.1 * made.operations[1]
    assert "random weights" in str(made)


def test_the_seed_decides_every_bit(run: Run, made: Distilled, tmp_path: Path) -> None:
    again, other = (card(short(run, tmp_path / str(seed), seed=seed)) for seed in (0, 1))
    assert again.backbone_fingerprint == card(made).backbone_fingerprint != other.backbone_fingerprint


def test_nothing_is_replaced_unasked(run: Run, made: Distilled) -> None:
    with pytest.raises(InputError, match="overwrite"):
        short(run, made.path)


def test_checks_are_measured_and_not_learned(tmp_path: Path) -> None:
    folder = make_review(tmp_path, per_class=3)
    session = open_session(folder, person="tester", quiet=True)
    checked = [suggestion.position for suggestion in session.suggest_checks(0.8)]
    wrong = session.names[0]
    session.label(dict.fromkeys(checked, wrong), suggestion="precision")
    session.save()
    found = short(Run.read(folder), tmp_path / "student")
    own, teacher, n_checks = found.accuracies["checked images"]
    assert n_checks == len(checked)
    assert found.n_images == len(session.images) - n_checks
    predicted = session.predictions_without_checks().labels[checked]
    assert teacher == pytest.approx(float((predicted == 0).mean()))
    images = session.images.subset(checked)
    assert own == captune.load(found.path).score(images, [wrong] * len(checked))


def test_only_accepted_labels_are_learned_where_some_are(tmp_path: Path) -> None:
    folder = make_review(tmp_path, per_class=3)
    session = open_session(folder, person="tester", quiet=True)
    while not len(accepted := session.accept(0.7, 0.9)):
        checks = [suggestion.position for suggestion in session.suggest_checks(0.7)]
        labels = session.predictions_without_checks().labels
        session.label({i: session.names[labels[i]] for i in checks}, suggestion="precision")
    session.save()
    found = short(Run.read(folder), tmp_path / "student")
    checked = found.accuracies["checked images"][2]
    assert found.n_images == len(set(accepted.positions.tolist()) - set(session.labels))
    assert 0 < found.n_images < len(session.images) - checked
    assert accepted.sentence in found.remarks


def test_a_network_of_transformers_needs_its_configuration_only(run: Run, tmp_path: Path) -> None:
    from transformers import ResNetConfig

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    config.save_pretrained(tmp_path / "resnet")
    found = short(run, tmp_path / "student", f"hf:{tmp_path / 'resnet'}", image_size=48)
    assert any("random weights" in remark for remark in found.remarks)
    assert card(found).preprocessing.image_size == 48


def test_a_network_with_weights_starts_from_them(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32)
    model = ViTModel(config, add_pooling_layer=False)
    model.save_pretrained(tmp_path)
    student = Student(f"hf:{tmp_path}", 3)
    assert not student.random_because
    assert student.preprocessing.image_size == 32
    torch.testing.assert_close(student.network.state_dict(), model.state_dict())
    assert all(parameter.requires_grad for parameter in student.parameters())


@pytest.mark.skipif(timm is None, reason=REASON)
def test_a_network_of_timm(run: Run, tmp_path: Path) -> None:
    found = short(run, tmp_path, "timm:mobilenetv3_small_050")
    assert any("random weights" in remark for remark in found.remarks)
    assert captune.load(found.path).predict(run.readable.paths[:2])
    with pytest.raises(ModelError, match="no-such-network"):
        Student("timm:no-such-network", 2)


def test_the_teacher_sees_the_crops_of_the_student(run: Run) -> None:
    session = open_session(run, quiet=True)
    student = Student("small", len(session.names), 48)
    rows = np.arange(4)
    views, targets = teach(session, rows, student.preprocessing, runtime.start(workers=0, quiet=True))
    assert (views.shape, targets.shape) == ((16, 4, 48, 48, 3), (16, 4, len(session.names)))
    teacher, key = session.classifier, session.images.read(2).key
    crop = StrongView(teacher.preprocessing, 5, SMALLEST_AREA)(session.images.read(2).decode(), 2, key)
    np.testing.assert_allclose(targets[5, 2], teacher.score_views(crop[None])[0], atol=1e-5)
    crop = StrongView(student.preprocessing, 5, SMALLEST_AREA)(session.images.read(2).decode(), 2, key)
    np.testing.assert_array_equal(views[5, 2], crop)


@pytest.mark.parametrize("identifier", ["", "tiny", "hf:", "open_clip:ViT-B-32"])
def test_an_unknown_student_is_an_error(identifier: str) -> None:
    with pytest.raises(InputError, match="small, timm:NAME or hf:NAME"):
        Student(identifier, 2)


def test_a_missing_network_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        Student(f"hf:{tmp_path / 'none'}", 2)


def test_a_run_of_embeddings_has_no_images_to_learn_from(run: Run, tmp_path: Path) -> None:
    vectors = run.classifier.backbone.encode_image(torch.randn(6, 3, 64, 64)).numpy()
    made = captune.adapt(
        captune.Embeddings(vectors), ["striped", "dotted"], backbone="embedded:patterns", method="zero_shot", quiet=True
    )
    with pytest.raises(InputError, match="embeddings"):
        short(made, tmp_path)


def test_the_loss_is_the_weighted_mean_of_cross_entropies() -> None:
    torch.manual_seed(0)
    student = Student("small", 4).eval()
    pixels, targets, weights = torch.randn(3, 3, 64, 64), torch.rand(3, 4).softmax(dim=1), torch.tensor([1.0, 0.5, 0.1])
    loss = SoftLabelObjective(student)((pixels, targets, weights)).loss
    probabilities = student(pixels)[0]
    terms = [
        weights[i] * sum(-targets[i, c] * torch.log(probabilities[i, c]) for c in range(4)) / weights.sum()
        for i in range(3)
    ]
    torch.testing.assert_close(loss, sum(terms))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_student_of_the_embedded_world_learns_at_a_tenth_of_the_operations(tmp_path: Path) -> None:
    from captune.world import descriptions_path

    write_world(tmp_path / "train", 50, seed=0)
    write_world(tmp_path / "test", 25, seed=0, split="test")
    teacher = captune.adapt(
        tmp_path / "train",
        list(class_names()),
        backbone="embedded:patterns",
        method="cap",
        preset="quick",
        describer=f"file:{descriptions_path()}",
        out=tmp_path / "run",
        quiet=True,
    )
    found = teacher.distill(tmp_path / "student", test=tmp_path / "test", quiet=True)
    own, others, _ = found.accuracies["labeled images"]
    assert found.operations[0] < 0.1 * found.operations[1]
    assert others - 0.1 < own < others  # from random weights; docs/distill.md has the numbers
