"""Figures that compare several runs or benchmark cells: confused groups, and the accuracy of some classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from captune.core.arrays import Ints
from captune.report.drawing import GREY, SERIES, Drawing, new_figure, shown, style

MOST_GROUPS = 10
SHOWN_CLASSES = 10
COLORS = (GREY, *SERIES)


@dataclass(frozen=True)
class GroupNumbers:
    """The calibration error and the accuracy of the images of one confused group."""

    ece: float
    accuracy: float


def draw_group_comparison(groups: Sequence[str], series: Mapping[str, Sequence[GroupNumbers]]) -> Drawing:
    """Draw Figure 7 of the paper: local ECE and accuracy of the same confused groups, in each series."""
    groups = groups[:MOST_GROUPS]
    with style():
        figure, axes = new_figure(7.6, 2.8, columns=2)
        for axis, key, title in ((axes[0], "ece", "local calibration error (ECE)"), (axes[1], "accuracy", "accuracy")):
            _bars(axis, [[getattr(one, key) for one in values[: len(groups)]] for values in series.values()])
            axis.set(title=title, xlabel="confused group", ylim=(0, None))
            axis.set_xticks(range(len(groups)), [str(i + 1) for i in range(len(groups))])
        _legend(figure, list(series))
    rows = [
        (
            i + 1,
            group,
            *(round(getattr(values[i], key), 4) for values in series.values() for key in ("ece", "accuracy")),
        )
        for i, group in enumerate(groups)
    ]
    header = ("group", "classes", *(f"{name}: {key}" for name in series for key in ("ECE", "accuracy")))
    means = "; ".join(
        f"{name}: mean ECE {np.mean([one.ece for one in values]):.3f}, "
        f"mean accuracy {np.mean([one.accuracy for one in values]):.3f}"
        for name, values in series.items()
    )
    listed = "; ".join(f"{i + 1}: {group}" for i, group in enumerate(groups))
    note = f"Local calibration error and accuracy of classes that zero-shot confuses. Groups: {listed}."
    return Drawing("compared-groups", note, means, figure, header, rows)


def draw_extreme_classes(names: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> Drawing:
    """Draw Figure 15 of the paper: the classes that are lowest and highest in the first series, in each series."""
    values = {name: _floats(column) for name, column in series.items()}
    first = next(iter(values.values()))
    order = np.argsort(first, kind="stable")[: int((~np.isnan(first)).sum())]
    n_low = min(SHOWN_CLASSES, (len(order) + 1) // 2)
    n_high = min(SHOWN_CLASSES, len(order) - n_low)
    label = next(iter(series))
    panels = {f"lowest ({label})": order[:n_low], f"highest ({label})": order[::-1][:n_high]}
    note = f"Accuracy of the classes that are lowest and highest with {label}."
    return _draw_classes("compared-extremes", note, names, panels, values)


def draw_chosen_classes(
    names: Sequence[str], chosen: Sequence[int], series: Mapping[str, Sequence[float | None]], what: str
) -> Drawing:
    """Draw the accuracy of some classes in each series, such as those with misleading names (Figure 6, right)."""
    values = {name: _floats(column) for name, column in series.items()}
    note = f"Accuracy of {what}."
    return _draw_classes("compared-mismatched", note, names, {what: np.asarray(chosen, dtype=np.int64)}, values)


def _draw_classes(
    name: str, note: str, names: Sequence[str], panels: Mapping[str, Ints], series: Mapping[str, Any]
) -> Drawing:
    with style():
        figure, axes = new_figure(3.8 * len(panels), 3.2, columns=len(panels))
        for axis, (title, chosen) in zip(axes, panels.items(), strict=True):
            _bars(axis, [column[chosen] for column in series.values()])
            axis.set(title=title, ylabel="accuracy", ylim=(0, 1))
            axis.set_xticks(range(len(chosen)), [shown(names[c]) for c in chosen], rotation=90, fontsize=7)
        _legend(figure, list(series))
    rows = [
        (title, names[c], *(round(float(column[c]), 4) for column in series.values()))
        for title, chosen in panels.items()
        for c in chosen
    ]
    means = "; ".join(
        f"{title}: " + ", ".join(f"{label} {np.nanmean(column[chosen]):.3f}" for label, column in series.items())
        for title, chosen in panels.items()
        if len(chosen)
    )
    return Drawing(name, note, f"Mean accuracy, {means}", figure, ("classes", "class", *series), rows)


def _bars(axis: Any, columns: Sequence[Sequence[float]]) -> None:  # noqa: ANN401 (matplotlib's axes)
    width = 0.8 / max(1, len(columns))
    for number, values in enumerate(columns):
        shift = (number - (len(columns) - 1) / 2) * width
        at = np.arange(len(values)) + shift
        axis.bar(at, values, width=0.95 * width, color=COLORS[number % len(COLORS)])


def _legend(figure: Any, names: Sequence[str]) -> None:  # noqa: ANN401 (matplotlib's figure)
    from matplotlib.patches import Patch

    marks = [Patch(color=COLORS[i % len(COLORS)], label=shown(name)) for i, name in enumerate(names)]
    figure.legend(handles=marks, loc="outside upper center", ncols=min(4, len(names)))


def _floats(values: Sequence[float | None]) -> Any:  # noqa: ANN401 (a float array)
    return np.asarray([np.nan if value is None else value for value in values], dtype=np.float64)
