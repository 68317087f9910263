"""The review page with many images: seconds for each request, for an answer to take effect, and for a frame of the map.

The images are embeddings drawn around class texts, so that the page is measured and not an image encoder. With
--backbone, a real text encoder embeds the classes and the words that are searched for; otherwise texts are random.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np

import captune
from captune.embeddings.cache import EmbeddingCache
from captune.embeddings.embed import embed_texts
from captune.embeddings.lazy_backbone import open_backbone
from captune.review.corrections import FILE, Corrections
from captune.web.review.review_app import reviewing
from captune.web.server import Service, running

WIDTH = 512
FRAMES = """async ([n, isZoom]) => {
  const canvas = document.getElementById("canvas");
  const frame = () => new Promise(requestAnimationFrame);
  const times = [];
  let last = await frame();
  for (let i = 0; i < n; i += 1) {
    const place = { clientX: 500 + 200 * Math.sin(i / 9), clientY: 500 + 150 * Math.cos(i / 7), pointerId: 1 };
    const turn = { clientX: 500, clientY: 500, deltaY: i % 40 < 20 ? -1 : 1, cancelable: true };
    canvas.dispatchEvent(isZoom ? new WheelEvent("wheel", turn) : new PointerEvent("pointermove", place));
    const now = await frame();
    times.push(now - last);
    last = now;
  }
  times.sort((a, b) => a - b);
  return [times[Math.floor(n / 2)], times[Math.floor(0.95 * n)]];
}"""
"""Milliseconds between frames, the median and the 95th percentile, while every frame moves the map."""
LASSO = """() => {
  const canvas = document.getElementById("canvas");
  const box = canvas.getBoundingClientRect();
  const at = (turn) => ({ pointerId: 1, clientX: box.left + box.width * (0.5 + 0.45 * Math.cos(turn)),
    clientY: box.top + box.height * (0.5 + 0.45 * Math.sin(turn)) });
  for (let i = 1; i < 200; i += 1) canvas.dispatchEvent(new PointerEvent("pointermove", at(i / 32)));
  const started = performance.now();
  canvas.dispatchEvent(new PointerEvent("pointerup", at(0)));
  return performance.now() - started;
}"""
"""Milliseconds to select what is inside a lasso of 200 corners; the mouse is down already."""


def make_session(folder: Path, n_images: int, n_classes: int, backbone: str | None) -> captune.Session:
    """Return a session on embeddings around class texts."""
    rng = np.random.default_rng(0)
    names = tuple(f"class {c}" for c in range(n_classes))
    if backbone:
        texts = embed_texts(open_backbone(backbone, EmbeddingCache(folder / "cache")), names)
        texts = (texts - texts.mean(axis=0)) * np.sqrt(n_classes)
    else:
        texts = rng.normal(size=(n_classes, WIDTH)).astype(np.float32)
    owners, width = rng.integers(n_classes, size=n_images), texts.shape[1]
    vectors = texts[owners] + rng.normal(0, 3 * texts.std(), (n_images, width)).astype(np.float32)
    images, classes = captune.Embeddings(vectors), captune.ClassTexts(names, texts, 100.0)
    session = captune.open_session(images, list(names) if backbone else classes, backbone=backbone)
    session.corrections = Corrections(folder / FILE)
    return session


def timed(name: str, work: Callable[[], object]) -> object:
    """Print how long something takes and return its result."""
    started = time.perf_counter()
    found = work()
    print(f"  {name:<42} {time.perf_counter() - started:7.2f} s")
    return found


def measure(address: str, has_words: bool) -> None:
    """Print seconds for what the page asks."""

    def get(path: str) -> bytes:
        with urlopen(address + path, timeout=600) as answer:
            return bytes(answer.read())

    def post(path: str, **body: object) -> None:
        request = Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=600):
            pass

    def follow(version: int) -> None:
        while json.loads(get("api/state"))["version"] < version:
            time.sleep(0.02)

    timed("20 suggestions, with groups", lambda: post("api/suggestions", window="a", count=20))
    for path in ("api/state", "api/groups", "api/map/classes"):
        content = timed(path, lambda path=path: get(path))
        print(f"  {'':<42} {len(content) / 1e6:7.2f} MB")
    follow(0)
    timed("an answer is saved", lambda: post("api/answer", kind="label", images=[5], label="class 1"))
    timed("... and has its effect", lambda: follow(1))
    timed(
        "a lasso of 1,000 images is saved",
        lambda: post("api/answer", kind="label", images=[*range(1000)], label="class 2"),
    )
    timed("... and has its effect", lambda: follow(2))
    for path in (
        *(("words=wide+stripes", "words=small+dots", "words=red+squares&only=unlabeled") if has_words else ()),
        "like=7",
        "like=8&only=unlabeled&label=class+1",
        "only=changed",
        "only=duplicates",
        "only=duplicates&like=9",
    ):
        timed(f"api/find?{path}", lambda path=path: get(f"api/find?{path}"))
    timed("api/moves?since=start", lambda: get("api/moves?since=start"))
    started = time.perf_counter()
    post("api/map")
    get("api/map/points")
    while json.loads(get("api/state"))["map"] != "full":
        time.sleep(0.2)
    print(f"  {'the map is complete after':<42} {time.perf_counter() - started:7.2f} s")


def measure_frames(address: str) -> None:
    """Print the time of one frame of the map in the system's Chromium."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.goto(f"{address}#map")
        page.locator("#legend button").first.wait_for(timeout=120_000)
        page.mouse.move(500, 500)

        def measure_moves(what: str) -> None:
            for name, is_zoom in (("zooming", True), ("dragging", False)):
                if not is_zoom:
                    page.mouse.down()
                median, slow = page.evaluate(FRAMES, [200, is_zoom])
                print(f"  {f'a frame of {what} while {name}':<42} {median:7.0f} ms, 95 % within {slow:.0f} ms")
            page.mouse.up()

        measure_moves("the map")
        page.get_by_role("button", name="Lasso").click()
        page.mouse.move(500, 500)
        page.mouse.down()
        print(f"  {'a lasso selects':<42} {page.evaluate(LASSO):7.0f} ms: {page.inner_text('#selection')}")
        page.mouse.up()
        measure_moves("the map with them")
        browser.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--backbone", help="text encoder, such as embedded:patterns")
    parser.add_argument("--browser", action="store_true", help="measure the map in Chromium, too")
    options = parser.parse_args()
    for n_images in options.images:
        with tempfile.TemporaryDirectory() as folder, Service("127.0.0.1", 0) as service:
            print(f"{n_images:,} images, {options.classes} classes")
            session = timed(
                "open the session",
                lambda n=n_images, f=folder: make_session(Path(f), n, options.classes, options.backbone),
            )
            with reviewing(session, "benchmark") as app, running(service, app):
                measure(service.address, bool(options.backbone))
                if options.browser:
                    measure_frames(service.address)


if __name__ == "__main__":
    main()
