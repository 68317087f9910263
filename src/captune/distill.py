"""Distillation: a small image classifier, trained on the labels of a run, that works without its backbone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from captune.backbones.base import fingerprint_of, local_path
from captune.backbones.hf import IMAGENET_MEAN, IMAGENET_STD
from captune.backbones.image import ImageModel
from captune.core import runtime
from captune.core.arrays import Floats, Ints, evenly_spaced
from captune.core.errors import InputError, ModelError, import_extra, require
from captune.core.runtime import Runtime, unchanged
from captune.core.settings import build
from captune.data.loading import load_batches
from captune.data.precomputed import Embeddings, check_memory
from captune.data.views import Preprocessing, StrongView
from captune.exports.base import check_target
from captune.exports.onnx import N_CHECKED, Examples, write_onnx
from captune.results.image_classifier import MODEL, ONNX, load
from captune.results.run_folder import EXPORTS
from captune.review.opening import open_session
from captune.training.batch_sources import draw_batches
from captune.training.loop import Optimization, Schedule, StepResult, fit

if TYPE_CHECKING:
    from captune.data.inputs import Images
    from captune.results.run import Run
    from captune.review.session import Session

MOST_VIEWS, MOST_BYTES = 16, 2**31
"""Views of each image that the teacher classifies, and the memory of all views; but there are two at least."""
WEIGHT_DECAY, WARMUP = 5e-4, 5
SMALL = "small"
"""The student that needs no download: a ResNet of transformers with ten layers and 200,000 parameters."""
SIDE = 64
"""Side of the images of a network that starts from random weights, if no other is asked for."""
BATCH_SIZE = 64
SMALLEST_AREA = 0.5
"""Smallest share of an image that a random crop shows."""
Network = tuple[nn.Module, Callable[[Tensor], Tensor], Preprocessing, str]
"""A network, the function that computes its features, its preprocessing, and why its weights are random."""


@dataclass(frozen=True)
class Distilled:
    """A distilled classifier.

    Attributes:
        path: The ONNX file, which `captune.load` reads.
        n_images: Number of images that it was trained on.
        operations: Floating-point operations for one image, of the student and of the teacher's image encoder.
        accuracies: Accuracy of student and teacher, and the number of images, by what it was measured on.
        remarks: What else is worth knowing.
    """

    path: Path
    n_images: int
    operations: tuple[int, int]
    accuracies: Mapping[str, tuple[float, float, int]]
    remarks: tuple[str, ...]

    def __str__(self) -> str:
        own, others = self.operations
        lines = [
            f"Trained on {self.n_images} images; {own / 1e6:,.1f} million operations per image, {own / others:.1%} "
            "of the teacher's."
        ]
        lines += [
            f"Accuracy on {n} {what}: student {student:.1%}, teacher {teacher:.1%}."
            for what, (student, teacher, n) in self.accuracies.items()
        ]
        return "\n".join([*lines, *self.remarks])


@unchanged()
def distill(
    run: Run,
    out: str | Path | None = None,
    student: str = SMALL,
    *,
    test: Images | None = None,
    test_labels: Any = "folders",  # noqa: ANN401 (what `read_labels` takes)
    images: Images | None = None,
    image_size: int = 0,
    epochs: int = 300,
    seed: int = 0,
    workers: int = -1,
    overwrite: bool = False,
    quiet: bool = False,
) -> Distilled:
    """Train a small classifier on the labels of a run, accepted ones if there are some, and export it to ONNX.

    It is measured on images that people checked, on which it is not trained, and on the labeled images in `test`.
    `image_size` 0 is that of the student's weights, or 64 if they are random; `images` says where those of the run are.
    """
    require("onnx", "onnx", "onnxruntime")
    path = run.folder / EXPORTS / "student.onnx" if out is None else Path(out)
    target = path if path.suffix.lower() == ONNX else path / MODEL
    check_target(target, overwrite, is_folder=False)
    engine = runtime.start(seed=seed, workers=workers, quiet=quiet)
    session = open_session(run, images=images, quiet=True)
    if isinstance(session.images, Embeddings):
        raise InputError("This run was made from embeddings, but a student learns from images. Adapt with images.")
    weights, checks, remarks = _choose_images(session)
    rows, teacher = np.flatnonzero(weights), session.classifier
    with engine.seeded(0):
        network = Student(student, len(session.names), image_size)
        prepared, is_random = network.preprocessing, bool(network.random_because)
        operations = _operations(network, prepared), _operations(teacher.backbone.encode_image, teacher.preprocessing)
        views, targets = teach(session, rows, prepared, engine)
        data = Distillation(views, targets, weights[rows], prepared, engine)
        choices = {"epochs": epochs, "learning_rate": 0.1 if is_random else 0.01, "warmup_epochs": min(WARMUP, epochs)}
        optimization = build(Optimization, {**choices, "weight_decay": WEIGHT_DECAY}, "settings")
        fit(SoftLabelObjective(network.to(engine.device)), data, optimization, engine)
    if is_random:
        remarks.append(f"The student started from random weights. {network.random_because}")
    remarks.append(_export(network, session.names, student, target, views[0]))
    made, accuracies = load(target), {}
    if checks:
        truth = np.asarray(list(checks.values()))
        own = made.score(session.images.subset(list(checks)), [session.names[c] for c in truth])
        others = (session.predictions_without_checks().labels[list(checks)] == truth).mean()
        accuracies["checked images"] = own, float(others), len(checks)
    if test is not None:
        measured = made.evaluate(test, test_labels)
        accuracies["labeled images"] = measured.accuracy, teacher.score(test, test_labels), measured.n_images
    if not accuracies:
        remarks.append("Its accuracy is not known: answer checks (captune suggest), or pass labeled images.")
    return Distilled(target, len(rows), operations, accuracies, tuple(remarks))


def _choose_images(session: Session) -> tuple[Floats, dict[int, int], list[str]]:
    """Return the weight of each image in training, the class ids of checked images, and remarks."""
    predictions, ids = session.predictions, {name: i for i, name in enumerate(session.names)}
    weights, remarks = np.where(predictions.is_rejected, 0.0, predictions.confidence).astype(np.float32), []
    answers = {row: answer for row, answer in session.labels.items() if not answer.is_group}
    certificate = session.engine.review.get("accepted") or {}
    if certificate.get("n_accepted"):
        accepted = session.accept(certificate["precision"], certificate["certainty"])
        weights[np.setdiff1d(np.arange(len(weights)), [*accepted.positions, *answers])] = 0.0
        remarks.append(accepted.sentence)
    checks = {row: ids[answer.label] for row, answer in answers.items() if answer.is_check and answer.label in ids}
    weights[list(checks)] = 0.0
    if not weights.any():
        raise InputError("There are no labels to learn from: all images are checked or none of the classes.")
    return weights, checks, remarks


def _operations(encode: Callable[[Tensor], Any], preprocessing: Preprocessing) -> int:
    """Return the floating-point operations for one image, as PyTorch counts them."""
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        encode(torch.zeros(1, 3, *preprocessing.shape))
    return int(counter.get_total_flops())


def teach(
    session: Session, rows: Ints, preprocessing: Preprocessing, engine: Runtime
) -> tuple[NDArray[np.uint8], Floats]:
    """Return random views of images `(views, images, side, side, 3)`, and what the teacher says of each.

    The teacher sees the very crop that the student sees, `(views, images, classes)`; what a person said counts for all.
    """
    teacher, images = session.classifier, session.images.subset(rows)
    shape, side = teacher.preprocessing.shape, preprocessing.image_size
    n_bytes = 3 * side * side * len(rows)
    n_views = max(2, min(MOST_VIEWS, MOST_BYTES // n_bytes))
    check_memory(n_views * n_bytes, f"{n_views} views of {len(rows)} images")
    views = np.empty((n_views, len(rows), side, side, 3), dtype=np.uint8)
    targets = np.empty((n_views, len(rows), len(session.names)), dtype=np.float32)
    both = teacher.preprocessing.followed_by(preprocessing)
    batches = np.array_split(np.arange(len(rows)), -(-len(rows) // BATCH_SIZE))
    with engine.progress("Teaching", n_views * len(rows)) as advance:
        for number in range(n_views):
            view = StrongView(both, number, SMALLEST_AREA)
            for batch in load_batches(images, batches, view, workers=engine.workers):
                if batch.problems:
                    position, reason = next(iter(batch.problems.items()))
                    raise InputError(f"{images.name(position)!r} can no longer be read: {reason}. Restore it.")
                views[number, batch.positions] = batch.pixels[:, shape[0] :, :side]
                targets[number, batch.positions] = teacher.score_views(batch.pixels[:, : shape[0], : shape[1]])
                advance(len(batch.positions))
    answered = np.isin(rows, [row for row, answer in session.labels.items() if not answer.is_group])
    targets[:, answered] = session.predictions.probabilities[rows[answered]]
    return views, targets


def _export(student: Student, names: tuple[str, ...], identifier: str, target: Path, views: NDArray[np.uint8]) -> str:
    """Write the student as ONNX, checked against PyTorch, and return what was found."""
    views = views[evenly_spaced(len(views), N_CHECKED)]
    student.cpu().eval()
    with torch.inference_mode():
        examples = Examples(views, student(student.preprocessing.normalize(views))[0].numpy())
    [remark] = write_onnx(
        student,
        target,
        examples,
        names=names,
        preprocessing=student.preprocessing,
        logit_scale=1.0,
        backbone=identifier,
        backbone_fingerprint=fingerprint_of([student]),
        tuner="distilled",
    )
    return remark


class Student(nn.Module):
    """An image network and a linear layer: preprocessed images in, probabilities and features out.

    `random_because` says why the network starts from random weights; it is empty if it has its own.
    """

    def __init__(self, identifier: str, n_classes: int, side: int = 0) -> None:
        super().__init__()
        source, _, name = identifier.partition(":")
        if identifier != SMALL and not (source in ("timm", "hf") and name):
            raise InputError(f"Unknown student {identifier!r}: expected {SMALL}, timm:NAME or hf:NAME.")
        load = _from_timm if source == "timm" else _from_transformers
        self.network, self.encode, self.preprocessing, self.random_because = load(name, side)
        self.network.eval().requires_grad_(True)
        with torch.no_grad():
            self.width = self.features(torch.zeros(1, 3, *self.preprocessing.shape)).shape[1]
        self.head = nn.Linear(self.width, n_classes)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities `(images, classes)` and features `(images, width)`."""
        features = self.features(pixels)
        return self.head(features).softmax(dim=-1), features

    def features(self, pixels: Tensor) -> Tensor:
        """Return what the network pools."""
        return self.encode(pixels).flatten(1)


