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


def test_pictures_are_shown(tab: Tab) -> None:
    widths = tab.page.evaluate("[...document.images].map((image) => image.naturalWidth)")
    assert len(widths) == 6 * len(NAMES)
    assert all(width > 0 for width in widths)


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
