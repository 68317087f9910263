"""The routes of the review page: JSON for what is known, one route per thing that a person can say, and events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse

from captune.core.errors import CaptuneError
from captune.data.decoding import UnreadableImageError
from captune.review.session import Session
from captune.web.body import read_json
from captune.web.guard import Json
from captune.web.limits import Refusal
from captune.web.prediction import GET, make_app
from captune.web.review.desk import Desk
from captune.web.review.pictures import SIDES, Pictures

T = TypeVar("T")
ASSETS = Path(__file__).parent / "assets"
KINDS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
EXPORTS = ("csv", "label_studio", "coco", "onnx")
SECONDS_BETWEEN_EVENTS, SECONDS_OF_SILENCE = 0.1, 15.0
MOST_LOOKS = 100


def review_app(desk: Desk, pictures: Pictures, title: str) -> FastAPI:
    """Return the application of `captune review`."""
    app = make_app("captune review")
    assets = {path.name: path.read_bytes() for path in ASSETS.iterdir() if path.suffix in KINDS}
    app.add_exception_handler(CaptuneError, _explain)
    _add_reading(app, desk, title, pictures)
    _add_saying(app, desk)

    @app.api_route("/", methods=GET, include_in_schema=False)
    async def page() -> Response:
        return Response(assets["index.html"], media_type="text/html", headers={"Content-Security-Policy": POLICY})

    @app.api_route("/assets/{name}", methods=GET, include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in assets:
            raise Refusal(HTTPStatus.NOT_FOUND, "Not found.")
        return Response(assets[name], media_type=KINDS[Path(name).suffix])

    @app.get("/image/{position}/{side}", include_in_schema=False)
    async def image(position: int, side: int) -> Response:
        if side not in SIDES:
            raise Refusal(HTTPStatus.NOT_FOUND, f"Expected one of the sizes {SIDES}.")
        try:
            content = await pictures.read(desk.session.position(position), side)
        except UnreadableImageError as error:
            raise Refusal(HTTPStatus.NOT_FOUND, f"No picture: {error}.") from None
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})

    @app.get("/events", include_in_schema=False)
    async def events() -> Response:
        return StreamingResponse(_events(app, desk), media_type="text/event-stream")

    return app


def _add_reading(app: FastAPI, desk: Desk, title: str, pictures: Pictures) -> None:
    """Add the routes that tell what is known."""

    @app.get("/health")
    async def health() -> Json:
        """Tell that requests are being answered."""
        return Json({"status": "ok", "images": len(desk.current.predicted)})

    @app.get("/api/state")
    async def state() -> Json:
        """Return progress, accuracy, classes and the last change."""
        return Json({"title": title, "has_pictures": pictures.has_pictures, **desk.state()})

    @app.get("/api/looks")
    async def looks(window: str, count: int = 20) -> Json:
        """Return images worth a look."""
        return Json(await _aside(desk.looks, window, min(max(count, 1), MOST_LOOKS)))

    @app.get("/api/facts")
    async def facts(positions: str) -> Json:
        """Return what is known about some images, by positions separated by commas."""
        try:
            return Json([desk.facts(int(text)) for text in positions.split(",")[:MOST_LOOKS]])
        except ValueError:
            raise Refusal(HTTPStatus.BAD_REQUEST, "Expected positions separated by commas.") from None

    @app.get("/api/groups")
    async def groups() -> Json:
        """Return the groups of images that belong together."""
        return Json(await _aside(desk.groups))

    @app.get("/api/moves")
    async def moves(since: str = "last") -> Json:
        """Return which images changed their class since the last adaptation or since the `start`."""
        return Json(await _aside(desk.moves, since))

    @app.get("/api/map/points")
    async def points() -> Response:
        """Return the places of all images on the map, as pairs of 32-bit floats from 0 to 1."""
        return Response(desk.map().astype("<f4").tobytes(), media_type="application/octet-stream")

    @app.get("/api/map/classes")
    async def classes() -> Response:
        """Return 16-bit integers for all images: class now, class at the start, whether somebody labeled it."""
        now, first = desk.current, desk.first
        ids = {name: c for c, name in enumerate(now.names)}
        before = np.asarray([ids.get(name, len(ids)) for name in first.names_now(now)])[first.predicted]
        labeled = np.zeros(len(now.predicted))
        labeled[list(now.labeled)] = 1
        content = np.stack([now.predicted, before, labeled]).astype("<u2").tobytes()
        return Response(content, media_type="application/octet-stream")

    @app.get("/api/export/{format}")
    async def export(format: str) -> Response:
        """Save the run and return its labels (`csv`, `label_studio`, `coco`) or the classifier (`onnx`)."""
        if format not in EXPORTS:
            raise Refusal(HTTPStatus.NOT_FOUND, f"Expected one of {', '.join(EXPORTS)}.")
        name, content = await _aside(desk.export, format)
        headers = {"Content-Disposition": f'attachment; filename="{_plain(name)}"'}
        return Response(content, media_type="application/octet-stream", headers=headers)


def _add_saying(app: FastAPI, desk: Desk) -> None:
    """Add the routes by which people say something."""

    async def said(request: Request) -> dict[str, Any]:
        return await read_json(request, app.state.service.limits.timeout)

    @app.post("/api/answer")
    async def answer(request: Request) -> Json:
        """Save that images are of a class, are not of it, or cannot be named."""
        given = await said(request)
        kind = _one_of(given, "kind", ("label", "not", "skip"))
        images = _list(given, "images", int)
        texts = [_text(given, key) for key in ("label", "suggestion", "id")]
        return Json({"id": await _aside(desk.answer, kind, images, *texts)})

    @app.post("/api/undo")
    async def undo(request: Request) -> Json:
        """Take back an answer, by its id or the last one."""
        return Json(await _aside(desk.undo, _text(await said(request), "id")))

    @app.post("/api/group")
    async def group(request: Request) -> Json:
        """Name a whole group, besides some of its images."""
        given = await said(request)
        numbers, besides = _list(given, "group", int), _list(given, "besides", int)
        label = _text(given, "label")
        if len(numbers) != 1:
            raise Refusal(HTTPStatus.BAD_REQUEST, "Expected one group.")
        return Json(await _aside(desk.change, lambda s: s.name_group(numbers[0], label, except_=besides)))

    @app.post("/api/class")
    async def change(request: Request) -> Json:
        """Rename, merge, add, remove or describe classes, and return what changed."""
        given = await said(request)
        name, new = _text(given, "name"), _text(given, "new")
        sentences = [line.strip() for line in _list(given, "sentences", str) if line.strip()]
        works: dict[str, Callable[[Session], Any]] = {
            "rename": lambda session: session.rename(name, new),
            "merge": lambda session: session.merge(_list(given, "names", str), new),
            "add": lambda session: session.add(name, sentences),
            "remove": lambda session: session.remove(name),
            "describe": lambda session: session.describe(name, sentences),
        }
        return Json(await _aside(desk.change, works[_one_of(given, "action", tuple(works))]))


async def _events(app: FastAPI, desk: Desk) -> AsyncIterator[str]:
    """Yield the state whenever it changes, until the service stops."""
    last, silence = None, 0.0
    while not app.state.service.server.should_exit:
        current = (desk.current.version, desk.is_busy, desk.map_kind)
        if current != last or silence >= SECONDS_OF_SILENCE:
            last, silence = current, 0.0
            version, is_busy, map_kind = current
            yield f"data: {json.dumps({'version': version, 'is_busy': is_busy, 'map': map_kind})}\n\n"
        await asyncio.sleep(SECONDS_BETWEEN_EVENTS)
        silence += SECONDS_BETWEEN_EVENTS


async def _explain(request: Request, error: Exception) -> Response:
    return Json({"error": str(error)}, HTTPStatus.BAD_REQUEST)


async def _aside(work: Callable[..., T], *arguments: Any) -> T:  # noqa: ANN401
    """Call something that takes time or waits for a lock in a thread."""
    return await run_in_threadpool(work, *arguments)


def _text(given: dict[str, Any], key: str) -> str:
    found = given.get(key, "")
    if not isinstance(found, str) or len(found) > 2000:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"Expected a text of at most 2,000 characters as {key!r}.")
    return found


def _list(given: dict[str, Any], key: str, kind: type[T]) -> list[T]:
    found = given.get(key, [])
    if not isinstance(found, list) or any(type(entry) is not kind for entry in found):
        raise Refusal(HTTPStatus.BAD_REQUEST, f"Expected a list as {key!r}.")
    return found


def _one_of(given: dict[str, Any], key: str, allowed: tuple[str, ...]) -> str:
    found = given.get(key)
    if found not in allowed:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"Expected {key!r} to be one of {', '.join(allowed)}.")
    return str(found)


def _plain(name: str) -> str:
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "_" for letter in name)


@contextmanager
def reviewing(session: Session, title: str) -> Iterator[FastAPI]:
    """Yield the application of a session, with its threads and processes."""
    desk, pictures = Desk(session), Pictures(session.images)
    try:
        yield review_app(desk, pictures, title)
    finally:
        desk.close()
        pictures.close()
