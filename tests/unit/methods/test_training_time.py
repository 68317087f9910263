"""The expected training time depends on settings and workload."""

from __future__ import annotations

from dataclasses import replace

import torch
from toys import ToyBackbone

from captune.core import runtime
from captune.data.vocabulary import Vocabulary
from captune.methods._training_time import Costs, Workload, expected_seconds, measure_costs
from captune.methods.cap import QUICK, CapSettings

COSTS = Costs(image=0.01, texts=0.1, small_step=0.002)
FULL, FAST = CapSettings(), replace(CapSettings(), **QUICK)


def test_full_encodes_images_in_every_step_and_quick_only_once() -> None:
    workload = Workload(n_unlabeled=1000, n_labeled=0)
    # 2,500 steps of 64 images with gradients, 32 without and the texts with gradients; 50 + 10 passes over all images.
    assert expected_seconds(COSTS, FULL, workload) == 2500 * (0.01 * (2 * 64 + 32) + 2 * 0.1) + 60 * 1000 * 0.01
    assert expected_seconds(COSTS, FAST, workload) == 4 * 1000 * 0.01 + 3 * 500 * 0.002  # 10 epochs of 50 steps


def test_labeled_images_make_steps_longer() -> None:
    without, with_labels = Workload(100, 0), Workload(100, 20)
    assert expected_seconds(COSTS, FULL, with_labels) > expected_seconds(COSTS, FULL, without)
    assert expected_seconds(COSTS, replace(FULL, margin=False), without) < expected_seconds(COSTS, FULL, without)


def test_measuring_draws_nothing_random() -> None:
    engine = runtime.start(quiet=True, workers=0)
    backbone = ToyBackbone()
    before = torch.get_rng_state()
    costs = measure_costs(backbone, Vocabulary(("cat", "dog")), engine)
    assert torch.equal(before, torch.get_rng_state())
    assert min(costs.image, costs.texts, costs.small_step) > 0
