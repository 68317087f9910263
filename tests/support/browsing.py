"""A page in a real browser, with its console messages and requests."""

from __future__ import annotations

from typing import Any


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
