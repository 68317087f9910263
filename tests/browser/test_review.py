"""The review page in a real browser, with a silent console: by keyboard, in two windows, over a kill, on a phone."""

from __future__ import annotations

import csv
import io
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import BrowserTab
from reviewed import NASTY, ReviewClient, ReviewProcess, make_review, review_page, saved_answers, session_of
from served import wait_until

import captune
from captune.results.image_classifier import OnnxClassifier
from captune.world import write_world

pytestmark = pytest.mark.slow
PAGES = ("suggestions", "search", "groups", "classes", "map", "compare")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_review(tmp_path_factory.mktemp("review"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with review_page(run) as found:
        yield found


@pytest.fixture
def open_tab(browser: Any, address: str) -> Iterator[Callable[..., BrowserTab]]:
    tabs: list[BrowserTab] = []

    def open_one(page: str = "suggestions", **options: Any) -> BrowserTab:
        tabs.append(BrowserTab(browser, f"{address}#{page}", **options))
        tabs[-1].page.locator(f"#{page}").wait_for(state="visible")
        return tabs[-1]

    yield open_one
    for tab in tabs:
        assert tab.complaints == []
        assert [asked for asked in tab.asked if not asked.startswith((address, "data:"))] == []
        tab.page.context.close()


def wait_for_suggestion(tab: BrowserTab) -> str:
    tab.page.locator("#choices button").first.wait_for(timeout=120_000)
    return str(tab.page.locator(".stage .note").inner_text()).split(":")[0]


def test_twenty_images_are_labeled_by_keyboard(open_tab: Callable[..., BrowserTab], run: Path, address: str) -> None:
    tab = open_tab()
    seen, expected = [], []
    for number in range(20):
        image = wait_for_suggestion(tab)
        assert image not in seen
        seen.append(image)
        names = tab.page.locator("#choices .name").all_inner_texts()
        key = ("Enter", "1", "3", "s")[number % 4]
        expected.append(("skip", "") if key == "s" else ("label", names[2 if key == "3" else 0]))
        tab.page.keyboard.press(key)
        tab.page.wait_for_function(
            "(old) => !document.querySelector('.stage .note')?.textContent.startsWith(old + ':')", arg=image
        )
    wait_until(lambda: len(saved_answers(run)) == 20)
    assert saved_answers(run) == expected
    wait_until(lambda: ReviewClient(address).get("api/state")["n_answers"] == 15)
    tab.page.wait_for_function("() => document.getElementById('progress').textContent.startsWith('15 answers')")
    assert "checked images" in tab.page.inner_text("#progress")


def test_the_curve_shows_what_checks_say_and_the_point_what_is_accepted(
    run: Path, open_tab: Callable[..., BrowserTab], address: str
) -> None:
    tab = open_tab("groups")
    tab.page.click("#accept")
    tab.page.fill("#precision", "50")
    tab.page.click("#accept-form button")
    tab.page.locator("svg.curve polyline").wait_for(timeout=60_000)
    assert tab.page.locator("svg.curve circle").count() == 0  # nothing is accepted without checks
    assert "must be checked" in tab.page.inner_text("#accept-note")
    client = ReviewClient(address)
    missing = session_of(run).suggest_checks(0.5)
    for check in missing:
        label = Path(check.image).parts[0]
        client.post("api/answer", kind="label", images=[check.position], label=label, suggestion=check.kind)
    wait_until(lambda: client.get("api/state")["n_answers"] == len(missing))
    tab.page.click("#accept-form button")
    tab.page.locator("svg.curve polygon").wait_for(timeout=60_000)
    accepted = client.post("api/accept", precision=0.5)
    assert tab.page.locator("svg.curve circle").count() == (accepted["n_accepted"] > 0)
    assert [point["coverage"] for point in accepted["curve"]][-1] == 1.0


def test_everything_is_done_by_keyboard_alone(open_tab: Callable[..., BrowserTab], run: Path) -> None:
    tab = open_tab()
    keys, page = tab.page.keyboard, tab.page
    wait_for_suggestion(tab)
    keys.press("?")
    page.get_by_role("dialog").get_by_text("none of these classes").wait_for()
    keys.press("Escape")
    for key in ("n", "x"):
        image = wait_for_suggestion(tab)
        keys.press(key)
        page.wait_for_function(
            "(old) => !document.querySelector('.stage .note')?.textContent.startsWith(old + ':')", arg=image
        )
    keys.press("f")
    page.locator(".tile").first.wait_for()
    keys.press("/")
    keys.type("zebra")
    keys.press("Enter")
    page.wait_for_function("() => document.getElementById('found-count').textContent.includes('similar')")
    keys.press("Escape")
    keys.press("ArrowRight")
    keys.press(" ")
    assert page.locator('.tile[aria-pressed="true"]').count() == 1
    first = page.locator(".tile").first.get_attribute("data-position")
    keys.press("n")
    keys.press("l")
    page.locator("#example").wait_for(state="visible")
    page.wait_for_function("(old) => document.querySelector('.tile')?.dataset.position !== old", arg=first)
    keys.press("a")
    n_shown = page.locator(".tile").count()
    assert page.locator('.tile[aria-pressed="true"]').count() == n_shown
    keys.press("n")
    wait_until(lambda: len(saved_answers(run)) == 4)
    kinds = [kind for kind, _ in saved_answers(run)]
    assert kinds == ["label", "not", "label", "label"]
    assert [label for kind, label in saved_answers(run) if kind == "label"] == [captune.NONE] * 3
    keys.press("g")
    page.locator("article.group").first.wait_for()
    keys.press("j")
    keys.press("j")
    assert page.evaluate("document.activeElement.closest('article.group') !== null")
    keys.press("u")
    wait_until(lambda: len(saved_answers(run)) == 3)


def test_two_people_who_disagree_are_asked_for_a_second_opinion(
    open_tab: Callable[..., BrowserTab], run: Path, address: str
) -> None:
    tab = open_tab("search")
    tab.page.locator("#person").fill("bob")
    tab.page.locator("#person").press("Tab")
    tab.page.locator(".tile").first.click()
    position = int(tab.page.locator(".tile").first.get_attribute("data-position") or -1)
    ReviewClient(address).post("api/answer", kind="label", images=[position], label="zebra", person="ann")
    tab.page.locator("#search").get_by_label("Class of the selected images").fill("tartan")
    tab.page.locator("#search").get_by_role("button", name="Label them").click()
    tab.page.locator("#disagreed").click(timeout=120_000)
    tab.page.wait_for_function("() => document.querySelectorAll('.tile').length === 1")
    third = open_tab()
    wait_for_suggestion(third)
    assert "ann says zebra, bob says tartan" in third.page.inner_text(".stage .note")
    third.page.keyboard.press("Enter")
    third.page.locator("#disagreed").wait_for(state="detached", timeout=120_000)
    from captune.review.corrections import FILE, Corrections

    assert [answer.person for answer in Corrections(run / FILE).active()][:2] == ["ann", "bob"]


def test_a_class_that_is_new_is_added_after_a_question(open_tab: Callable[..., BrowserTab], run: Path) -> None:
    tab = open_tab()
    wait_for_suggestion(tab)
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("velvet")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("dialog").get_by_role("button", name="Add the class").click()
    wait_until(lambda: saved_answers(run) == [("add", "velvet"), ("label", "velvet")])


def test_undo_brings_the_image_back(open_tab: Callable[..., BrowserTab], run: Path) -> None:
    tab = open_tab()
    first = wait_for_suggestion(tab)
    tab.page.keyboard.press("2")
    wait_until(lambda: len(saved_answers(run)) == 1)
    tab.page.keyboard.press("u")
    tab.page.wait_for_function(
        "(name) => document.querySelector('.stage .note').textContent.startsWith(name + ':')", arg=first
    )
    assert saved_answers(run) == []


def test_a_group_is_named_besides_a_marked_image(open_tab: Callable[..., BrowserTab], run: Path) -> None:
    tab = open_tab("groups")
    row = tab.page.locator("article.group").first
    row.wait_for()
    size = int(row.locator("h3 .note").inner_text().split(" of ")[1].split()[0])
    row.locator(".mark").first.click()
    assert row.locator(".mark").first.get_attribute("aria-pressed") == "true"
    row.locator(".picker input").fill("zebra")
    row.locator(".picker input").press("Enter")
    tab.page.locator(".group.done").wait_for(timeout=120_000)
    assert tab.page.locator(".group.done").inner_text() == f"{size - 1} image{'s' if size != 2 else ''}: zebra"
    assert saved_answers(run) == [("not", "zebra"), ("label", "zebra")]
    tab.page.locator("#undo").click()
    tab.page.locator("article.group").first.wait_for(timeout=120_000)
    wait_until(lambda: saved_answers(run) == [])  # the mark belongs to the answer


def test_a_class_is_renamed_and_another_window_follows(open_tab: Callable[..., BrowserTab]) -> None:
    tab, other = open_tab("classes"), open_tab("classes")
    field = tab.page.get_by_label("Name of zebra", exact=True)
    field.fill("striped horse")
    field.press("Enter")
    tab.page.get_by_label("Name of striped horse", exact=True).wait_for(timeout=120_000)
    assert "Renamed 'zebra' to 'striped horse'" in tab.page.inner_text("#news")
    other.page.get_by_label("Name of striped horse", exact=True).wait_for(timeout=120_000)
    assert other.page.get_by_label("Name of zebra", exact=True).count() == 0


def test_classes_are_merged_added_described_and_removed(open_tab: Callable[..., BrowserTab], run: Path) -> None:
    tab = open_tab("classes")
    for name in ("gingham", "tartan"):
        tab.page.get_by_label(f"Merge {name}", exact=True).check()
    tab.page.get_by_label("Name of the merged class").fill("plaid")
    tab.page.get_by_role("button", name="Merge", exact=True).click()
    tab.page.get_by_label("Name of plaid", exact=True).wait_for(timeout=120_000)
    tab.page.get_by_label("Name of the new class").fill("velvet")
    tab.page.get_by_role("button", name="Add class").click()
    row = tab.page.locator('[data-name="velvet"]')
    row.wait_for(timeout=120_000)
    row.locator("summary").click()
    row.locator("textarea").fill("a soft dark fabric\nvelvet folds")
    row.get_by_role("button", name="Save descriptions").click()
    tab.page.wait_for_function("() => document.getElementById('news').textContent.includes('Described')")
    tab.page.locator('[data-name="velvet"]').get_by_role("button", name="Remove").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    tab.page.locator('[data-name="velvet"]').get_by_role("button", name="Remove").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Remove it").click()
    tab.page.locator('[data-name="velvet"]').wait_for(state="detached", timeout=120_000)
    assert [kind for kind, _ in saved_answers(run)] == ["merge", "add", "describe", "remove"]


def test_two_windows_lose_nothing(open_tab: Callable[..., BrowserTab], run: Path) -> None:
    tabs = [open_tab(), open_tab()]
    images = set()
    for _ in range(5):
        for tab in tabs:
            images.add(wait_for_suggestion(tab))
            tab.page.keyboard.press("Enter")
    wait_until(lambda: len(saved_answers(run)) == 10)
    assert len(images) == 10
    for tab in tabs:
        tab.page.wait_for_function("() => document.getElementById('progress').textContent.startsWith('10 answers')")


@pytest.mark.timeout(600)
def test_a_killed_server_loses_no_answer(browser: Any, run: Path) -> None:
    first = ReviewProcess(run)
    tab = BrowserTab(browser, first.address)
    wait_for_suggestion(tab)
    for _ in range(3):
        tab.page.keyboard.press("Enter")
        wait_for_suggestion(tab)
    wait_until(lambda: len(saved_answers(run)) == 3)
    first.kill()
    for _ in range(3):  # the page goes on with the images it has
        tab.page.keyboard.press("Enter")
        wait_for_suggestion(tab)
    tab.page.wait_for_function("() => document.getElementById('trouble').textContent.includes('will be saved')")
    again = ReviewProcess(run, first.port)
    try:
        wait_until(lambda: len(saved_answers(run)) == 6)
        tab.page.wait_for_function("() => document.getElementById('trouble').hidden", timeout=120_000)
        tab.page.wait_for_function(
            "() => document.getElementById('progress').textContent.startsWith('6 answers')", timeout=60_000
        )
    finally:
        again.kill()
    tab.page.context.close()


def test_the_lasso_labels_the_images_inside(open_tab: Callable[..., BrowserTab], run: Path, address: str) -> None:
    tab = open_tab("map")
    tab.page.locator("#legend button").first.wait_for(timeout=120_000)
    tab.page.get_by_role("button", name="Lasso").click()
    box = tab.page.locator("#canvas").bounding_box()
    tab.page.mouse.move(box["x"] + 2, box["y"] + 2)
    tab.page.mouse.down()
    for x, y in ((0.99, 0.01), (0.99, 0.99), (0.01, 0.99)):
        tab.page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    tab.page.mouse.up()
    n_images = ReviewClient(address).get("api/state")["n_images"]
    tab.page.wait_for_function(
        f"() => document.getElementById('selection').textContent === '{n_images} images selected'"
    )
    tab.page.locator("#map").get_by_label("Class of the selected images").fill("zebra")
    tab.page.locator("#map").get_by_role("button", name="Label them").click()
    wait_until(lambda: saved_answers(run) == [("label", "zebra")])


def test_the_map_works_by_keyboard_and_shows_pictures(open_tab: Callable[..., BrowserTab]) -> None:
    tab = open_tab("map")
    tab.page.locator("#legend button").first.wait_for(timeout=120_000)
    tab.page.locator("#canvas").focus()
    tab.page.keyboard.press("ArrowRight")
    tab.page.locator("#tip img").wait_for(state="visible")
    first = tab.page.get_attribute("#tip", "data-position")
    tab.page.keyboard.press(" ")
    tab.page.keyboard.press("ArrowLeft")
    assert tab.page.get_attribute("#tip", "data-position") != first
    tab.page.keyboard.press(" ")
    assert tab.page.inner_text("#selection") == "2 images selected"


def test_compare_shows_what_changed(open_tab: Callable[..., BrowserTab], address: str) -> None:
    client = ReviewClient(address)
    client.post("api/class", action="merge", names=["zebra", "tartan"], new="plaid")
    client.post("api/class", action="remove", name="argyle")
    tab = open_tab("compare")
    tab.page.locator("article.move").first.wait_for(timeout=120_000)
    assert tab.page.locator("article.move img").count() > 0
    tab.page.get_by_label("since the page was started").check()
    tab.page.locator("article.move").first.wait_for()


def test_labels_are_downloaded(open_tab: Callable[..., BrowserTab]) -> None:
    tab = open_tab()
    tab.page.locator("#exports summary").click()
    with tab.page.expect_download(timeout=60_000) as waiting:
        tab.page.get_by_role("button", name="Labels as CSV").click()
    path = waiting.value.path()
    assert Path(path).read_text(encoding="utf-8").startswith("path,")


def test_an_export_that_fails_says_why(browser: Any, run: Path, address: str) -> None:
    tab = BrowserTab(browser, address)
    wait_for_suggestion(tab)
    shutil.rmtree(run)
    run.write_text("in the way", encoding="utf-8")
    tab.page.locator("#exports summary").click()
    tab.page.get_by_role("button", name="Labels as CSV").click()
    tab.page.locator("#trouble").wait_for(state="visible", timeout=60_000)
    assert str(run) in tab.page.inner_text("#trouble")
    tab.page.context.close()


def share_right(rows: str) -> float:
    """Return the accuracy of an exported table, in which folder names are the truth."""
    table = list(csv.DictReader(io.StringIO(rows)))
    return sum(row["path"].split("/")[0] == row["label"] for row in table) / len(table)


def label_and_export(browser: Any, images: Path, backbone: str, out: Path, n_answers: int) -> tuple[float, float]:
    """Answer by keyboard as somebody who knows the classes, and export; return accuracies before and after."""
    options = ("--classes", str(images), "--backbone", backbone, "--out", str(out), "--workers", "0")
    server = ReviewProcess(images, 0, *options)
    try:
        before = share_right((out / "predictions.csv").read_text(encoding="utf-8"))
        tab = BrowserTab(browser, server.address)
        for _ in range(n_answers):
            image = wait_for_suggestion(tab)
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
        progress = f"{n_answers} answers"
        tab.page.wait_for_function(
            "(text) => document.getElementById('progress').textContent.startsWith(text)", arg=progress, timeout=120_000
        )
        found = {}
        for name in ("Labels as CSV", "Classifier as ONNX"):
            with tab.page.expect_download(timeout=300_000) as waiting:
                tab.page.locator("#exports summary").click()
                tab.page.get_by_role("button", name=name).click()
            found[name] = Path(waiting.value.path()).read_bytes()
        assert tab.complaints == []
    finally:
        server.kill()
    (out / "model.onnx").write_bytes(found["Classifier as ONNX"])
    paths = sorted(images.rglob("*.*g"))[:8]
    predicted = OnnxClassifier(out / "model.onnx").predict_proba(paths)
    assert predicted.shape == (8, len(list(images.iterdir())))
    return before, share_right(found["Labels as CSV"].decode())


@pytest.mark.timeout(600)
def test_the_loop_of_a_new_user_from_folder_to_export(browser: Any, tmp_path: Path) -> None:
    write_world(tmp_path / "images", 6, seed=5)
    before, after = label_and_export(browser, tmp_path / "images", "embedded:patterns", tmp_path / "out", 24)
    assert after > before


@pytest.mark.timeout(1800)
def test_the_loop_of_a_new_user_on_aerial_photographs(browser: Any, tmp_path: Path) -> None:
    """UC Merced by class names: 42 answers in the browser make 70 % of the test photographs right."""
    if not os.environ.get("CAPTUNE_TESTBED"):
        pytest.skip("Set CAPTUNE_TESTBED to a folder with data/ucmerced and models/aerial-dual.")
    testbed, out = Path(os.environ["CAPTUNE_TESTBED"]), tmp_path / "out"
    photos = testbed / "data" / "ucmerced"
    clock = time.perf_counter()
    before, after = label_and_export(browser, photos / "train", f"dual:{testbed / 'models' / 'aerial-dual'}", out, 42)
    seconds = time.perf_counter() - clock
    accuracy = captune.load(out).evaluate(photos / "test", "folders").accuracy
    told = (100 * before, 100 * after, 100 * accuracy, seconds)
    logging.getLogger(__name__).info("train %.1f -> %.1f %%, test %.1f %%, %.0f s with export", *told)
    assert accuracy >= 0.7
    assert after > before


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_every_page_fits_a_phone(open_tab: Callable[..., BrowserTab], page: str, theme: str) -> None:
    tab = open_tab(page, viewport={"width": 360, "height": 780}, color_scheme=theme)
    tab.page.wait_for_timeout(1500)
    assert tab.width() <= 360


def test_themes_follow_the_system_and_the_button(open_tab: Callable[..., BrowserTab]) -> None:
    light, dark = open_tab(color_scheme="light"), open_tab(color_scheme="dark")
    assert light.ground() != dark.ground()
    light.page.click("#theme")
    assert light.ground() == dark.ground()
    light.page.reload()
    assert light.ground() == dark.ground()


def test_names_with_html_are_text(open_tab: Callable[..., BrowserTab], address: str) -> None:
    client = ReviewClient(address)
    client.post("api/class", action="rename", name="zebra", new=NASTY)
    client.post("api/answer", kind="label", images=[0, 1, 2], label=NASTY)
    for page in PAGES:
        tab = open_tab(page)
        tab.page.wait_for_timeout(1000)
        assert tab.page.title() == "captune: patterns <i>"
        assert tab.page.locator('img[src="x"]').count() == 0
    tab = open_tab("classes")
    tab.page.get_by_label(f"Name of {NASTY}", exact=True).wait_for()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_nothing_serious(browser: Any, address: str, page: str, theme: str) -> None:
    tab = BrowserTab(browser, f"{address}#{page}", color_scheme=theme, bypass_csp=True)
    tab.page.wait_for_timeout(2000)
    assert tab.serious_findings() == []
    tab.page.context.close()
