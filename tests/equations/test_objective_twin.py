"""CAP's step (Eqs. 8 to 14) written out view by view and sample by sample, against the objective's one forward."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from captune.backbones.hf import HuggingFace
from captune.core import runtime
from captune.data.images import ImageCollection
from captune.data.vocabulary import Vocabulary
from captune.training.batch_sources import PixelSource, Request, Views
from captune.training.objective import CapBatch, ConfusionObjective, PseudoLabelBatch, PseudoLabelObjective
from captune.tuners.maple import Maple

N_CLASSES = 4


def make_objective(folder: Path, independent: bool, tau: float, allowed: list[bool]) -> ConfusionObjective:
    torch.manual_seed(0)
    backbone = HuggingFace.load(str(folder))
    backbone.logit_scale = 20.0
    nothing = ImageCollection((), Path())
    engine = runtime.start(quiet=True, workers=0)
    torch.manual_seed(1)
    tuner = Maple(backbone, Vocabulary(("cat", "dog", "red car", "tree")))
    source = PixelSource(nothing, nothing, np.empty(0, dtype=np.int64), backbone.preprocessing, engine)
    objective = ConfusionObjective(tuner, source, torch.tensor(allowed), tau, independent, 8)
    objective.margin = torch.rand(N_CLASSES, N_CLASSES)
    return objective


def make_batch(n_labeled: int) -> CapBatch:
    drawn = torch.Generator().manual_seed(2)
    pseudo_labeled, labeled, weak, strong = (torch.randn(n, 3, 32, 32, generator=drawn) for n in (5, n_labeled, 6, 6))
    request = Request(np.arange(5), np.arange(n_labeled), np.arange(6))
    views = Views(pseudo_labeled, labeled, weak, strong, request)
    return CapBatch(views, torch.tensor([0, 1, 2, 3, 0]), torch.arange(n_labeled) % N_CLASSES, None)


def literal_loss(objective: ConfusionObjective, batch: CapBatch) -> tuple[Tensor, int]:
    def adapt(adapter: torch.nn.Module, vector: Tensor) -> Tensor:
        moved = vector + 0.01 * adapter.up(torch.relu(adapter.down(vector)))
        return moved / moved.norm()

    def logits(image: Tensor, adapter: torch.nn.Module) -> list[Tensor]:  # Eqs. 8 and 10
        vector = adapt(adapter, objective.tuner.image_embeddings(image[None])[0])
        classes = objective.tuner.class_embeddings()
        scale = objective.tuner.backbone.logit_scale
        return [scale * vector @ adapt(objective.text_adapter, classes[c]) for c in range(N_CLASSES)]

    def loss_of(scores: list[Tensor], label: int) -> Tensor:  # Eq. 1
        assert objective.margin is not None
        rivals = [torch.exp(s + objective.margin[label, c]) for c, s in enumerate(scores) if c != label]
        return -torch.log(torch.exp(scores[label]) / (torch.exp(scores[label]) + sum(rivals)))

    total = torch.zeros(())
    for images, labels in ((batch.views.pseudo_labeled, batch.pseudo_labels), (batch.views.labeled, batch.labels)):
        losses = [loss_of(logits(x, objective.main_adapter), int(y)) for x, y in zip(images, labels, strict=True)]
        total = total + (sum(losses) / len(losses) if losses else 0.0)  # Eqs. 9 and 13
    made = []
    for weak, strong in zip(batch.views.weak, batch.views.strong, strict=True):
        allowed = [c for c in range(N_CLASSES) if objective.allowed[c]]
        scores = logits(weak, objective.main_adapter)
        powers = {c: math.exp(float(scores[c].detach())) for c in allowed}
        best = max(allowed, key=lambda c: powers[c])
        if powers[best] / sum(powers.values()) >= objective.tau:
            made.append(loss_of(logits(strong, objective.pseudo_adapter), best))  # Eq. 11
    return total + (sum(made) / len(made) if made else 0.0), len(made)  # Eqs. 12 and 14


@pytest.mark.parametrize(
    ("n_labeled", "independent", "tau", "allowed"),
    [
        (0, True, 0.0, [True] * 4),
        (3, True, 0.45, [True] * 4),
        (3, False, 0.0, [True] * 4),
        (2, True, 0.0, [False, True, False, True]),
        (0, True, 1.0, [True] * 4),
    ],
)
def test_the_step_is_what_its_equations_say(
    clip_folder: Path, n_labeled: int, independent: bool, tau: float, allowed: list[bool]
) -> None:
    objective, batch = make_objective(clip_folder, independent, tau, allowed), make_batch(n_labeled)
    expected, n_accepted = literal_loss(objective, batch)
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in objective.named_parameters() if p.grad is not None}
    objective.zero_grad(set_to_none=True)
    found = objective(batch)
    found.loss.backward()
    assert int(found.sums["accepted"].sum()) == n_accepted
    assert float(found.loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-5)
    for name, parameter in objective.named_parameters():
        if name in gradients:
            assert torch.allclose(parameter.grad, gradients[name], atol=1e-5, rtol=1e-3), name
        else:
            assert parameter.grad is None or not parameter.grad.any(), name


def test_the_cases_accept_all_some_and_none(clip_folder: Path) -> None:
    accepted = [
        literal_loss(make_objective(clip_folder, True, tau, [True] * 4), make_batch(0))[1] for tau in (0, 0.45, 1)
    ]
    assert accepted[0] == 6
    assert 0 < accepted[1] < 6
    assert accepted[2] == 0


def test_only_strong_views_with_an_accepted_label_are_encoded(clip_folder: Path) -> None:
    objective, batch = make_objective(clip_folder, True, 0.45, [True] * 4), make_batch(0)
    _, n_accepted = literal_loss(objective, batch)
    encoded = []
    encode = objective.tuner.encode
    objective.tuner.encode = lambda pixels: encoded.append(len(pixels)) or encode(pixels)
    objective(batch)
    assert encoded == [len(batch.views.weak), len(batch.views.pseudo_labeled) + n_accepted]


@pytest.mark.parametrize("n_unlabeled", [6, 0])
def test_a_step_with_nothing_to_learn_from_is_zero(clip_folder: Path, n_unlabeled: int) -> None:
    objective, batch = make_objective(clip_folder, True, 1.0, [True] * 4), make_batch(0)
    views = batch.views._replace(pseudo_labeled=torch.empty(0, 0, 0, 3))
    views = views._replace(weak=views.weak[:n_unlabeled], strong=views.strong[:n_unlabeled])
    found = objective(batch._replace(views=views, pseudo_labels=batch.pseudo_labels[:0]))
    found.loss.backward()
    assert float(found.loss.detach()) == 0
    assert int(found.sums["offered"]) == n_unlabeled
    assert not any(p.grad is not None and p.grad.any() for p in objective.parameters())


def test_a_step_on_pseudo_labels_without_an_image_is_zero(clip_folder: Path) -> None:
    parts, empty = make_objective(clip_folder, True, 1.0, [True] * 4), torch.empty(0, 3, 32, 32)
    objective, nobody = PseudoLabelObjective(parts.tuner, parts.source), np.arange(0)
    views = Views(empty, empty, empty, empty, Request(nobody, nobody, nobody))
    found = objective(PseudoLabelBatch(views, torch.empty(0, N_CLASSES), torch.empty(0, dtype=torch.long)))
    found.loss.backward()
    assert float(found.loss.detach()) == 0
