"""The notebooks in docs run from start to end in a fresh kernel, and show what they say they show."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.slow
Cells = Mapping[str, Any]
"""The cells with code, by their last line."""


def outputs(cell: Any, kind: str = "text/plain") -> str:
    return "".join("".join(shown.get("data", {}).get(kind, "")) for shown in cell.get("outputs", ()))


def check_python_api(cells: Cells) -> None:
    assert "<table>" in outputs(cells["run"], "text/html")
    assert "confidence" in outputs(cells["run.predictions.to_pandas().head()"], "text/html")
    assert "srcdoc" in outputs(cells["run.report(photos.labels)"], "text/html")
    for pair in ("before, after", "no_labels, two_labels"):
        worse, better = literal_eval(outputs(cells[pair]))
        assert worse < better


def check_real_clip_verdict(cells: Cells) -> None:
    verdicts = {name: literal_eval(outputs(cell))[0] for name, cell in cells.items() if "health.verdict" in name}
    assert list(verdicts.values()) == ["unclear", "harmful", "unclear"]
    accuracy = literal_eval(outputs(cells["accuracy"]))
    assert accuracy["grip"] < accuracy["zero_shot"] < accuracy["transductive"]
    wrong_names = next(cell for name, cell in cells.items() if name.startswith("wrong_names"))
    assert literal_eval(outputs(wrong_names))[1] < accuracy["zero_shot"] / 2


def check_twenty_labels(cells: Cells) -> None:
    start, after_twenty = literal_eval(outputs(cells["start, after_twenty"]))
    low, accuracy, high = literal_eval(outputs(cells["estimate.low, accuracy(), estimate.high"]))
    assert start < after_twenty < accuracy
    assert low <= accuracy <= high
    last = next(cell for name, cell in cells.items() if name.startswith("len(again.labels)"))
    assert "(80, [" in outputs(last)


CHECKS: dict[str, Callable[[Cells], None]] = {
    "python-api": check_python_api,
    "real-clip-verdict": check_real_clip_verdict,
    "twenty-labels": check_twenty_labels,
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("CAPTUNE_CACHE", str(tmp_path / "cache"))
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit the notebook without outputs"
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    CHECKS[path.stem]({cell.source.splitlines()[-1]: cell for cell in notebook.cells if cell.cell_type == "code"})


def test_every_notebook_has_a_check() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(CHECKS)
