"""Figures about confused classes: heat maps and confidence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Floats, Ints
from captune.report.drawing import AFTER, BEFORE, BLUE, GREY, VERMILION, Drawing, new_figure, shown, style
from captune.report.measures import Measures

MOST_NAMED = 60
MOST_DRAWN = 200
BINS = 200
BANDWIDTH = 0.03


def draw_heat_map(measures: Measures, what: str) -> Drawing | None:
    """Draw the `similarity` or the `margin` between classes, with confused groups next to each other."""
    order = group_order(measures)
    margin = measures.run.arrays.get("margin")
    if what == "margin" and margin is None:
        return None
    values = measures.similarity(order) if margin is None or what == "similarity" else margin[np.ix_(order, order)]
    values, names = values.copy(), [measures.run.names[c] for c in order]
    np.fill_diagonal(values, np.nan)  # would dominate the color scale
    side = min(7.0, 2.6 + 0.13 * len(order))
    with style():
        figure, (axis,) = new_figure(side + 0.6, side)
        image = axis.imshow(values, cmap="cividis", interpolation="nearest")
        figure.colorbar(image, ax=axis, shrink=0.8, label=what if what == "similarity" else "margin (logits)")
        axis.spines[:].set_visible(False)
        if len(order) <= MOST_NAMED:
            axis.set_xticks(range(len(order)), [shown(name) for name in names], rotation=90, fontsize=6.5)
            axis.set_yticks(range(len(order)), [shown(name) for name in names], fontsize=6.5)
            axis.tick_params(length=0)
        if what == "margin":
            axis.set(ylabel="label", xlabel="other class")
    top = np.dstack(np.unravel_index(np.argsort(-np.nan_to_num(values, nan=-np.inf), axis=None)[:3], values.shape))[0]
    pairs = ", ".join(f"{names[i]} and {names[j]} ({values[i, j]:.2f})" for i, j in top if np.isfinite(values[i, j]))
    captions = {
        "similarity": "How similar classes are to the model: the larger cosine, of their images or of their texts.",
        "margin": "The margin in the last epoch: by how much a row's class must exceed a column's (in logits).",
    }
    left_out = measures.run.n_classes - len(order)
    caption = captions[what] + (f" The {len(order)} classes with the most images." if left_out else "")
    rows = [
        [name, *(round(float(v), 4) if np.isfinite(v) else "" for v in row)]
        for name, row in zip(names, values, strict=True)
    ]
    alt = f"Heat map of {what} between {len(order)} classes. Largest: {pairs}."
    return Drawing(f"class-{what}", caption, alt, figure, ("class", *names), rows)


def group_order(measures: Measures) -> Ints:
    """Return the classes with the most images, beginning with the confused groups."""
    largest = measures.largest(MOST_DRAWN).tolist()
    grouped = [c for group in measures.groups for c in group.classes if c in set(largest)]
    return np.asarray([*grouped, *(c for c in largest if c not in set(grouped))], dtype=np.int64)


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
