"""The figures of a run, as inline SVG in the colors of a page and as PNG, SVG and CSV files."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from captune.core.arrays import Floats
from captune.core.files import table, write_whole
from captune.report.measures import Measures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: safe for color blindness, on light and on dark backgrounds.
BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7"
GREY = "#8a929c"
SERIES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
INK = "#1d2a36"
"""Text color in files; in a page it is replaced by the color of the surrounding text."""

LONGEST_NAME = 26
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
CURVES = {
    "loss": ("loss", BLUE),
    "accepted_share": ("accepted share of predictions", GREEN),
    "largest_margin": ("largest margin", ORANGE),
    "accepted": ("imbalance of accepted labels", VERMILION),
    "pseudo_labeled": ("imbalance of pseudo-labels", VERMILION),
}
"""Titles and colors of the training curves, by what is recorded for each epoch."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure with its caption, a text alternative, and its numbers as a table."""

    name: str
    caption: str
    alt: str
    figure: Figure
    header: Sequence[str]
    rows: Sequence[Sequence[object]]

    @cached_property
    def svg(self) -> bytes:
        """Return the figure as SVG."""
        content = self._render("svg")
        self.figure.set_layout_engine("none")  # the layout is final, and computing it again is slow
        return content

    def inline(self) -> Markup:
        """Return the figure as SVG for use in a page: without prologue and URLs, with unique ids."""
        text = self.svg.decode("utf-8")
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text)
        text = text.replace("xlink:href", "href").replace(INK, "currentColor")
        text = re.sub(r'\bid="([^"]*)"', rf'id="{self.name}-\1"', text)
        text = re.sub(r'href="#([^"]*)"', rf'href="#{self.name}-\1"', text)
        text = re.sub(r"url\(#([^)]*)\)", rf"url(#{self.name}-\1)", text)
        return Markup(text.replace("<svg", f'<svg role="img" aria-label="{escape(self.alt)}"', 1))

    def write(self, folder: Path) -> None:
        """Write the figure as PNG and SVG and its numbers as CSV."""
        write_whole(folder / f"{self.name}.svg", self.svg)
        write_whole(folder / f"{self.name}.png", self._render("png"))
        write_whole(folder / f"{self.name}.csv", table(self.header, self.rows))

    def _render(self, kind: str) -> bytes:
        target = io.BytesIO()
        facts = {"Date": None} if kind == "svg" else {"Software": None}
        with style(self.name), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # characters missing in the font are shown as boxes
            self.figure.savefig(target, format=kind, dpi=110, transparent=kind == "svg", metadata=facts)
        return target.getvalue()


@contextmanager
def style(salt: str = "captune") -> Iterator[None]:
    """Use captune's style, which gives the same bytes every time."""
    import matplotlib as mpl

    ink = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    rules: Any = {
        "text.parse_math": False,  # a class called $x$ is a name, not a formula
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "font.family": "sans-serif",
        "font.size": 9.0,
        "axes.titlesize": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "figure.facecolor": "white",
        **ink,
    }
    with mpl.rc_context(rules):
        yield


