"""Take the screenshots of the documentation with Playwright and the system's Chromium.

    captune demo --out demo
    python scripts/screenshots.py demo --aerial RUN --photo PHOTO --out docs/images

With --review RUN, the review page of another run is shown; answers are given to a copy of it.
RUN is an adapted run of UC Merced whose images are in folders by class, and PHOTO one photograph to classify.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from captune import load
from captune.report.page import write_report
from captune.review.opening import open_session
from captune.web.prediction import predicting
from captune.web.review.review_app import reviewing
from captune.web.server import Limits, Service, running

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync")
DESK, TALL = {"width": 1280, "height": 860}, {"width": 1280, "height": 1280}


class Camera:
    """Opens pages and saves screenshots with few colors to keep files small."""

    def __init__(self, browser: Any, out: Path) -> None:  # noqa: ANN401 (Playwright is not installed everywhere)
        self.browser, self.out = browser, out

    def answer_all(self, address: str) -> None:
        """Answer ten suggestions on the review page, as somebody who knows what the folders of the images are."""
        page = self.browser.new_page()
        page.goto(address)
        for _ in range(10):
            page.locator("#choices button").first.wait_for(timeout=60_000)
            names, image = page.locator("#choices .name").all_inner_texts(), page.locator(".stage .note").inner_text()
            folder = image.split("/")[0]
            page.keyboard.press(str(names.index(folder) + 1) if folder in names[:9] else "s")
        page.wait_for_timeout(3000)
        page.close()

    def take(
        self,
        name: str,
        address: str,
        theme: str = "light",
        size: dict[str, int] = DESK,
        at: str = "",
        photo: str = "",
        seconds: float = 0,
        wait_for: str = "body",
    ) -> None:
        """Take one picture: of the page's top, or of what begins at a section, with an image chosen if one is given."""
        context = self.browser.new_context(color_scheme=theme, viewport=size, reduced_motion="reduce")
        page = context.new_page()
        page.goto(address)
        if photo:
            page.set_input_files("#file", photo)
            page.locator("#result").wait_for(state="visible", timeout=60_000)
            page.wait_for_function("document.getElementById('picture').naturalWidth > 0")
        page.locator(wait_for).first.wait_for(state="attached", timeout=300_000)
        page.wait_for_timeout(1000 * seconds)
        page.wait_for_function(
            "[...document.images].every((i) => i.complete || i.getBoundingClientRect().top > innerHeight)"
        )
        if at:
            page.evaluate("(id) => document.getElementById(id).scrollIntoView()", at)
        target = self.out / f"{name}.png"
        image = Image.open(io.BytesIO(page.screenshot()))
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(target, optimize=True)
        print(f"{target}: {target.stat().st_size / 1000:.0f} kB")
        context.close()


def photograph_reports(camera: Camera, demo: Path, aerial: Path | None, scratch: Path) -> None:
    """Take the reports of the demo and of the aerial run, its comparison, and the audit."""
    run = write_report([demo / "run"], scratch / "demo.html").as_uri()
    camera.take("report-light", run, size=TALL)
    camera.take("report-map-light", run, at="map")
    both = write_report([demo / "zero_shot", demo / "run"], scratch / "both.html", "folders").as_uri()
    camera.take("report-compare-light", both, at="numbers")
    audit = write_report([demo / "audit"], scratch / "audit.html").as_uri()
    camera.take("audit-light", audit, at="classes")
    if aerial is not None:
        page = write_report([aerial], scratch / "aerial.html", "folders").as_uri()
        camera.take("report-ucmerced-light", page, size=TALL)
        camera.take("report-ucmerced-dark", page, "dark", TALL, at="mistakes")


def photograph_service(camera: Camera, run: Path, photo: Path) -> None:
    """Take the page of the service after an image was chosen."""
    with (
        Service("127.0.0.1", 0, Limits(timeout=60)) as service,
        predicting(load(run), run.resolve().name, service.limits) as app,
        running(service, app),
    ):
        camera.take("serve-light", service.address, photo=str(photo))


def photograph_review(camera: Camera, run: Path, scratch: Path) -> None:
    """Take all parts of the review page, after a few answers that are given to a copy of the run."""
    copy = shutil.copytree(run, scratch / run.resolve().name)
    with Service("127.0.0.1", 0) as service, reviewing(open_session(copy), copy.name) as app, running(service, app):
        camera.answer_all(service.address)
        first = f"{service.address}#suggestions"
        camera.take("review-suggestions-light", first, seconds=2, wait_for="#choices button")
        camera.take("review-search-light", f"{service.address}#search", seconds=3, wait_for=".tile")
        camera.take("review-groups-dark", f"{service.address}#groups", "dark", seconds=3, wait_for="article.group")
        camera.take("review-classes-light", f"{service.address}#classes", seconds=2)
        finished = "#map-box:has(#legend button) #map-note:empty"
        camera.take("review-map-dark", f"{service.address}#map", "dark", seconds=2, wait_for=finished)
        camera.take("review-compare-light", f"{service.address}#compare", seconds=2)


def main() -> None:
    """Take all pictures."""
    from playwright.sync_api import sync_playwright

    words = argparse.ArgumentParser(description="Take the pictures of the documentation.")
    words.add_argument("demo", type=Path, nargs="?", help="folder that captune demo wrote")
    words.add_argument("--aerial", type=Path, help="run folder of UC Merced")
    words.add_argument("--photo", type=Path, help="image for the page of the service")
    words.add_argument("--review", type=Path, help="run folder for the review page")
    words.add_argument("--out", type=Path, default=Path("docs/images"))
    options = words.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as scratch:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        camera = Camera(browser, options.out)
        if options.demo is not None:
            photograph_reports(camera, options.demo, options.aerial, Path(scratch))
        if options.photo is not None:
            photograph_service(camera, options.aerial or options.demo / "run", options.photo)
        if options.review is not None:
            photograph_review(camera, options.review, Path(scratch))
        browser.close()


if __name__ == "__main__":
    main()
