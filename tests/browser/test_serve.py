"""The page of the service in a real browser: a real image is chosen, dropped and refused, with a silent console.

The service runs the embedded model on its own photographs, and with CAPTUNE_TESTBED the aerial dual encoder as well.
"""

from __future__ import annotations

import base64
import functools
import os
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browsing import BrowserTab

import captune
from captune.web.prediction import predicting
from captune.web.server import Limits, Service, running
from captune.world import class_names, write_world

pytestmark = pytest.mark.slow

DROP = """([data, name]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const carrier = new DataTransfer();
  carrier.items.add(new File([bytes], name, { type: "image/png" }));
  const event = new DragEvent("drop", { dataTransfer: carrier, bubbles: true, cancelable: true });
  document.getElementById("drop").dispatchEvent(event);
}"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(folder, 2, seed=3)
    return folder


@pytest.fixture(scope="module")
def served(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    run = tmp_path_factory.mktemp("served") / "patterns"
    captune.adapt(
        world,
        list(class_names()),
        method="zero_shot",
        backbone="embedded:patterns",
        out=run,
        workers=0,
        quiet=True,
    )
    classifier = captune.load(run)
    with (
        Service("127.0.0.1", 0, Limits(max_bytes=1_000_000)) as service,
        predicting(classifier, "patterns <i>", service.limits) as app,
        running(service, app),
    ):
        yield service.address, classifier


@pytest.fixture
def tab(browser: Any, served: tuple[str, Any]) -> Iterator[BrowserTab]:
    found = BrowserTab(browser, served[0], color_scheme="light")
    yield found
    assert found.complaints == []
    own = ("data:", "blob:", served[0])
    assert [address for address in found.asked if not address.startswith(own)] == []


def image(world: Path, name: str = "polka-dotted") -> Path:
    return sorted((world / name).iterdir())[0]


def shown(tab: BrowserTab) -> list[str]:
    tab.page.locator("#result").wait_for(state="visible", timeout=20_000)
    return list(tab.page.locator("#answers tbody th").all_inner_texts())


def test_a_chosen_image_is_classified(tab: BrowserTab, served: tuple[str, Any], world: Path) -> None:
    tab.page.set_input_files("#file", image(world))
    names = shown(tab)
    row = served[1].predict_proba([image(world)])[0]
    assert names == [served[1].names[c] for c in (-row).argsort(kind="stable")[:5]]
    assert tab.page.inner_text("#status").startswith(f"{image(world).name}: {names[0]}, ")
    tab.page.wait_for_function("document.getElementById('picture').naturalWidth > 0")
    assert tab.page.title() == "captune: patterns <i>"


def test_a_dropped_image_is_classified(tab: BrowserTab, served: tuple[str, Any], world: Path) -> None:
    data = base64.b64encode(image(world).read_bytes()).decode()
    tab.page.evaluate(DROP, [data, "<b>dropped</b>.png"])
    assert shown(tab)[0] == served[1].predict([image(world)])[0]
    assert tab.page.inner_text("#status").startswith("<b>dropped</b>.png: ")


def test_the_keyboard_reaches_everything(tab: BrowserTab) -> None:
    reached = []
    for _ in range(8):
        tab.page.keyboard.press("Tab")
        reached.append(tab.page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert reached[:4] == ["theme", "file", "SUMMARY", "SUMMARY"]
    assert tab.page.get_by_label("Choose an image").count() == 1
    assert tab.page.get_by_role("status").count() == 1


def test_what_is_too_large_is_told_without_sending_it(tab: BrowserTab, tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(bytes(1_500_000))
    tab.page.set_input_files("#file", tmp_path / "large.png")
    assert "limit is 1.0 MB" in tab.page.inner_text("#status")
    assert not any("predict" in address for address in tab.asked)


def test_what_is_no_image_is_told(browser: Any, served: tuple[str, Any], tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("no image at all")
    tab = BrowserTab(browser, served[0])
    tab.page.set_input_files("#file", tmp_path / "notes.png")
    tab.page.locator("#status.problem").wait_for(timeout=20_000)
    assert "cannot be used" in tab.page.inner_text("#status")
    assert not tab.page.locator("#result").is_visible()
    assert all("422" in line for line in tab.complaints)  # the browser itself reports the status


def test_the_theme_follows_the_system_and_the_button(tab: BrowserTab, browser: Any, served: tuple[str, Any]) -> None:
    light = tab.ground()
    tab.page.click("#theme")
    assert tab.ground() != light
    assert BrowserTab(browser, served[0], color_scheme="dark").ground() == tab.ground()


def test_a_phone_does_not_scroll_sideways(browser: Any, served: tuple[str, Any], world: Path) -> None:
    phone = BrowserTab(browser, served[0], viewport={"width": 360, "height": 780})
    phone.page.set_input_files("#file", image(world))
    shown(phone)
    assert phone.width() <= 360


def test_without_scripts_the_form_answers_with_json(browser: Any, served: tuple[str, Any], world: Path) -> None:
    plain = BrowserTab(browser, served[0], java_script_enabled=False)
    plain.page.set_input_files("#file", image(world))
    plain.page.click("#send")
    plain.page.wait_for_url("**/predict")
    assert served[1].predict([image(world)])[0] in plain.page.inner_text("body")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, served: tuple[str, Any], world: Path, theme: str) -> None:
    tab = BrowserTab(browser, served[0], color_scheme=theme, bypass_csp=True)
    tab.page.set_input_files("#file", image(world))
    shown(tab)
    tab.page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert tab.serious_findings() == []


def test_a_token_in_the_address_opens_the_page(browser: Any, served: tuple[str, Any], world: Path) -> None:
    with (
        Service("127.0.0.1", 0, token="open5esame") as service,
        predicting(served[1], "secret", service.limits) as app,
        running(service, app),
    ):
        assert "needs its token" in BrowserTab(browser, service.address).page.inner_text("body")
        tab = BrowserTab(browser, service.link)
        assert "token" not in tab.page.url
        tab.page.set_input_files("#file", image(world))
        assert len(shown(tab)) == 5
        assert tab.complaints == []


def test_an_aerial_photograph_is_classified(browser: Any, tmp_path: Path) -> None:
    testbed = os.environ.get("CAPTUNE_TESTBED")
    if not testbed:
        pytest.skip("CAPTUNE_TESTBED names no folder with data/ucmerced and models/aerial-dual")
    photos = Path(testbed, "data", "ucmerced", "test")
    few = tmp_path / "few"
    few.mkdir()
    photo = sorted((photos / "harbor").iterdir())[0]
    (few / photo.name).symlink_to(photo)
    run = tmp_path / "aerial"
    backbone = f"dual:{testbed}/models/aerial-dual"
    captune.adapt(few, photos, method="zero_shot", backbone=backbone, out=run, workers=0, quiet=True)
    classifier = captune.load(run)
    with (
        Service("127.0.0.1", 0, Limits(timeout=60)) as service,
        predicting(classifier, "aerial", service.limits) as app,
        running(service, app),
    ):
        tab = BrowserTab(browser, service.address)
        tab.page.set_input_files("#file", photo)
        assert shown(tab)[0] == classifier.predict([photo])[0]
    assert tab.complaints == []


def test_the_example_page_of_the_docs_asks_from_another_site(
    browser: Any, served: Any, world: Path, tmp_path: Path
) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    page, image = docs.partition("```html\n")[2].partition("```")[0], next(world.rglob("*.*g"))
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        site = f"http://localhost:{other.server_port}"
        with (
            Service("127.0.0.1", 0, Limits(), "chooseALongOne", origins=[site]) as service,
            predicting(served[1], "patterns", service.limits) as app,
            running(service, app),
        ):
            own = page.replace("http://127.0.0.1:8000/", service.address)
            (tmp_path / "index.html").write_text(own, encoding="utf-8")
            tab = browser.new_page()
            tab.goto(f"{site}/")
            tab.set_input_files("#file", str(image))
            tab.wait_for_function("() => document.getElementById('label').textContent", timeout=60_000)
            row = served[1].predict_proba([image])[0]
            assert tab.inner_text("#label") == served[1].names[int(row.argmax())]
            tab.close()
        other.shutdown()
