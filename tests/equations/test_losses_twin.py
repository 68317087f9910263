"""Every loss against a slow loop over its equation, and its gradients against finite differences."""

from __future__ import annotations

import math

import pytest
import torch

from captune.training import losses


def slow_margin_loss(y: int, z: list[float], margin: list[list[float]]) -> float:
    """Eq. 1, term by term."""
    total = math.exp(z[y])
    for c in range(len(z)):
        if c != y:
            total += math.exp(z[c] + margin[y][c])
    return -math.log(math.exp(z[y]) / total)


def slow_masked_mean(values: list[float], accepted: list[bool]) -> float:
    """Eq. 11: the sum over the b' samples with a pseudo-label, divided by b'."""
    kept = [v for v, a in zip(values, accepted, strict=True) if a]
    return sum(kept) / len(kept) if kept else 0.0


def slow_partial_loss(z: list[float], w: list[float]) -> float:
    """CPL: -log of the weighted probability of the candidates."""
    total = sum(math.exp(v) for v in z)
    return -math.log(sum(w[c] * math.exp(z[c]) / total for c in range(len(z)) if w[c] > 0))


def slow_few_label_loss(
    pseudo: list[tuple[list[float], int]], given: list[tuple[list[float], int]], n: tuple[int, int], seen: bool
) -> float:
    """FPL and GRIP: both mean cross-entropies, weighed by |PL| and |L|."""

    def mean_cross_entropy(samples: list[tuple[list[float], int]]) -> float:
        losses = [math.log(sum(math.exp(v) for v in z)) - z[y] for z, y in samples]
        return sum(losses) / len(losses) if losses else 0.0

    n_pseudo, n_given = n
    if not n_given:
        return mean_cross_entropy(pseudo)
    if seen:  # transductive zero-shot learning
        return mean_cross_entropy(given) + n_given / n_pseudo * mean_cross_entropy(pseudo)
    return n_pseudo / n_given * mean_cross_entropy(given) + mean_cross_entropy(pseudo)


def sample(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(12, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 6, (12,), generator=generator)
    margin = 4 * torch.rand(6, 6, generator=generator, dtype=torch.float64)
    return logits, labels, margin, torch.rand(12, generator=generator) < 0.5


@pytest.mark.parametrize("seed", range(8))
def test_margin_cross_entropy_equals_its_equation(seed: int) -> None:
    logits, labels, margin, accepted = sample(seed)
    slow = [slow_margin_loss(y, z, margin.tolist()) for y, z in zip(labels.tolist(), logits.tolist(), strict=True)]
    assert losses.margin_losses(logits, labels, margin).tolist() == pytest.approx(slow)
    assert losses.margin_cross_entropy(logits, labels, margin).item() == pytest.approx(sum(slow) / len(slow))
    masked = losses.margin_cross_entropy(logits, labels, margin, accepted)
    assert masked.item() == pytest.approx(slow_masked_mean(slow, accepted.tolist()))


@pytest.mark.parametrize("seed", range(8))
def test_partial_label_loss_equals_its_equation(seed: int) -> None:
    logits, _, margin, accepted = sample(seed)
    weights = torch.where(margin.repeat(2, 1) > 2, margin.repeat(2, 1), torch.zeros(1, dtype=torch.float64))
    weights[:, 0] += 0.1
    slow = [slow_partial_loss(z, w) for z, w in zip(logits.tolist(), weights.tolist(), strict=True)]
    assert losses.partial_label_loss(logits, weights).item() == pytest.approx(sum(slow) / len(slow))
    masked = losses.partial_label_loss(logits, weights, accepted)
    assert masked.item() == pytest.approx(slow_masked_mean(slow, accepted.tolist()))


@pytest.mark.parametrize("seed", range(3))
def test_gradients_equal_finite_differences(seed: int) -> None:
    logits, labels, margin, accepted = sample(seed)
    logits.requires_grad_()
    weights = torch.nn.functional.one_hot(labels, 6).double() + (margin.repeat(2, 1) > 3)
    weights[0] = 0  # a sample without a candidate
    assert torch.autograd.gradcheck(lambda z: losses.margin_cross_entropy(z, labels, margin, accepted), logits)
    assert torch.autograd.gradcheck(lambda z: losses.partial_label_loss(z, weights, accepted), logits)


def test_gradient_of_the_partial_loss_is_softmax_minus_softmax_over_candidates() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    losses.partial_label_loss(logits, torch.tensor([[1.0, 1.0, 0.0]])).backward()
    inside = torch.softmax(torch.tensor([2.0, 1.0, -math.inf], dtype=torch.float64), dim=0)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad[0], torch.softmax(logits.detach()[0], dim=0) - inside)


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("n_given", [0, 5])
def test_the_loss_of_few_labels_equals_its_equation(seen: bool, n_given: int) -> None:
    logits, labels, _, _ = sample(3)
    counts = (40, 2 * n_given)
    pseudo_weight, given_weight = losses.loss_weights(*counts, seen)
    split = 12 - n_given
    targets = torch.nn.functional.one_hot(labels[:split], 6)
    fast = pseudo_weight * losses.partial_label_loss(logits[:split], targets)
    fast = fast + given_weight * losses.margin_cross_entropy(logits[split:], labels[split:])
    samples = list(zip(logits.tolist(), labels.tolist(), strict=True))
    assert fast.item() == pytest.approx(slow_few_label_loss(samples[:split], samples[split:], counts, seen))
