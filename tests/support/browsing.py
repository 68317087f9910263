"""A page in a real browser, with its console messages and requests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

AXE = Path(os.environ.get("CAPTUNE_AXE", Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"))
DESK, PHONE = {"width": 1280, "height": 860}, {"width": 375, "height": 800}


class BrowserTab:
    """A fresh tab; `complaints` holds what the console said, `asked` every address that was fetched."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.page = browser.new_context(**options).new_page()
        self.page.set_default_timeout(120_000)  # a busy machine is no fault of the page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)

    def ground(self) -> str:
        return str(self.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    def width(self) -> int:
        """Return how wide the page is; more than the window means that it scrolls sideways."""
        return int(self.page.evaluate("document.documentElement.scrollWidth"))

    def serious_findings(self) -> list[str]:
        """Return what axe-core finds serious on a wide and on a narrow screen; the tab needs `bypass_csp`."""
        if not AXE.exists():
            pytest.skip("axe-core is missing: npm install --prefix . axe-core, or set CAPTUNE_AXE to axe.min.js")
        self.page.add_script_tag(content=AXE.read_text(encoding="utf-8"))
        found = []
        for size in (DESK, PHONE):
            self.page.set_viewport_size(size)
            for entry in self.page.evaluate("axe.run()")["violations"]:
                if entry["impact"] in ("serious", "critical"):
                    found += [f"{size['width']} px, {entry['id']}: {node['html']}" for node in entry["nodes"]]
        return found
