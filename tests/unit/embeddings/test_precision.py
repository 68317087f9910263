"""Mixed precision, as far as a CPU shows it: close losses, single-precision students and logits, safe numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import NAMES, adapt
from torch import Tensor, nn
from toys import ToyBackbone, write_classes, write_images

from captune.backbones.dual import DualEncoder
from captune.core import registry, runtime
from captune.core.errors import InputError
from captune.data.images import ImageCollection, find_images
from captune.data.vocabulary import Vocabulary
from captune.embeddings.cache import EmbeddingCache
from captune.embeddings.embed import embed_images
from captune.training.batch_sources import BatchSource, EmbeddingSource, PixelSource, Request, Views
from captune.training.checkpoint import CheckpointFolder
from captune.training.loop import Optimization, StepResult, fit
from captune.training.objective import CapBatch, ConfusionObjective
from captune.tuners.base import Tuner
from captune.tuners.frozen import Frozen


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("photos"), NAMES, 5)


def first_step(dual: Path, tuner_name: str, precision: str) -> tuple[float, dict[str, Tensor]]:
    """Return loss and gradients of one step of CAP on fixed images."""
    engine = runtime.start(precision=precision, accelerator="cpu", workers=0, quiet=True)
    backbone = DualEncoder.load(str(dual))
    tuner: Tuner = registry.load("tuners", tuner_name)(backbone, Vocabulary(tuple(NAMES)))
    drawn = torch.Generator().manual_seed(0)
    weak, pseudo_labeled, strong = torch.randn(3, 8, 3, 32, 32, generator=drawn)
    nothing, labels, ids = ImageCollection((), Path()), torch.arange(8) % 3, np.arange(8)
    source: BatchSource = PixelSource(nothing, nothing, ids[:0], backbone.preprocessing, engine)
    if not tuner.edits_images:
        weak, pseudo_labeled, strong = (backbone.encode_image(views) for views in (weak, pseudo_labeled, strong))
        source = EmbeddingSource(weak.numpy(), [strong.numpy()], weak[:0].numpy(), ids[:0], engine)
    allowed = torch.tensor([True, True, False])  # the others get a logit of minus infinity, also in half precision
    objective = ConfusionObjective(tuner, source, allowed, 0.0, adapter_width=16)
    objective.margin = torch.ones(3, 3)
    views = Views(pseudo_labeled, pseudo_labeled[:0], weak, strong, Request(ids, ids[:0], ids))
    with engine.autocast():
        result = objective(CapBatch(views, labels, labels[:0], None))
    result.loss.backward()
    assert int(result.sums["accepted"][2]) == 0
    gradients = {name: value.grad for name, value in objective.named_parameters() if value.grad is not None}
    assert all(value.dtype == torch.float32 for value in (*gradients.values(), *objective.parameters(), result.loss))
    return float(result.loss.detach()), gradients


@pytest.mark.parametrize("tuner", ["feature_adapter", "maple"])
def test_losses_and_gradients_are_close_in_half_precision(dual_folder: Path, tuner: str) -> None:
    loss, gradients = first_step(dual_folder, tuner, "32-true")
    close, others = first_step(dual_folder, tuner, "bf16-mixed")
    assert close != loss  # it did compute in another precision
    assert close == pytest.approx(loss, rel=0.02)
    flat, other = (torch.cat([g[name].flatten() for name in gradients]) for g in (gradients, others))
    assert torch.cosine_similarity(flat, other, dim=0) > 0.98


@pytest.mark.parametrize("preset", ["quick", "full"])
def test_students_stay_in_single_precision(photos: Path, dual_folder: Path, tmp_path: Path, preset: str) -> None:
    run = adapt(photos, f"dual:{dual_folder}", preset, precision="bf16-mixed", tau=0.0, epochs=2, cache=str(tmp_path))
    assert all(np.isfinite(facts["loss"]) for facts in run.rounds if facts["step"] == "epoch")
    assert all(tensor.dtype == torch.float32 for tensor in run.classifier.tuner.state_dict().values())
    assert run.predictions.probabilities.dtype == np.float32
    assert np.allclose(run.predictions.probabilities.sum(axis=1), 1.0, atol=1e-5)


def test_logits_are_not_rounded() -> None:
    backbone = ToyBackbone()
    backbone.logit_scale = 100.0
    tuner = Frozen(backbone, Vocabulary(("cat", "dog")))
    images, classes = torch.nn.functional.normalize(torch.randn(2, 4, 12), dim=-1)
    exact = tuner.logits(images, classes)
    with runtime.start(precision="bf16-mixed", accelerator="cpu").autocast():
        assert (images @ classes.T).dtype == torch.bfloat16
        assert torch.equal(tuner.logits(images, classes), exact)


def test_embeddings_of_another_precision_are_not_taken_from_the_cache(tmp_path: Path) -> None:
    images, cache, backbone = (
        find_images(write_images(tmp_path / "p", 6)),
        EmbeddingCache(tmp_path / "c"),
        ToyBackbone(),
    )
    counts = []
    for precision in ("bf16-mixed", "32-true", "bf16-mixed"):
        engine = runtime.start(workers=0, quiet=True, precision=precision, accelerator="cpu")
        vectors = embed_images(backbone, images, cache, engine).vectors
        assert vectors.dtype == np.float32
        counts.append(backbone.n_encoded)
    assert counts == [6, 12, 12]


class Line(nn.Module):
    """Fits a line in the run's precision."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, batch: Tensor) -> StepResult:
        answers = self.layer(batch)
        assert answers.dtype != torch.float32
        return StepResult(((answers.float() - 1) ** 2).mean(), {})


