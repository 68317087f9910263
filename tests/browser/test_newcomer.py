"""The folder of a newcomer in a real browser: odd files, a misspelled and an absent name, from `adapt` to an export."""

from __future__ import annotations

import csv
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from browsing import BrowserTab
from PIL import Image, ImageDraw
from reviewed import ReviewProcess, saved_answers
from served import wait_until

from captune.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CLASSES = ("airplane", "beach", "chaparral", "forest", "harbor", "parking lot", "river", "storage tanks")
MISSPELLED, ABSENT = "chaparal", "volcano"
PER_CLASS, N_ANSWERS = 15, 30


def drawing(seed: int, is_window: bool) -> Image.Image:
    """Return lines of letters: a screenshot with a title bar, or a scanned document."""
    choose = random.Random(seed)
    image = Image.new("RGB", (480, 360), (245, 245, 245) if is_window else (255, 255, 255))
    draw = ImageDraw.Draw(image)
    if is_window:
        draw.rectangle((0, 0, 480, 28), fill=(60, 80, 160))
        draw.rectangle((0, 28, 110, 360), fill=(225, 228, 235))
    for y in range(50, 340, 14):
        words = "".join(choose.choice("abcdefghij klmno") for _ in range(50))
        draw.text((130 if is_window else 40, y), words, fill=(20, 20, 20))
    return image


def write_folder(photographs: Path, folder: Path) -> None:
    """Write photographs of eight classes without subfolders, and twelve files that are of none."""
    folder.mkdir()
    for name in CLASSES:
        for path in sorted((photographs / name).iterdir())[:PER_CLASS]:
            shutil.copyfile(path, folder / f"{name} {path.name}")
    for number in range(4):
        drawing(number, True).save(folder / f"Screenshot {number}.png")
    for number in range(3):
        drawing(9 + number, False).save(folder / f"scan {number}.png")
    for shade in ("white", "black"):
        Image.new("RGB", (300, 300), shade).save(folder / f"{shade}.png")
    (folder / "notes.txt").write_text("harbor: by boat")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not a photograph")
    (folder / "empty.jpg").write_bytes(b"")


def truth(image: str) -> str:
    """Return the class of an image, or "" for what is none."""
    return next((name for name in CLASSES if image.startswith(f"{name} ")), "")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def current_image(tab: BrowserTab) -> str:
    tab.page.locator("#choices button").first.wait_for()
    return str(tab.page.locator(".stage .note").inner_text()).split(":")[0]


def correct_names(tab: BrowserTab) -> None:
    """Rename the misspelled class and remove the absent one, on the page of classes."""
    field = tab.page.get_by_label(f"Name of {MISSPELLED}", exact=True)
    field.fill("chaparral")
    field.press("Enter")
    tab.page.get_by_label("Name of chaparral", exact=True).wait_for()
    absent = tab.page.locator(f'[data-name="{ABSENT}"]')
    absent.get_by_role("button", name="Remove").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Remove it").click()
    absent.wait_for(state="detached")


def answer_suggestions(tab: BrowserTab) -> None:
    """Answer by keyboard what each image is, and N for what is none."""
    for _ in range(N_ANSWERS):
        image = current_image(tab)
        names = tab.page.locator("#choices .name").all_inner_texts()
        if not truth(image):
            tab.page.keyboard.press("n")
        elif truth(image) in names[:9]:
            tab.page.keyboard.press(str(names.index(truth(image)) + 1))
        else:
            tab.page.keyboard.press("/")
            tab.page.keyboard.type(truth(image))
            tab.page.keyboard.press("Enter")
        gone = "(old) => !document.querySelector('.stage .note')?.textContent.startsWith(old + ':')"
        tab.page.wait_for_function(gone, arg=image)
    tab.page.wait_for_function(f"() => parseInt(document.getElementById('progress').textContent) >= {N_ANSWERS}")


def put_the_rest_aside(tab: BrowserTab, run: Path) -> None:
    """Look for images like one that is none of the classes, select those that are none either, and press N."""
    page = tab.page
    none_of_these = page.get_by_role("checkbox", name="none of these")
    none_of_these.check()
    page.locator(".tile").first.wait_for()
    page.get_by_role("button", name="More like").first.click()
    none_of_these.uncheck()
    page.wait_for_function("() => document.getElementById('found-count').textContent.includes('similar')")
    page.wait_for_function("() => document.querySelectorAll('.tile').length >= 60")
    selected = 0
    for tile in page.locator(".tile").all():
        image = str(tile.get_attribute("title"))
        if not truth(image) and "✓" not in tile.inner_text():
            tile.click()
            selected += 1
    if selected:
        before = len(saved_answers(run))
        page.keyboard.press("n")
        wait_until(lambda: len(saved_answers(run)) > before)


def save(tab: BrowserTab) -> None:
    """Save the run by downloading the labels."""
    with tab.page.expect_download(timeout=300_000) as waiting:
        tab.page.locator("#exports summary").click()
        tab.page.get_by_role("button", name="Labels as CSV").click()
    assert waiting.value.path().stat().st_size


def test_a_newcomer_gets_a_clean_data_set(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.environ.get("CAPTUNE_TESTBED"):
        pytest.skip("Set CAPTUNE_TESTBED to a folder with data/ucmerced and models/aerial-dual.")
    testbed, photos, run = Path(os.environ["CAPTUNE_TESTBED"]), tmp_path / "photos", tmp_path / "run"
    write_folder(testbed / "data" / "ucmerced" / "train", photos)
    names = ",".join([*(MISSPELLED if name == "chaparral" else name for name in CLASSES), ABSENT])
    backbone = f"dual:{testbed / 'models' / 'aerial-dual'}"
    assert (
        main(["adapt", str(photos), "--classes", names, "--backbone", backbone, "--out", str(run), "--workers", "0"])
        == 0
    )
    assert {row["path"] for row in rows(run / "skipped.csv")} == {"broken.jpg", "empty.jpg"}
    n_odd = sum(not truth(row["path"]) for row in rows(run / "predictions.csv"))
    assert n_odd == 9

    server = ReviewProcess(run)
    try:
        tab = BrowserTab(browser, f"{server.address}#classes")
        correct_names(tab)
        tab.page.goto(f"{server.address}#suggestions")
        answer_suggestions(tab)
        tab.page.goto(f"{server.address}#search")
        put_the_rest_aside(tab, run)
        save(tab)
        assert tab.complaints == []
    finally:
        server.kill()
    assert main(["export", str(run), "--format", "imagefolder", "--out", str(tmp_path / "dataset")]) == 0
    exported = rows(tmp_path / "dataset" / "labels.csv")
    assert {row["label"] for row in exported} <= set(CLASSES)
    assert [row["path"] for row in exported if not truth(row["path"])] == []
    right = [row["label"] == truth(row["path"]) for row in exported]
    assert len(right) == len(CLASSES) * PER_CLASS
    assert sum(right) / len(right) > 0.8