def new_figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure (without pyplot's global state) and its axes, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def shown(name: str) -> str:
    """Return a class name shortened and printable, for use in a figure."""
    short = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
    return "".join(letter if letter.isprintable() else " " for letter in short)


def draw_concentration(measures: Measures) -> Drawing | None:
    """Draw Figure 1 of the paper: the lowest classes, and the share of their images in one cluster."""
    share = measures.concentration
    if measures.has_truth:
        what, note = "zero-shot accuracy", LOW_BUT_VISIBLE
        values = np.array(measures.metrics[0].per_class_accuracy, dtype=np.float64)
        chosen = np.argsort(values, kind="stable")[:LOWEST]  # nan comes last
    else:
        values, what, note = measures.frequency, FREQUENCY, MISLEADING
        chosen = np.asarray(measures.mismatched[:SHOWN_CLASSES], dtype=np.int64)
    chosen = chosen[~np.isnan(values[chosen] + share[chosen])]
    if not len(chosen):
        return None
    names, left, share = [measures.run.names[c] for c in chosen], values[chosen], share[chosen]
    with style():
        figure, axes = new_figure(7.2, 0.9 + 0.28 * len(names), columns=2)
        at = np.arange(len(names))
        axes[0].bar_label(axes[0].barh(at, left, color=BLUE, height=0.6), fmt="{:.0%}", padding=3, fontsize=8)
        axes[0].set(xlim=(0, 1.12), xlabel=what, xticks=[0, 0.5, 1])
        axes[1].barh(at, share, color=VERMILION, height=0.6, label="largest cluster")
        axes[1].barh(at, 1 - share, left=share, color=GREY, height=0.6, label="other clusters")
        axes[1].set(xlim=(0, 1), xlabel="share of the images")
        figure.legend(*axes[1].get_legend_handles_labels(), ncols=2, loc="outside upper right")
        for axis, words in zip(axes, ([shown(name) for name in names], [""] * len(names)), strict=True):
            axis.set_yticks(at, words)
            axis.set_ylim(len(names) - 0.4, -0.6)
            axis.tick_params(axis="y", length=0)
    rows = [(n, round(float(a), 4), round(float(b), 4)) for n, a, b in zip(names, left, share, strict=True)]
    text = "; ".join(f"{name}: {what} {a:.2f}, {b:.0%} of the images in one cluster" for name, a, b in rows)
    return Drawing("cluster-concentration", note, text, figure, ("class", what, "largest_cluster"), rows)


def draw_confidence(measures: Measures) -> Drawing | None:
    """Draw the density of the confidence in confused groups; with labels, of right and wrong predictions."""
    run, tau = measures.run, measures.run.card["settings"].get("tau")
    if "before" not in run.arrays:
        return None
    members = [c for group in measures.groups for c in group.classes] or list(range(run.n_classes))
    curves: list[tuple[str, str, str, Floats]] = []
    for state in ("before", "after") if run.is_adapted else ("after",):
        probabilities = run.arrays[state]
        confidence, predicted = probabilities.max(axis=1), probabilities.argmax(axis=1)
        if measures.has_truth:
            inside = np.isin(measures.truth, members)
            sure, right = confidence[measures.known][inside], (predicted[measures.known] == measures.truth)[inside]
            curves += [(state, "right", BLUE, sure[right]), (state, "wrong", VERMILION, sure[~right])]
        else:
            color = GREY if state == "before" else BLUE
            curves.append(("", state, color, confidence[np.isin(predicted, members)]))
    curves = [curve for curve in curves if len(curve[3])]
    if not curves:
        return None
    grid, rows = (np.arange(BINS) + 0.5) / BINS, list[tuple[object, ...]]()
    panels = list(dict.fromkeys(panel for panel, *_ in curves))
    with style():
        figure, axes = new_figure(7.2, 2.5, columns=len(panels))
        for panel, label, color, values in curves:
            axis, heights = axes[panels.index(panel)], density(values)
            axis.plot(grid, heights, color=color, linestyle="--" if label in ("wrong", "before") else "-", label=label)
            axis.fill_between(grid, heights, color=color, alpha=0.18)
            points = zip(grid.tolist(), heights.tolist(), strict=True)
            rows += [(panel or label, label, round(x, 4), round(y, 4)) for x, y in points]
        for axis, panel in zip(axes, panels, strict=True):
            if tau is not None:
                axis.axvline(tau, color=GREY, linestyle=":", linewidth=1)
            axis.set(xlim=(0, 1), ylim=(0, None), xlabel="confidence", ylabel="density", title=panel)
            axis.legend(loc="best")
    note = f"Confidence of the predictions for images {'in confused groups' if measures.groups else 'of all classes'}. "
    note += "Wrong predictions should not be confident. " if measures.has_truth else ""
    note += f"The dotted line is the confidence threshold during training, {tau:g}." if tau is not None else ""
    means = [f"{p} {label}: {len(v)} images, mean confidence {v.mean():.2f}".strip() for p, label, _, v in curves]
    header = ("state", "curve", "confidence", "density")
    return Drawing("confidence-density", note, "; ".join(means), figure, header, rows)


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
    at = [int(facts["epoch"]) for facts in epochs]
    curves: list[tuple[str, str, list[int], list[float]]] = []
    for key, (title, color) in CURVES.items():
        values: list[Any] = [facts.get(key) for facts in epochs]
        if all(isinstance(value, list) and sum(value) for value in values):
            values = [max(value) * len(value) / sum(value) for value in values]
        if values and all(isinstance(value, (int, float)) for value in values):
            curves.append((title, color, at, values))
    history = [] if measures.run.truth is None else measures.run.history
    known = [(epoch, is_right) for epoch, one in history if len(is_right := measures.checked(one)[1])]
    if known:
        right = [float(is_right.mean()) for _, is_right in known]
        curves.append(("accuracy of pseudo-labels", BLUE, [epoch for epoch, _ in known], right))
    if not epochs or not curves:
        return None
    columns = min(3, len(curves))
    n_rows = -(-len(curves) // columns)
    with style():
        figure, axes = new_figure(7.6, 0.3 + 1.75 * n_rows, columns, n_rows)
        for axis, (title, color, x, y) in zip(axes, curves, strict=False):
            axis.plot(x, y, color=color, marker="o" if len(x) < 15 else None, markersize=3)
            axis.set(title=title, xlabel="epoch")
            axis.margins(y=0.15)
            axis.ticklabel_format(axis="y", useOffset=False)
            if title.startswith("imbalance"):
                axis.set_ylim(min(0.95, *y), max(1.05, 1.03 * max(y)))
            elif title.startswith(("accepted share", "accuracy")):
                axis.set_ylim(0, 1)
            axis.locator_params(axis="x", nbins=5, integer=True)
        for axis in axes[len(curves) :]:
            axis.set_axis_off()
    rows = [(title, x, round(y, 6)) for title, _, xs, ys in curves for x, y in zip(xs, ys, strict=True)]
    text = "; ".join(f"{title} from {ys[0]:.3g} to {ys[-1]:.3g}" for title, _, _, ys in curves)
    note = "Training by epoch. Imbalance is the size of the largest class divided by the mean size: 1 is balanced."
    return Drawing("training-curves", note, text, figure, ("curve", "epoch", "value"), rows)
