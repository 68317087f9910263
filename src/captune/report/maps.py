"""Maps of images: t-SNE of a class and its rivals, as Appendix A of the paper shows mismatch and confusion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Floats, Ints
from captune.report.drawing import GREY, MARKS, SERIES, VERMILION, Drawing, new_figure, shown, style
from captune.report.measures import Measures

MOST_POINTS = 160
FEWEST_OF_CLASS = 4
MOST_RIVALS = 3
HIGHLIGHT = VERMILION
OTHERS = tuple(color for color in SERIES if color != HIGHLIGHT)


def draw_mismatch_maps(measures: Measures, most: int = 2) -> list[Drawing]:
    """Draw the classes with the most misleading names among the classes that took their images."""
    drawings: list[Drawing] = []
    for class_id in measures.mismatched if len(measures.embedded_rows) else ():
        classes = [class_id, *rivals(measures, class_id)]
        if len(drawings) < most and len(classes) > 1:
            name = measures.run.names[class_id]
            note = f"Images of “{name}” and of the classes that took them."
            drawing = _draw(measures, classes, f"map-mismatch-{len(drawings) + 1}", note)
            drawings += [drawing] if drawing else []
    return drawings


def draw_confusion_maps(measures: Measures, most: int = 1) -> list[Drawing]:
    """Draw the closest confused groups."""
    drawings: list[Drawing] = []
    for group in measures.groups:
        if len(drawings) < most:
            names = ", ".join(measures.run.names[c] for c in group.classes)
            counts = measures.counts(after=False)
            classes = sorted(group.classes, key=lambda c: (counts[c], c))[: MOST_RIVALS + 2]
            drawing = _draw(measures, classes, f"map-confusion-{len(drawings) + 1}", f"Images of {names}.")
            drawings += [drawing] if drawing else []
    return drawings


def rivals(measures: Measures, class_id: int) -> list[int]:
    """Return the classes that zero-shot predicts most often for the images of a class."""
    rows = measures.embedded_rows
    mine = measures.run.before_labels[rows][_owners(measures) == class_id]
    counts = np.bincount(mine, minlength=measures.run.n_classes)
    counts[class_id] = 0
    order = np.argsort(-counts, kind="stable")[:MOST_RIVALS]
    return [int(c) for c in order if counts[c]]


def _owners(measures: Measures) -> Ints:
    """Return the true class of the embedded images where labels exist, else the class after adaptation."""
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
    rows = [
        (
            measures.run.images.name(int(measures.embedded_rows[i])),
            round(float(x), 3),
            round(float(y), 3),
            names[o],
            names[b],
        )
        for i, (x, y), o, b in zip(chosen, points, owners[chosen], before[chosen], strict=True)
    ]
    mine = owners[chosen] == classes[0]
    kept = float((before[chosen][mine] == classes[0]).mean())
    alt = (
        f"Map of {len(chosen)} images of {', '.join(names[c] for c in classes)}. Zero-shot predicts "
        f"{names[classes[0]]} for {kept:.0%} of the {int(mine.sum())} images of that class."
    )
    note += " Near points look alike to the model (t-SNE of image embeddings); left and right show the same points."
    return Drawing(name, note, alt, figure, ("path", "x", "y", left, "zero-shot prediction"), rows)


def _scatter(
    axis: object, points: NDArray[np.float64], labels: Ints, classes: Sequence[int], names: Sequence[str]
) -> None:
    other = ~np.isin(labels, classes)
    scatter = axis.scatter  # type: ignore[attr-defined]
    for number, class_id in enumerate(classes):
        inside = labels == class_id
        color = HIGHLIGHT if number == 0 else OTHERS[(number - 1) % len(OTHERS)]
        mark = MARKS[number % len(MARKS)]
        scatter(*points[inside].T, s=14, c=color, marker=mark, linewidths=0, label=shown(names[class_id]))
    scatter(*points[other].T, s=12, c=GREY, marker="x", linewidths=0.8, label="other classes")


def _thin(chosen: Ints, owners: Ints, classes: Sequence[int]) -> Ints:
    """Return at most so many images, as even over the classes as they are there."""
    each = max(1, MOST_POINTS // len(classes))
    parts = []
    for class_id in classes:
        mine = chosen[owners == class_id]
        parts.append(mine[np.unique(np.linspace(0, len(mine) - 1, min(each, len(mine))).astype(np.int64))])
    return np.sort(np.concatenate(parts))


def flatten(vectors: Floats) -> NDArray[np.float64]:
    """Return t-SNE coordinates in the plane, `(images, 2)`, the same every time."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    perplexity = min(30.0, (len(vectors) - 1) / 3)
    with threadpool_limits(1):  # sums over threads come in any order, and t-SNE makes a picture of the last bit
        return np.asarray(TSNE(2, init="pca", random_state=0, perplexity=perplexity).fit_transform(vectors))