def _prepared(side: int, mean: Any = IMAGENET_MEAN, std: Any = IMAGENET_STD) -> Preprocessing:  # noqa: ANN401
    return Preprocessing(side, side, "bicubic", tuple(mean), tuple(std))


def _from_timm(name: str, side: int) -> Network:
    timm = import_extra("timm", "timm")
    try:
        found, why = timm.create_model(name, pretrained=True, num_classes=0), ""
    except Exception as error:  # every way to have no weights has its own error class
        why = str(error).splitlines()[0]
        try:
            found = timm.create_model(name, pretrained=False, num_classes=0)
        except RuntimeError as unknown:
            raise ModelError(f"{unknown}. Names of timm: https://huggingface.co/timm") from error
    facts = found.pretrained_cfg
    own = SIDE if why else int(facts["input_size"][-1])
    return found, found, _prepared(side or own, facts["mean"], facts["std"]), why


def _from_transformers(name: str, side: int) -> Network:
    from transformers import AutoConfig, AutoModel, ResNetConfig

    if name:
        try:
            loaded = ImageModel.load(name)
            model, own, why = loaded.model, loaded.preprocessing, ""
        except ModelError as error:
            try:
                config, why = AutoConfig.from_pretrained(local_path(name), trust_remote_code=False), str(error)
            except (OSError, ValueError):
                raise error from None
    else:
        small = {"embedding_size": 8, "hidden_sizes": [8, 16, 32, 64, 96], "depths": [1] * 5, "layer_type": "basic"}
        config, why = ResNetConfig(**small), f"{SMALL!r} has no other weights."
    if why:
        own = _prepared(side or SIDE)
        if hasattr(config, "image_size"):
            config.image_size = own.image_size
        model = AutoModel.from_config(config)
    elif side:
        own = replace(own, image_size=side, resize=side if own.resize else 0)
    return model, ImageModel("student", model, own).image_features, own, why


