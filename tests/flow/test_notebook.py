"""The notebook in docs runs from start to end in a fresh kernel, and shows what it says it shows."""

from __future__ import annotations

from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def outputs(cell: Any, kind: str) -> str:
    return "".join("".join(shown.get("data", {}).get(kind, "")) for shown in cell.get("outputs", ()))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("CAPTUNE_CACHE", str(tmp_path / "cache"))
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit the notebook without outputs"
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    written = {cell.source.splitlines()[-1]: cell for cell in notebook.cells if cell.cell_type == "code"}
    assert "<table>" in outputs(written["run"], "text/html")
    assert "confidence" in outputs(written["run.predictions.to_pandas().head()"], "text/html")
    assert "srcdoc" in outputs(written["run.report(photos.labels)"], "text/html")
    for pair in ("before, after", "no_labels, two_labels"):
        worse, better = literal_eval(outputs(written[pair], "text/plain"))
        assert worse < better


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
