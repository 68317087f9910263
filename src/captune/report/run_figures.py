"""Figures about misleading names, confidence and training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Floats, Ints
from captune.report.drawing import (
    AFTER,
    BEFORE,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    VERMILION,
    Drawing,
    new_figure,
    shown,
    style,
)
from captune.report.measures import Measures

SHOWN_CLASSES = 10
LOWEST = 5
LOW_BUT_VISIBLE = (
    "The classes with the lowest zero-shot accuracy, and how their images are clustered. If a class has a low accuracy "
    "but a long orange bar, the model recognizes its images well, and only the class name is misleading."
)
MISLEADING = (
    "Misleading class names, and how the likely images of these classes are clustered. A long orange bar means that "
    "the model sees these images as one group, which it associates with another name."
)
FREQUENCY = "detection runs that found it"
BINS = 200
BANDWIDTH = 0.03
SHARES = ("accepted share of predictions", "accuracy of pseudo-labels")


def draw_concentration(measures: Measures) -> Drawing | None:
    """Draw Figure 1 of the paper: the lowest classes, and the share of their images in one cluster."""
    share = measures.concentration
    if measures.has_truth:
        values, what, note = measures.accuracies(after=False), "zero-shot accuracy", LOW_BUT_VISIBLE
        chosen = _lowest(values, LOWEST)
    else:
        values, what, note = measures.frequency, FREQUENCY, MISLEADING
        chosen = np.asarray(measures.mismatched[:SHOWN_CLASSES], dtype=np.int64)
    chosen = chosen[~np.isnan(share[chosen])]
    if not len(chosen):
        return None
    names, left, share = [measures.run.names[c] for c in chosen], values[chosen], share[chosen]
    with style():
        figure, (first, second) = new_figure(7.2, 0.9 + 0.28 * len(names), columns=2)
        at = np.arange(len(names))
        first.barh(at, left, color=BLUE, height=0.6)
        first.set(xlim=(0, 1), xlabel=what)
        for row, value in enumerate(left):
            inside = value > 0.85  # next to a long bar, the number would leave the figure
            place: Any = {"x": value - 0.02, "ha": "right", "color": "white"} if inside else {"x": value + 0.02}
            first.text(y=row, s=f"{value:.0%}", va="center", fontsize=8, **place)
        second.barh(at, share, color=VERMILION, height=0.6, label="largest cluster")
        second.barh(at, 1 - share, left=share, color=GREY, height=0.6, label="other clusters")
        second.set(xlim=(0, 1), xlabel="share of the images")
        figure.legend(*second.get_legend_handles_labels(), ncols=2, loc="outside upper right")
        _name_rows((first, second), names)
    rows = [(n, round(float(a), 4), round(float(b), 4)) for n, a, b in zip(names, left, share, strict=True)]
    text = "; ".join(f"{name}: {what} {a:.2f}, {b:.0%} of the images in one cluster" for name, a, b in rows)
    return Drawing("cluster-concentration", note, text, figure, ("class", what, "largest_cluster"), rows)


def draw_confidence(measures: Measures) -> Drawing | None:
    """Draw the density of the confidence in confused groups; with labels, of right and wrong predictions."""
    run = measures.run
    if "before" not in run.arrays:
        return None
    members = [c for group in measures.groups for c in group.classes] or list(range(run.n_classes))
    where = "in confused groups" if measures.groups else "of all classes"
    states = ("before", "after") if run.is_adapted else ("after",)
    curves: list[tuple[str, str, str, Floats]] = []
    for state in states:
        probabilities = run.arrays[state]
        confidence, predicted = probabilities.max(axis=1), probabilities.argmax(axis=1)
        if measures.has_truth:
            inside = np.isin(measures.truth, members)
            sure, right = confidence[measures.known][inside], (predicted[measures.known] == measures.truth)[inside]
            curves += [(state, "right", BLUE, sure[right]), (state, "wrong", VERMILION, sure[~right])]
        else:
            inside = np.isin(predicted, members)
            curves.append(("", state, BEFORE if state == "before" else AFTER, confidence[inside]))
    return _density_drawing(curves, where, run.card["settings"].get("tau"))


def _density_drawing(curves: list[tuple[str, str, str, Floats]], where: str, tau: float | None) -> Drawing | None:
    curves = [curve for curve in curves if len(curve[3])]
    panels = list(dict.fromkeys(panel for panel, *_ in curves))
    if not panels:
        return None
    grid = (np.arange(BINS) + 0.5) / BINS
    rows: list[tuple[object, ...]] = []
    with style():
        figure, axes = new_figure(7.2, 2.5, columns=len(panels))
        for axis, panel in zip(axes, panels, strict=True):
            for _, label, color, values in (curve for curve in curves if curve[0] == panel):
                heights = density(values)
                line = "--" if label in ("wrong", "before") else "-"
                axis.plot(grid, heights, color=color, linestyle=line, label=label)
                axis.fill_between(grid, heights, color=color, alpha=0.18)
                rows += [
                    (panel or label, label, round(float(x), 4), round(float(y), 4))
                    for x, y in zip(grid, heights, strict=True)
                ]
            if tau is not None:
                axis.axvline(tau, color=GREY, linestyle=":", linewidth=1)
            axis.set(xlim=(0, 1), ylim=(0, None), xlabel="confidence", ylabel="density", title=panel)
            axis.legend(loc="best")
    note = f"Confidence of the predictions for images {where}. "
    note += "Wrong predictions should not be confident. " if len(curves) > 2 or panels != [""] else ""
    note += f"The dotted line is the confidence threshold during training, {tau:g}." if tau is not None else ""
    texts = (
        f"{panel} {label}: {len(values)} images, mean confidence {values.mean():.2f}".strip()
        for panel, label, _, values in curves
    )
    return Drawing(
        "confidence-density", note, "; ".join(texts), figure, ("state", "curve", "confidence", "density"), rows
    )


def density(confidence: Floats) -> NDArray[np.float64]:
    """Return a smooth density on [0, 1] that integrates to one, reflected at both ends."""
    counts = np.histogram(confidence, BINS, (0.0, 1.0))[0] / max(1, len(confidence))
    grid = (np.arange(BINS) + 0.5) / BINS
    mirrors = np.stack([grid, -grid, 2.0 - grid])
    kernel = np.exp(-0.5 * ((grid[None, :, None] - mirrors[:, None, :]) / BANDWIDTH) ** 2).sum(axis=0)
    kernel /= kernel.sum(axis=0, keepdims=True)  # all images have the same weight
    return np.asarray(kernel @ counts * BINS)


def draw_training(measures: Measures) -> Drawing | None:
    """Draw loss, accepted share, imbalance and, with labels, the accuracy of pseudo-labels by epoch."""
    epochs = measures.run.epochs
    if not epochs:
        return None
    from matplotlib.ticker import MaxNLocator

    at = [int(facts["epoch"]) for facts in epochs]
    curves: list[tuple[str, list[int], list[float], str]] = []
    for key, title, color in (
        ("loss", "loss", BLUE),
        ("accepted_share", "accepted share of predictions", GREEN),
        ("largest_margin", "largest margin", ORANGE),
    ):
        if all(isinstance(facts.get(key), (int, float)) for facts in epochs):
            curves.append((title, at, [float(facts[key]) for facts in epochs], color))
    for key, title in (("accepted", "imbalance of accepted labels"), ("pseudo_labeled", "imbalance of pseudo-labels")):
        if all(isinstance(facts.get(key), list) and sum(facts[key]) for facts in epochs):
            curves.append((title, at, [_imbalance(facts[key]) for facts in epochs], VERMILION))
    curves += _label_accuracy(measures)
    if not curves:
        return None
    columns = min(3, len(curves))
    n_rows = -(-len(curves) // columns)
    with style():
        figure, axes = new_figure(7.6, 0.3 + 1.75 * n_rows, columns, n_rows)
        for axis, (title, x, y, color) in zip(axes, curves, strict=False):
            axis.plot(x, y, color=color, marker="o" if len(x) < 15 else None, markersize=3)
            axis.set_title(title)
            axis.set_xlabel("epoch")
            axis.margins(y=0.15)
            axis.ticklabel_format(axis="y", useOffset=False)
            if title.startswith("imbalance"):
                axis.set_ylim(min(0.95, *y), max(1.05, 1.03 * max(y)))
            if title in SHARES:
                axis.set_ylim(0, 1)
            axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        for axis in axes[len(curves) :]:
            axis.set_axis_off()
    rows = [(title, x, round(y, 6)) for title, xs, ys, _ in curves for x, y in zip(xs, ys, strict=True)]
    text = "; ".join(f"{title} from {ys[0]:.3g} to {ys[-1]:.3g}" for title, _, ys, _ in curves)
    note = "Training by epoch. Imbalance is the size of the largest class divided by the mean size: 1 is balanced."
    return Drawing("training-curves", note, text, figure, ("curve", "epoch", "value"), rows)


def _lowest(values: Any, n: int) -> Ints:  # noqa: ANN401 (any float array)
    order = np.argsort(values, kind="stable")  # nan comes last
    return np.asarray(order[: min(n, int((~np.isnan(values)).sum()))], dtype=np.int64)


def _label_accuracy(measures: Measures) -> list[tuple[str, list[int], list[float], str]]:
    truth = measures.run.truth
    if truth is None:
        return []
    points = []
    for state in measures.run.history:
        known = truth[state.rows] >= 0
        if known.any():
            points.append((state.epoch, float((truth[state.rows] == state.labels)[known].mean())))
    return [("accuracy of pseudo-labels", [e for e, _ in points], [a for _, a in points], BLUE)] if points else []


def _imbalance(counts: Sequence[int]) -> float:
    return max(counts) * len(counts) / sum(counts)


def _name_rows(axes: Sequence[Any], names: Sequence[str]) -> None:
    """Write names next to horizontal bars, from top to bottom, at the first of the axes."""
    for number, axis in enumerate(axes):
        axis.set_yticks(range(len(names)), [shown(name) for name in names] if number == 0 else [""] * len(names))
        axis.set_ylim(len(names) - 0.4, -0.6)
        axis.tick_params(axis="y", length=0)