class SoftLabelObjective(nn.Module):
    """The weighted mean of the cross-entropies between soft labels and the student's probabilities."""

    def __init__(self, student: Student) -> None:
        super().__init__()
        self.student = student

    def forward(self, batch: tuple[Tensor, Tensor, Tensor]) -> StepResult:
        """Return the loss of a step: pixels, soft labels `(images, classes)` and weights of the images."""
        pixels, targets, weights = batch
        logits = self.student.head(self.student.features(pixels))
        losses = -(targets * logits.log_softmax(dim=-1)).sum(dim=-1)
        return StepResult((weights * losses).sum() / weights.sum(), {})


@dataclass(eq=False)
class Distillation(Schedule):
    """Batches of views `(views, images, side, side, 3)`, of which each epoch draws one per image."""

    views: NDArray[np.uint8]
    targets: Floats
    weights: Floats
    preprocessing: Preprocessing
    engine: Runtime

    def __post_init__(self) -> None:
        self.iterations = -(-len(self.weights) // BATCH_SIZE)

    def batches(self, epoch: int, first_step: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield views, drawn by the seed and the epoch, with their soft labels and weights."""
        generator, device = np.random.default_rng([self.engine.seed, epoch]), self.engine.device
        drawn = generator.integers(len(self.views), size=len(self.weights))
        for rows in draw_batches(generator, len(self.weights), self.iterations, BATCH_SIZE)[first_step:]:
            pixels = self.preprocessing.normalize(self.views[drawn[rows], rows])
            targets, weights = (
                torch.from_numpy(part) for part in (self.targets[drawn[rows], rows], self.weights[rows])
            )
            yield tuple(part.to(device) for part in (pixels, targets, weights))
