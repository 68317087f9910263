"""A report inside another page, as a notebook shows it: its own styles and scripts, and nothing of the notebook's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import BrowserTab

import captune

pytestmark = pytest.mark.slow

NAMES = ["<script>parent.document.title='run'</script>", "b & b", "c"]


def test_the_report_lives_in_a_frame_of_its_own(browser: Any, tmp_path: Path) -> None:
    vectors = np.repeat(np.eye(3), 5, axis=0) + 0.1 * np.random.default_rng(0).normal(size=(15, 3))
    texts = captune.ClassTexts(NAMES, np.eye(3))
    run = captune.adapt(captune.Embeddings(vectors), texts, method="transductive", quiet=True)
    cells = "".join(shown._repr_html_() for shown in (run, run.classifier, run.report(np.repeat(np.arange(3), 5))))
    notebook = tmp_path / "notebook.html"
    notebook.write_text(
        f"<title>notebook</title><body style='background:rgb(1,2,3)'><template>{cells}</template><div></div>"
        "<script>document.querySelector('div').innerHTML = document.querySelector('template').innerHTML</script>"
    )
    tab = BrowserTab(browser, notebook.as_uri())
    rows = tab.page.frame_locator("iframe").locator("#class-table tbody tr:visible > th")
    rows.first.wait_for()
    assert sorted(rows.all_inner_texts()) == sorted(NAMES)
    tab.page.frame_locator("iframe").locator("#search").fill("b & b")
    assert rows.all_inner_texts() == ["b & b"]
    assert tab.page.title() == "notebook"
    assert tab.ground() == "rgb(1, 2, 3)"
    assert NAMES[0] in tab.page.locator("table").nth(1).inner_text()
    assert [address for address in tab.asked if not address.startswith(("file:", "data:", "about:"))] == []
    assert tab.complaints == []
