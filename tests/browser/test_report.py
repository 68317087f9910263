"""The report in a real browser: sorting, search, themes, pictures, and not one message in the console.

Needs Playwright's Python package and a Chromium of the system: pip install 'captune[browser]', apt install chromium.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import BrowserTab
from report_runs import make_run

from captune.report.page import write_report

pytestmark = pytest.mark.slow

NAMES = ("<script>document.title='run'</script>", "banana", "apple", "$cherry$ & co", "date")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("browser")
    folder = make_run(base / "run", base / "images", NAMES)
    return write_report([folder], labels=base / "images" / "labels.csv")


class Tab(BrowserTab):
    """The page of a report."""

    def __init__(self, browser: Any, report: Path, **options: Any) -> None:
        super().__init__(browser, report.as_uri(), **options)

    def classes(self) -> list[str]:
        return list(self.page.locator("#class-table tbody tr:visible > th").all_inner_texts())


@pytest.fixture
def tab(browser: Any, report: Path) -> Iterator[Tab]:
    found = Tab(browser, report, color_scheme="light")
    yield found
    assert found.complaints == []
    fetched = [url for url in found.asked if not url.startswith("data:")]
    assert fetched == [report.as_uri()]


def test_nothing_runs_that_came_with_names(tab: Tab) -> None:
    assert tab.page.title().startswith("captune report")
    assert NAMES[0] in tab.classes()


def test_columns_sort_both_ways(tab: Tab) -> None:
    title = tab.page.locator("#class-table thead button", has_text="Class")
    title.click()
    ascending = tab.classes()
    assert ascending.index("apple") < ascending.index("banana") < ascending.index("date")
    head = tab.page.locator("#class-table thead th").first
    assert head.get_attribute("aria-sort") == "ascending"
    title.press("Enter")
    assert tab.classes() == ascending[::-1]
    assert head.get_attribute("aria-sort") == "descending"


def test_numbers_sort_as_numbers_with_the_largest_first(tab: Tab) -> None:
    tab.page.locator("#class-table thead button", has_text="Accuracy before").click()
    column = tab.page.locator("#class-table thead th").all_inner_texts()
    at = next(i for i, text in enumerate(column) if "Accuracy before" in text)
    cells = tab.page.locator(f"#class-table tbody tr > :nth-child({at + 1})")
    values = [float(cell.get_attribute("data-value")) for cell in cells.all()]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) > 1


def test_search_narrows_the_table_and_says_so(tab: Tab) -> None:
    tab.page.fill("#search", "APPLE")
    assert tab.classes() == ["apple"]
    assert tab.page.inner_text("#found") == f"1 of {len(NAMES)} classes"
    tab.page.fill("#search", "no such class")
    assert tab.classes() == []
    tab.page.fill("#search", "")
    assert len(tab.classes()) == len(NAMES)


def test_the_theme_follows_the_system_and_the_button(tab: Tab, browser: Any, report: Path) -> None:
    light = tab.ground()
    tab.page.click("#theme")
    dark = tab.ground()
    assert dark != light
    assert tab.page.inner_text("#theme") == "Light theme"
    tab.page.reload()
    assert tab.ground() == dark
    tab.asked.clear()
    tab.asked.append(report.as_uri())
    assert Tab(browser, report, color_scheme="dark").ground() == dark


def test_pictures_are_shown_at_96_pixels_or_more(tab: Tab) -> None:
    sizes = tab.page.evaluate(
        "[...document.querySelectorAll('.gallery img')].map((i) => [i.naturalWidth, i.clientWidth, i.clientHeight])"
    )
    assert len(sizes) > 5 * len(NAMES)
    assert min(min(size) for size in sizes) >= 80  # the natural width of the test images
    assert min(size[1] for size in sizes) >= 96
    assert min(size[2] for size in sizes) >= 96


def test_a_picture_opens_large_and_arrows_lead_on(tab: Tab) -> None:
    pictures = tab.page.locator("#unsure .picture")
    pictures.nth(0).press("Enter")
    large = tab.page.locator("#large")
    assert large.is_visible()
    assert large.locator("img").bounding_box()["width"] > 300
    assert "%; or" in large.locator("p").inner_text()
    tab.page.keyboard.press("ArrowRight")
    second = pictures.nth(1).locator("img").get_attribute("src")
    assert large.locator("img").get_attribute("src") == second
    tab.page.keyboard.press("Escape")
    assert not large.is_visible()
    assert tab.page.evaluate("document.activeElement.querySelector('img').src") == second


def test_the_map_shows_one_class_before_or_after(tab: Tab) -> None:
    bright = tab.page.locator("#image-map use:not(.faded)")
    everything = bright.count()
    first = tab.page.locator(".legend button", has_text=NAMES[0])
    first.click()
    assert first.get_attribute("aria-pressed") == "true"
    after = bright.count()
    assert after == 12
    tab.page.check("#map-before")
    assert bright.count() > after  # before adaptation, this name also attracts the images of another class
    first.click()
    assert bright.count() == everything == 12 * len(NAMES)


def test_search_narrows_the_galleries_too(tab: Tab) -> None:
    tab.page.fill("#search", "banana")
    assert tab.page.locator("#class-galleries h3:visible").count() >= 1
    assert tab.page.locator("#class-galleries article:visible").count() < len(NAMES)


def test_cards_are_sorted_and_filtered(tab: Tab) -> None:
    tab.page.select_option("#card-sort", "images")
    cards = "[...document.querySelectorAll('#class-galleries article')]"
    sizes = tab.page.evaluate(f"{cards}.map((card) => Number(card.dataset.images))")
    assert sizes == sorted(sizes, reverse=True)
    tab.page.select_option("#card-filter", "misleading")
    assert tab.page.locator("#class-galleries article:visible").count() == 1
    tab.page.select_option("#card-filter", "")
    assert tab.page.locator("#class-galleries article:visible").count() == len(NAMES)


def test_settings_and_training_are_folded(tab: Tab) -> None:
    assert not tab.page.locator("#settings table").first.is_visible()
    assert not tab.page.locator("#training svg").is_visible()
    tab.page.locator("#settings summary").click()
    assert tab.page.locator("#settings table").first.is_visible()


@pytest.fixture(scope="module")
def comparison(report: Path) -> Path:
    zero_shot = make_run(report.parent.with_name("names only"), report.parent.with_name("images"), NAMES, adapted=False)
    return write_report([zero_shot, report.parent], report.parents[1] / "both.html")


def test_a_comparison_shows_what_differs_and_the_pictures(browser: Any, comparison: Path) -> None:
    tab = Tab(browser, comparison, viewport={"width": 375, "height": 800})
    assert "zero_shot" in tab.page.inner_text("#differences")
    assert "names only" in tab.page.inner_text("#summary")
    tab.page.locator("#disagreements .matrix td a").first.click()
    target = tab.page.evaluate("location.hash")
    assert tab.page.locator(f"div:has(> {target}) .picture").count() > 0
    assert tab.page.title().startswith("captune: 2 runs")
    assert tab.width() <= 375
    assert tab.complaints == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", ["report", "comparison"])
def test_axe_finds_nothing_serious(browser: Any, page: str, theme: str, request: pytest.FixtureRequest) -> None:
    tab = Tab(browser, request.getfixturevalue(page), color_scheme=theme, bypass_csp=True)
    tab.page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert tab.serious_findings() == []


def test_a_phone_scrolls_tables_and_not_the_page(browser: Any, report: Path) -> None:
    phone = Tab(browser, report, viewport={"width": 375, "height": 800})
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 375
    assert phone.complaints == []


def test_paper_is_white_and_shows_titles_on_every_page(tab: Tab) -> None:
    tab.page.click("#theme")
    tab.page.emulate_media(media="print")
    assert tab.ground() == "rgb(255, 255, 255)"
    assert not tab.page.locator("#theme").is_visible()
    title = "getComputedStyle(document.querySelector('#class-table th'), '::before').content"
    assert tab.page.evaluate(title) == '"Class"'


def test_without_scripts_everything_can_be_read(browser: Any, report: Path) -> None:
    plain = Tab(browser, report, java_script_enabled=False)
    assert plain.page.locator("#class-table tbody tr").count() == len(NAMES)
    assert not plain.page.locator("#search").is_visible()
