"""The page of an audit in a real browser: pictures, sorting, a phone's width, and a silent console."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from audit_folders import BAD, audit_facts, write_audit
from browsing import BrowserTab

from captune.auditing.page import write_audit_page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("audit")
    return write_audit_page(write_audit(base / "audit", audit_facts(base / "images"))).as_uri()


@pytest.fixture
def tab(browser: Any, address: str) -> Iterator[BrowserTab]:
    found = BrowserTab(browser, address, color_scheme="light")
    yield found
    assert found.complaints == []
    assert [url for url in found.asked if not url.startswith("data:")] == [address]


def test_names_are_shown_and_columns_sort(tab: BrowserTab) -> None:
    tab.page.locator("#class-table thead button", has_text="Misleading").click()
    assert tab.page.locator("#class-table tbody th").all_inner_texts()[0] == BAD
    tab.page.fill("#search", "plain")
    assert tab.page.inner_text("#found") == "1 of 3 classes"


def test_pictures_and_figures_are_shown(tab: BrowserTab) -> None:
    widths = tab.page.evaluate("[...document.querySelectorAll('.picture img')].map((image) => image.naturalWidth)")
    assert len(widths) == 2
    assert all(width > 0 for width in widths)
    assert tab.page.get_by_role("img", name="detection runs that found it").count() == 1


def test_a_phone_does_not_scroll_sideways(browser: Any, address: str) -> None:
    assert BrowserTab(browser, address, viewport={"width": 360, "height": 780}).width() <= 360