class Steps:
    """Batches by epoch and step; can end the run in the middle, and can make gradients overflow."""

    iterations = 3

    def __init__(self, stop_at: int = -1, huge_at: int = -1) -> None:
        self.stop_at, self.huge_at = stop_at, huge_at

    def begin_epoch(self, epoch: int) -> None:
        if epoch == self.stop_at:
            raise KeyboardInterrupt

    def batches(self, epoch: int, first_step: int) -> Any:
        for step in range(first_step, 3):
            batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * epoch + step))
            yield batch * (100.0 if epoch == self.huge_at else 1.0)

    def end_epoch(self, epoch: int, sums: Any) -> None:
        assert math.isfinite(float(sums["loss"]))

    def progress(self, epoch: int, sums: Any) -> str:
        return ""

    def state(self) -> Any:
        return {}, {}

    def restore(self, tensors: Any, facts: Any) -> None:
        pass


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_a_resumed_fit_ends_with_the_same_bits(tmp_path: Path, precision: str, clip: float) -> None:
    plan = Optimization(epochs=3, learning_rate=0.05, gradient_clip=clip)

    def train(folder: Path | None, **moment: int) -> bytes:
        engine = runtime.start(precision=precision, accelerator="cpu", quiet=True)
        line = Line()
        with torch.no_grad():
            for parameter in line.parameters():
                parameter.fill_(0.1)
        schedule: Any = Steps(**moment)
        fit(line, schedule, plan, engine, CheckpointFolder(folder, "key") if folder else None)
        assert all(parameter.dtype == torch.float32 for parameter in line.parameters())
        assert all(parameter.isfinite().all() for parameter in line.parameters())
        return b"".join(parameter.detach().numpy().tobytes() for parameter in line.parameters())

    whole = train(None, huge_at=0)  # gradients overflow in half precision: the scale must come down, and be kept
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, huge_at=0, stop_at=2)
    assert train(tmp_path, huge_at=0) == whole


def test_devices_that_are_not_there_are_told() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InputError, match=r"accelerator 'cuda'.*devices 1"):
        runtime.start(accelerator="cuda")
