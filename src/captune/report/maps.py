"""Maps of images: t-SNE of a class and the classes it is confused with, as in Appendix A of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from captune.core.arrays import Floats, Ints, evenly_spaced
from captune.embeddings.projection import flatten
from captune.report.drawing import GREY, MARKS, SERIES, VERMILION, Drawing, new_figure, shown, style
from captune.report.measures import Measures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_MAPS = 2
MOST_POINTS = 160
FEWEST_OF_CLASS = 4
MOST_RIVALS = 3
COLORS = (VERMILION, *(color for color in SERIES if color != VERMILION))


def draw_mismatch_maps(measures: Measures) -> list[Drawing]:
    """Draw the classes with the most misleading names, with the classes predicted for their images."""
    drawings: list[Drawing] = []
    for class_id in measures.mismatched if len(measures.embedded_rows) else ():
        if len(drawings) == MOST_MAPS:
            break
        classes = [class_id, *rivals(measures, class_id)]
        note = f"Images of “{measures.run.names[class_id]}” and of the classes that zero-shot predicts for them."
        name = f"map-mismatch-{len(drawings) + 1}"
        if len(classes) > 1 and (drawing := _draw(measures, classes, name, note)):
            drawings.append(drawing)
    return drawings


def draw_confusion_map(measures: Measures) -> Drawing | None:
    """Draw the most similar confused group that has enough images."""
    counts = measures.counts(after=False)
    for group in measures.groups:
        note = f"Images of {', '.join(measures.run.names[c] for c in group.classes)}."
        classes = sorted(group.classes, key=lambda c: (counts[c], c))[: MOST_RIVALS + 2]
        if drawing := _draw(measures, classes, "map-confusion-1", note):
            return drawing
    return None


def rivals(measures: Measures, class_id: int) -> list[int]:
    """Return the other classes that zero-shot predicts most often for the images of a class."""
    rows = measures.embedded_rows
    mine = measures.run.before_labels[rows][_owners(measures) == class_id]
    counts = np.bincount(mine, minlength=measures.run.n_classes)
    counts[class_id] = 0
    order = np.argsort(-counts, kind="stable")[:MOST_RIVALS]
    return [int(c) for c in order if counts[c]]


def _owners(measures: Measures) -> Ints:
    """Return the true class of the embedded images or, without labels, the class after adaptation."""
    rows, truth = measures.embedded_rows, measures.run.truth
    return measures.run.labels[rows] if truth is None else truth[rows]


def _draw(measures: Measures, classes: Sequence[int], name: str, note: str) -> Drawing | None:
    owners, before = _owners(measures), measures.run.before_labels[measures.embedded_rows]
    chosen = np.flatnonzero(np.isin(owners, classes))
    if (owners == classes[0]).sum() < FEWEST_OF_CLASS or len(chosen) < 3 * FEWEST_OF_CLASS:
        return None
    chosen = _thin(chosen, owners[chosen], classes)
    points = flatten(measures.vectors[chosen])
    left = "true class" if measures.run.truth is not None else "after adaptation"
    with style():
        figure, axes = new_figure(7.2, 3.4, columns=2)
        panels = ((axes[0], owners[chosen], left), (axes[1], before[chosen], "zero-shot prediction"))
        for axis, labels, title in panels:
            _scatter(axis, points, labels, classes, measures.run.names)
            axis.set(title=title, xticks=[], yticks=[])
        handles, labels_shown = axes[1].get_legend_handles_labels()
        figure.legend(handles, labels_shown, loc="outside lower center", ncols=min(5, len(labels_shown)))
    names = measures.run.names
    images = [measures.run.images.name(int(row)) for row in measures.embedded_rows[chosen]]
    rows = [
        (image, round(float(x), 3), round(float(y), 3), names[o], names[b])
        for image, (x, y), o, b in zip(images, points, owners[chosen], before[chosen], strict=True)
    ]
    mine = owners[chosen] == classes[0]
    kept = float((before[chosen][mine] == classes[0]).mean())
    alt = (
        f"Map of {len(chosen)} images of {', '.join(names[c] for c in classes)}. Zero-shot predicts "
        f"{names[classes[0]]} for {kept:.0%} of the {int(mine.sum())} images of that class."
    )
    note += " Nearby points look similar to the model (t-SNE of the embeddings). Both sides show the same images."
    return Drawing(name, note, alt, figure, ("path", "x", "y", left, "zero-shot prediction"), rows)


def _scatter(axis: Axes, points: Floats, labels: Ints, classes: Sequence[int], names: Sequence[str]) -> None:
    for number, class_id in enumerate(classes):
        x, y = points[labels == class_id].T
        color, mark = COLORS[number % len(COLORS)], MARKS[number % len(MARKS)]
        axis.scatter(x, y, s=14, c=color, marker=mark, linewidths=0, label=shown(names[class_id]))
    x, y = points[~np.isin(labels, classes)].T
    axis.scatter(x, y, s=12, c=GREY, marker="x", linewidths=0.8, label="other classes")


def _thin(chosen: Ints, owners: Ints, classes: Sequence[int]) -> Ints:
    """Return at most MOST_POINTS images, spread over the classes."""
    each = max(1, MOST_POINTS // len(classes))
    parts = [chosen[owners == class_id] for class_id in classes]
    return np.sort(np.concatenate([part[evenly_spaced(len(part), each)] for part in parts if len(part)]))
