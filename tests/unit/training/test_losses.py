"""Losses at the edges: huge logits, no accepted sample, no candidate, half precision."""

from __future__ import annotations

import pytest
import torch

from captune.core.errors import InputError
from captune.training import losses


def test_without_margin_it_is_cross_entropy() -> None:
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    expected = torch.nn.functional.cross_entropy(logits, labels)
    assert losses.margin_cross_entropy(logits, labels).item() == pytest.approx(expected.item())
    zero = losses.margin_cross_entropy(logits, labels, torch.zeros(3, 3))
    assert zero.item() == pytest.approx(expected.item())


def test_the_margin_is_the_row_of_the_label_and_its_diagonal_is_not_used() -> None:
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    margin = torch.tensor([[99.0, 2.0], [0.0, 99.0]])
    by_sample = losses.margin_losses(logits, torch.tensor([0, 1]), margin)
    assert by_sample.tolist() == pytest.approx([2.1269, 0.6931], abs=1e-4)  # log(1 + e^2), log 2


def test_a_margin_only_ever_raises_the_loss_of_its_own_class() -> None:
    logits, labels = torch.randn(20, 4), torch.arange(20) % 4
    margin = torch.zeros(4, 4)
    margin[1] = 3.0
    change = losses.margin_losses(logits, labels, margin) - losses.margin_losses(logits, labels)
    assert (change[labels == 1] > 0).all()
    assert (change[labels != 1] == 0).all()


def test_no_accepted_sample_gives_exactly_zero_and_zero_gradients() -> None:
    for dtype in (torch.float32, torch.float64):
        logits = (1e4 * torch.randn(4, 3)).to(dtype).requires_grad_()
        loss = losses.margin_cross_entropy(
            logits, torch.zeros(4, dtype=torch.long), torch.ones(3, 3), torch.zeros(4, dtype=torch.bool)
        )
        loss.backward()
        assert loss.item() == 0.0
        assert logits.grad is not None
        assert (logits.grad == 0).all()


def test_an_empty_batch_is_zero() -> None:
    logits = torch.zeros(0, 3, requires_grad=True)
    losses.margin_cross_entropy(logits, torch.zeros(0, dtype=torch.long)).backward()
    assert logits.grad is not None
    assert losses.masked_mean(torch.zeros(0)).item() == 0.0


def test_samples_without_a_candidate_do_not_count() -> None:
    logits = torch.randn(3, 4, requires_grad=True)
    weights = torch.tensor([[1.0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]])
    loss = losses.partial_label_loss(logits, weights)
    expected = losses.partial_label_loss(logits[[0, 2]], weights[[0, 2]])
    assert loss.item() == pytest.approx(expected.item())
    loss.backward()
    assert logits.grad is not None
    assert (logits.grad[1] == 0).all()
    assert torch.isfinite(logits.grad).all()
    assert losses.partial_label_loss(logits, torch.zeros(3, 4)).item() == 0.0


def test_a_single_candidate_is_cross_entropy_and_all_candidates_are_zero() -> None:
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    one = torch.nn.functional.one_hot(labels, 3).float()
    assert losses.partial_label_loss(logits, one).item() == pytest.approx(
        losses.margin_cross_entropy(logits, labels).item(), rel=1e-5
    )
    assert losses.partial_label_loss(logits, torch.ones(5, 3)).item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_logits_stay_finite(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4]], dtype=dtype, requires_grad=True)
    labels = torch.tensor([1, 1])
    loss = losses.margin_cross_entropy(logits, labels, torch.full((3, 3), 12.0))
    partial = losses.partial_label_loss(logits, torch.tensor([[0, 1.0, 1.0], [1.0, 0, 0]]))
    (loss + partial).backward()
    assert loss.item() == pytest.approx((20_012 + 12) / 2, abs=1)
    assert partial.item() == pytest.approx((10_000 + 20_000) / 2, abs=2)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_half_precision_logits_are_computed_in_single() -> None:
    logits = (20 * torch.randn(6, 5)).bfloat16()
    labels = torch.arange(6) % 5
    loss = losses.margin_cross_entropy(logits, labels, torch.rand(5, 5, dtype=torch.float64))
    assert loss.dtype == torch.float32
    assert losses.partial_label_loss(logits, torch.ones(6, 5)).dtype == torch.float32


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(InputError, match=r"got \(2, 3\), \(3,\)"):
        losses.margin_losses(torch.zeros(2, 3), torch.zeros(3, dtype=torch.long))
    with pytest.raises(InputError, match=r"and \(2, 2\)"):
        losses.margin_losses(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), torch.zeros(2, 2))
    with pytest.raises(InputError, match=r"weights: expected shape \(2, 3\), got \(2, 2\)"):
        losses.partial_label_loss(torch.zeros(2, 3), torch.zeros(2, 2))
