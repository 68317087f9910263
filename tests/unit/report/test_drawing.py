"""What the figures compute before they draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from captune.report.drawing import (
    BINS,
    Drawing,
    density,
    draw_concentration,
    draw_training,
    new_figure,
    shown,
    style,
)
from captune.report.measures import Measures
from captune.results.metrics import summarize
from captune.results.run import Run


@pytest.fixture
def measures(run_folder: Any) -> Measures:
    folder = run_folder()
    return Measures(Run.read(folder, folder.parent / "images" / "labels.csv"))


@pytest.mark.parametrize("values", [[0.0], [1.0, 1.0], [0.3, 0.9, 0.95]])
def test_a_density_integrates_to_one(values: list[float]) -> None:
    heights = density(np.asarray(values, dtype=np.float32))
    assert heights.sum() / BINS == pytest.approx(1.0)
    assert abs((heights.argmax() + 0.5) / BINS - values[-1]) < 0.05


def test_before_and_after_are_the_metrics_of_the_kept_probabilities(measures: Measures) -> None:
    run = measures.run
    assert run.truth is not None
    for number, name in enumerate(("before", "after")):
        assert measures.metrics[number] == summarize(run.arrays[name], run.truth, run.n_classes)


def test_images_without_label_are_not_measured(run_folder: Any) -> None:
    folder = run_folder()
    table = folder.parent / "images" / "labels.csv"
    table.write_text("".join(table.read_text(encoding="utf-8").splitlines(keepends=True)[:20]), encoding="utf-8")
    measures = Measures(Run.read(folder, table))
    assert len(measures.known) == 19
    assert measures.metrics[1].n_images == 19
    assert draw_concentration(measures) is not None


def test_images_of_one_class_lie_in_one_cluster(measures: Measures) -> None:
    assert measures.concentration.min() > 0.9  # the run was made of tight clusters


def test_names_are_short_and_printable() -> None:
    assert shown("x" * 99) == "x" * 25 + "…"
    assert shown("a\tb\x07") == "a b "


def test_figures_leave_no_trace_in_matplotlib(tmp_path: Path) -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    with style():
        figure, (axis,) = new_figure(2, 1)
        axis.set_title('$x$ <script> & "y"')
    drawing = Drawing("one", "caption", 'says "<i>"', figure, ("a",), [(1,)])
    drawing.write(tmp_path)
    assert dict(mpl.rcParams) == before
    assert "$x$ &lt;script&gt;" in drawing.inline()
    assert "says &#34;&lt;i&gt;&#34;" in drawing.inline()
    assert (tmp_path / "one.csv").read_text() == "a\n1\n"


def test_bars_stay_with_their_class_where_a_cluster_is_unknown(
    measures: Measures, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = draw_concentration(measures)
    assert whole is not None
    skipped = whole.rows[0][0]
    share = measures.concentration.copy()
    share[measures.run.names.index(str(skipped))] = np.nan
    monkeypatch.setitem(vars(measures), "concentration", share)
    rest = draw_concentration(measures)
    assert rest is not None
    assert list(rest.rows) == [row for row in whole.rows if row[0] != skipped]


def test_training_curves_include_the_imbalance_of_pseudo_labels(measures: Measures) -> None:
    drawing = draw_training(measures)
    assert drawing is not None
    assert "imbalance of pseudo-labels" in {row[0] for row in drawing.rows}
