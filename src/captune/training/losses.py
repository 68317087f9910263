"""Losses on logits `(samples, classes)`: pure functions, stable for finite logits of any size."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from captune.core import distributed
from captune.core.errors import InputError


def margin_cross_entropy(
    logits: Tensor, labels: Tensor, margin: Tensor | None = None, accepted: Tensor | None = None
) -> Tensor:
    """Return the mean margin cross-entropy over the accepted samples (Eqs. 9, 11 and 13 of the paper)."""
    return masked_mean(margin_losses(logits, labels, margin), accepted)


def margin_losses(logits: Tensor, labels: Tensor, margin: Tensor | None = None) -> Tensor:
    """Return the cross-entropy of each sample with its label's row of `margin` added to the other logits (Eq. 1).

    `margin` is `(classes, classes)`: row y is added to the logits of all classes except the label y, so that the
    label must win by that much more. Its diagonal is ignored. None means no margin.
    """
    logits = _precise(logits)
    n_classes = logits.shape[-1]
    if labels.shape != logits.shape[:1] or (margin is not None and margin.shape != (n_classes, n_classes)):
        raise InputError(
            "Expected logits (samples, classes), labels (samples,) and a margin (classes, classes), got "
            f"{tuple(logits.shape)}, {tuple(labels.shape)} and {None if margin is None else tuple(margin.shape)}."
        )
    if margin is not None:
        others = margin.to(logits)[labels].scatter(1, labels[:, None], 0.0)
        logits = logits + others
    return functional.cross_entropy(logits, labels, reduction="none")


def masked_mean(losses: Tensor, accepted: Tensor | None = None) -> Tensor:
    """Return the mean over the accepted samples; exactly zero, with zero gradients, if there is none.

    With several processes, each of which holds a part of the samples, the sum is divided by the number accepted in
    all processes, so that the mean of their results (and gradients) is the mean over all samples.
    """
    if accepted is None:
        accepted = torch.ones_like(losses, dtype=torch.bool)
    kept = torch.where(accepted, losses, torch.zeros_like(losses))
    # The number accepted stays on the device: a comparison in Python would synchronize a GPU at every step.
    return kept.sum() * distributed.size() / distributed.add_up(accepted.sum()).clamp(min=1)


def partial_label_loss(logits: Tensor, weights: Tensor, accepted: Tensor | None = None) -> Tensor:
    """Return the mean of -log sum_c w_c p_c over the accepted samples with a candidate (the loss of CPL).

    `weights` is `(samples, classes)`, zero for the classes that are not candidates of the sample.
    """
    logits = _precise(logits)
    if weights.shape != logits.shape:
        raise InputError(f"weights: expected shape {tuple(logits.shape)}, got {tuple(weights.shape)}.")
    weights = weights.to(logits)
    has_candidate = (weights > 0).any(dim=1)
    # Without a candidate it would be log 0, so such a sample gets all weights 1 (a loss of 0).
    weights = torch.where(has_candidate[:, None], weights, torch.ones_like(weights))
    losses = torch.logsumexp(logits, dim=1) - torch.logsumexp(logits + weights.log(), dim=1)
    return masked_mean(losses, has_candidate if accepted is None else has_candidate & accepted)


def loss_weights(n_pseudo: int, n_labeled: int, has_labeled_classes: bool) -> tuple[float, float]:
    """Return the weights of the mean losses over pseudo-labeled and labeled images, as in FPL and GRIP.

    The loss is CE(pseudo) + (|PL|/|L|) CE(labeled) or, if some classes are fully labeled and only the others are
    pseudo-labeled, (|L|/|PL|) CE(pseudo) + CE(labeled).
    """
    if not n_pseudo or not n_labeled:
        return 1.0, 1.0
    return (n_labeled / n_pseudo, 1.0) if has_labeled_classes else (1.0, n_pseudo / n_labeled)


def _precise(logits: Tensor) -> Tensor:
    # Half precision rounds a logit of 100 to the nearest 1/16, so losses are computed in single or double precision.
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
