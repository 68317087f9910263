"""Take the screenshots of the documentation with Playwright and the system's Chromium.

    captune demo --out demo
    python scripts/screenshots.py demo --aerial RUN --photo PHOTO --out docs/images

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
from captune.web.limits import Limits
from captune.web.prediction import predicting
from captune.web.server import Service, running

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync")
DESK, TALL, PHONE = {"width": 1280, "height": 860}, {"width": 1280, "height": 1280}, {"width": 390, "height": 844}


class Camera:
    """Opens pages and saves screenshots with few colors to keep files small."""

    def __init__(self, browser: Any, out: Path) -> None:  # noqa: ANN401 (Playwright is not installed everywhere)
        self.browser, self.out = browser, out

    def take(
        self, name: str, address: str, theme: str = "light", size: dict[str, int] = DESK, at: str = "", photo: str = ""
    ) -> None:
        """Take one picture: of the page's top, or of what begins at a section, with an image chosen if one is given."""
        context = self.browser.new_context(color_scheme=theme, viewport=size, reduced_motion="reduce")
        page = context.new_page()
        page.goto(address)
        if photo:
            page.set_input_files("#file", photo)
            page.locator("#result").wait_for(state="visible", timeout=60_000)
            page.wait_for_function("document.getElementById('picture').naturalWidth > 0")
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
    camera.take("report-dark", run, "dark", TALL)
    camera.take("report-phone-dark", run, "dark", PHONE)
    camera.take("report-mismatch-dark", run, "dark", at="mismatch")
    camera.take("report-confusion-light", run, at="confusion")
    both = write_report([demo / "zero_shot", demo / "run"], scratch / "both.html", "folders").as_uri()
    camera.take("report-compare-light", both)
    audit = write_report([demo / "audit"], scratch / "audit.html").as_uri()
    camera.take("audit-light", audit)
    camera.take("audit-dark", audit, "dark", at="mismatch")
    if aerial is not None:
        page = write_report([aerial], scratch / "aerial.html", "folders").as_uri()
        camera.take("report-ucmerced-light", page, size=TALL)
        camera.take("report-ucmerced-dark", page, "dark", at="confusion")
        camera.take("report-ucmerced-phone", page, size=PHONE, at="classes")


def photograph_service(camera: Camera, run: Path, photo: Path) -> None:
    """Take the page of the service after an image was chosen."""
    with (
        Service("127.0.0.1", 0, Limits(timeout=60)) as service,
        predicting(load(run), run.resolve().name, service.limits) as app,
        running(service, app),
    ):
        camera.take("serve-light", service.address, photo=str(photo))
        camera.take("serve-phone-dark", service.address, "dark", PHONE, photo=str(photo))


def main() -> None:
    """Take all pictures."""
    from playwright.sync_api import sync_playwright

    words = argparse.ArgumentParser(description="Take the pictures of the documentation.")
    words.add_argument("demo", type=Path, help="folder that captune demo wrote")
    words.add_argument("--aerial", type=Path, help="run folder of UC Merced")
    words.add_argument("--photo", type=Path, help="image for the page of the service")
    words.add_argument("--out", type=Path, default=Path("docs/images"))
    options = words.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as scratch:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        camera = Camera(browser, options.out)
        photograph_reports(camera, options.demo, options.aerial, Path(scratch))
        if options.photo is not None:
            photograph_service(camera, options.aerial or options.demo / "run", options.photo)
        browser.close()


if __name__ == "__main__":
    main()
