"""The estimate before a run follows what there is to do."""

from __future__ import annotations

from dataclasses import replace

import torch
from toys import ToyBackbone

from captune.core import runtime
from captune.data.vocabulary import Vocabulary
from captune.methods._cap_settings import QUICK, CapSettings
from captune.methods._estimate import Costs, Sizes, estimate, measure_costs

COSTS = Costs(image=0.01, texts=0.1, small_step=0.002)
FULL, FAST = CapSettings(), replace(CapSettings(), **QUICK)


def test_full_encodes_images_in_every_step_and_quick_only_once() -> None:
    sizes = Sizes(n_unlabeled=1000, n_given=0, n_classes=10)
    # 2,500 steps of 64 images with gradients, 32 without and the texts with gradients; 50 + 10 looks at all images.
    assert estimate(COSTS, FULL, sizes) == 2500 * (0.01 * (2 * 64 + 32) + 2 * 0.1) + 60 * 1000 * 0.01
    assert estimate(COSTS, FAST, sizes) == 4 * 1000 * 0.01 + 3 * 2500 * 0.002


def test_given_labels_make_steps_longer() -> None:
    without, with_labels = Sizes(100, 0, 10), Sizes(100, 20, 10)
    assert estimate(COSTS, FULL, with_labels) > estimate(COSTS, FULL, without)
    assert estimate(COSTS, replace(FULL, margin=False), without) < estimate(COSTS, FULL, without)


def test_measuring_draws_nothing_random() -> None:
    engine = runtime.start(quiet=True, workers=0)
    backbone = ToyBackbone()
    before = torch.get_rng_state()
    costs = measure_costs(backbone, Vocabulary(("cat", "dog")), engine)
    assert torch.equal(before, torch.get_rng_state())
    assert min(costs.image, costs.texts, costs.small_step) > 0
