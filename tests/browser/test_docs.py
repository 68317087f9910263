"""The documentation site in a real browser: it fits a phone, and axe finds nothing serious."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browsing import PHONE, BrowserTab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PAGES = ("", "recipes/", "commands/", "results/speed/", "serving/")


class SilentHandler(SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    commands = pytest.importorskip("mkdocs.commands.build")
    config = pytest.importorskip("mkdocs.config")
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    out = tmp_path_factory.mktemp("site")
    commands.build(config.load_config(str(Path(__file__).parents[2] / "mkdocs.yml"), site_dir=str(out)))
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(SilentHandler, directory=str(out))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("page", PAGES)
def test_a_phone_does_not_scroll_sideways(browser: Any, site: str, page: str) -> None:
    tab = BrowserTab(browser, site + page, viewport=PHONE)
    assert tab.width() <= PHONE["width"]
    clipped = "[...document.querySelectorAll('.language-sh code')].filter((c) => c.scrollWidth > c.clientWidth).length"
    assert tab.page.evaluate(clipped) == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_nothing_serious(browser: Any, site: str, page: str, theme: str) -> None:
    tab = BrowserTab(browser, site + page, color_scheme=theme)
    assert tab.serious_findings() == []
