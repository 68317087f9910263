"""From a folder of images to labels that are certified on the review page, and to an ImageFolder that is read back."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from browsing import BrowserTab
from reviewed import ReviewProcess, saved_answers
from vision_folder import import_vision

from captune.cli import main
from captune.world import descriptions_path, write_world

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def answer_check(tab: BrowserTab) -> None:
    """Answer what the image is, by keyboard; the folder of the image knows."""
    image = str(tab.page.locator(".stage .note").inner_text()).split(":")[0]
    truth, names = image.split("/")[0], tab.page.locator("#choices .name").all_inner_texts()
    if truth in names:
        tab.page.keyboard.press(str(names.index(truth) + 1))
    else:
        tab.page.keyboard.press("/")
        tab.page.keyboard.type(truth)
        tab.page.keyboard.press("Enter")
    tab.page.wait_for_function(
        "(old) => !document.querySelector('.stage .note')?.textContent.startsWith(old + ':')", arg=image
    )


def test_labels_are_certified_on_the_page_and_shipped(browser: Any, tmp_path: Path) -> None:
    datasets, why = import_vision("torchvision.datasets")
    images, run, out = tmp_path / "images", tmp_path / "run", tmp_path / "dataset"
    write_world(images, 8, seed=5)
    options = (
        "--classes",
        str(images),
        "--backbone",
        "embedded:patterns",
        "--describer",
        f"file:{descriptions_path()}",
    )
    server = ReviewProcess(images, 0, *options, "--out", str(run), "--workers", "0")
    try:
        tab = BrowserTab(browser, server.address)
        tab.page.locator("#choices button").first.wait_for()
        tab.page.click("#accept")
        tab.page.click("#accept-form button")
        tab.page.get_by_role("button", name="Check 120 images").click()
        tab.page.locator("#checking").wait_for()
        for left in range(120, 0, -1):
            assert tab.page.inner_text("#checking").startswith(f"{left} check")
            answer_check(tab)
        tab.page.get_by_role("button", name="Show what is certified").press("Enter")
        tab.page.wait_for_function("() => document.getElementById('accept-note').textContent.includes('are accepted')")
        assert "at least 95% are right" in tab.page.inner_text("#accept-note")
        assert tab.page.locator("svg.curve circle").count() == 1
        assert "--format imagefolder --precision 0.95" in tab.page.inner_text("#export-accepted")
        assert len(saved_answers(run)) == 120
        tab.page.keyboard.press("Escape")
        tab.page.wait_for_function("() => document.getElementById('saved').textContent === 'Everything is saved.'")
        assert tab.complaints == []
    finally:
        server.kill()
    assert main(["export", str(run), "--format", "imagefolder", "--precision", "0.95", "--out", str(out)]) == 0
    with (out / "labels.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    right = [row["label"] == row["path"].split("/")[0] for row in rows]
    assert len(rows) >= 120
    assert sum(right) / len(right) >= 0.95
    assert "95%" in (out / "README.md").read_text(encoding="utf-8")
    if datasets is None:
        pytest.skip(why)
    read = [datasets.ImageFolder(out / split) for split in ("train", "val", "test")]
    assert sum(map(len, read)) == len(rows)
    assert {name for one in read for name in one.classes} <= {path.name for path in images.iterdir()}
