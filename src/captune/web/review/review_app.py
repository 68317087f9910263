"""The routes of the review page: GET tells what is known and changes nothing, POST does everything else."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, StrictInt, StringConstraints
from starlette.exceptions import HTTPException

from captune.core.errors import CaptuneError
from captune.data.decoding import UnreadableImageError
from captune.review import finding
from captune.review.session import Session
from captune.web.middleware import Json, problem
from captune.web.prediction import GET, make_app
from captune.web.review.shared_session import SharedSession
from captune.web.review.thumbnails import SIDES, Thumbnails

T = TypeVar("T")
Text = Annotated[str, StringConstraints(max_length=2000)]
ASSETS = Path(__file__).parent / "assets"
KINDS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
SECONDS_BETWEEN_EVENTS, SECONDS_OF_SILENCE = 0.1, 15.0
MOST_STREAMS = 32
"""Event streams of one client; more would take the connections from others."""
MOST_SUGGESTIONS = 100
MOST_FOUND = 500


class Answer(BaseModel):
    """That images are of a class or of none (`label`), are not of it (`not`) or cannot be named (`skip`)."""

    kind: Literal["label", "not", "skip"]
    images: list[StrictInt]
    label: Text = ""
    suggestion: Text = ""
    id: Text = ""
    person: Text = ""


class SuggestionsRequest(BaseModel):
    """How many suggestions a window would like."""

    window: Text
    count: int = 20


class Undo(BaseModel):
    """Which answer is undone; the last one without an id."""

    id: Text = ""


class GroupName(BaseModel):
    """The name of a group, except some of its images."""

    group: StrictInt
    label: Text
    others: list[StrictInt] = []


class ClassChange(BaseModel):
    """A change of classes."""

    action: Literal["rename", "merge", "add", "remove", "describe"]
    name: Text = ""
    new: Text = ""
    names: list[Text] = []
    sentences: list[Text] = []


class Precision(BaseModel):
    """Share of the accepted labels that must be right."""

    precision: float = 0.95


class ExportRequest(BaseModel):
    """The format of an export."""

    format: Literal["csv", "label_studio", "coco", "onnx"]


def review_app(shared: SharedSession, thumbnails: Thumbnails, title: str) -> FastAPI:
    """Return the application of `captune review`."""
    app = make_app("captune review")
    assets = {path.name: path.read_bytes() for path in ASSETS.iterdir() if path.suffix in KINDS}
    streams: Counter[str] = Counter()

    @app.exception_handler(CaptuneError)
    async def explain(_: Request, error: CaptuneError) -> Response:
        return problem(HTTPStatus.BAD_REQUEST, str(error))

    _add_reading(app, shared, title, thumbnails)
    _add_changing(app, shared, thumbnails)

    @app.api_route("/", methods=GET, include_in_schema=False)
    async def page() -> Response:
        return Response(assets["index.html"], media_type="text/html", headers={"Content-Security-Policy": POLICY})

    @app.api_route("/assets/{name}", methods=GET, include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in assets:
            raise HTTPException(HTTPStatus.NOT_FOUND, "Not found.")
        return Response(assets[name], media_type=KINDS[Path(name).suffix])

    @app.get("/image/{position}/{side}", include_in_schema=False)
    async def image(position: int, side: int) -> Response:
        if side not in SIDES:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"Expected one of the sizes {SIDES}.")
        try:
            content = await thumbnails.read(shared.session.position(position), side)
        except UnreadableImageError as error:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"No picture: {error}.") from None
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})

    @app.get("/events", include_in_schema=False)
    async def events(request: Request) -> Response:
        client = request.client.host if request.client else ""
        if streams[client] >= MOST_STREAMS:
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"Too many windows: at most {MOST_STREAMS} per client.")
        return StreamingResponse(_events(app, shared, streams, client), media_type="text/event-stream")

    return app


def _add_reading(app: FastAPI, shared: SharedSession, title: str, thumbnails: Thumbnails) -> None:
    """Add the routes that tell what is known."""

    @app.get("/health")
    async def health() -> Json:
        """Tell that requests are being answered."""
        return Json({"status": "ok", "images": len(shared.session.images)})

    @app.get("/api/state")
    async def state() -> Json:
        """Return progress, accuracy, classes and the last change."""
        return Json({"title": title, "has_pictures": thumbnails.has_pictures, **shared.state()})

    @app.get("/api/facts")
    async def facts(positions: str) -> Json:
        """Return what is known about some images, by positions separated by commas."""
        try:
            return Json([shared.facts(int(text)) for text in positions.split(",")[:MOST_SUGGESTIONS]])
        except ValueError:
            raise HTTPException(HTTPStatus.BAD_REQUEST, "Expected positions separated by commas.") from None

    @app.get("/api/find")
    async def search(
        words: Text = "",
        like: int | None = None,
        label: Text | None = None,
        low: float = 0.0,
        high: float = 1.0,
        only: Annotated[tuple[str, ...], Query()] = (),
        count: int = 60,
        skip: int = 0,
    ) -> Json:
        """Return images by words or like an image, with filters; `skip` continues a list."""
        wish = finding.Query(words, like, label, (low, high), only)
        return Json(await _aside(shared.find, wish, min(max(count, 1), MOST_FOUND), max(skip, 0)))

    @app.get("/api/groups")
    async def groups() -> Json:
        """Return the groups of images that belong together."""
        return Json(await _aside(shared.groups))

    @app.get("/api/moves")
    async def moves(since: str = "last") -> Json:
        """Return which images changed their class since the last adaptation or since the `start`."""
        return Json(await _aside(shared.moves, since))

    @app.get("/api/map/points")
    async def points() -> Response:
        """Return the places of all images on the map, as pairs of 32-bit floats from 0 to 1."""
        return Response(shared.map_points.astype("<f4").tobytes(), media_type="application/octet-stream")

    @app.get("/api/map/classes")
    async def classes() -> Response:
        """Return 16-bit integers for all images: class now, and class at the start."""
        now, first = shared.current, shared.first
        ids = {name: c for c, name in enumerate(now.session.names)}
        start = np.asarray([ids.get(name, len(ids)) for name in first.names_now(now)])
        both = now.session.predictions.labels, start[first.session.predictions.labels]
        content = np.stack(both).astype("<u2").tobytes()
        return Response(content, media_type="application/octet-stream")

    @app.get("/api/export/{key}")
    async def exported(key: str) -> Response:
        """Return an export that was made before."""
        found = shared.exported(key)
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such export. Make it again.")
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(found[0], errors='replace')}"}
        return Response(found[1], media_type="application/octet-stream", headers=headers)


def _add_changing(app: FastAPI, shared: SharedSession, thumbnails: Thumbnails) -> None:
    """Add the routes by which people answer, change classes and save."""

    @app.post("/api/suggestions")
    async def suggestions(wish: SuggestionsRequest) -> Json:
        """Return images worth an answer, and reserve them for a window."""
        return Json(await _aside(shared.suggestions, wish.window, min(max(wish.count, 1), MOST_SUGGESTIONS)))

    @app.post("/api/answer")
    async def answer(given: Answer) -> Json:
        """Save an answer about images, and return its id."""
        return Json({"id": await _aside(shared.answer, *given.model_dump().values())})

    @app.post("/api/undo")
    async def undo(given: Undo) -> Json:
        """Undo an answer, by its id or the last one."""
        return Json(await _aside(shared.undo, given.id))

    @app.post("/api/group")
    async def group(given: GroupName) -> Json:
        """Name a whole group."""

        def work(session: Session) -> Any:  # noqa: ANN401
            return session.name_group(given.group, given.label, except_=given.others)

        return Json(await _aside(shared.change, work))

    @app.post("/api/class")
    async def change(given: ClassChange) -> Json:
        """Rename, merge, add, remove or describe classes, and return what changed."""
        name, new = given.name, given.new
        sentences = [line.strip() for line in given.sentences if line.strip()]
        works: dict[str, Callable[[Session], Any]] = {
            "rename": lambda session: session.rename(name, new),
            "merge": lambda session: session.merge(given.names, new),
            "add": lambda session: session.add(name, sentences),
            "remove": lambda session: session.remove(name),
            "describe": lambda session: session.describe(name, sentences),
        }
        return Json(await _aside(shared.change, works[given.action]))

    @app.post("/api/export")
    async def export(given: ExportRequest) -> Json:
        """Save the run, and make an export of its labels or its classifier; return where it can be fetched."""
        key, name = await _aside(shared.export, given.format)
        return Json({"address": f"/api/export/{key}", "name": name})

    @app.post("/api/accept")
    async def accept(given: Precision) -> Json:
        """Return how many labels can be accepted, and what checks say about the most confident ones."""
        return Json(await _aside(shared.accept, given.precision))

    @app.post("/api/update")
    async def update() -> Json:
        """Add the new images in the folder of the run."""
        found = await _aside(shared.update)
        thumbnails.replace(shared.session.images)
        return Json(found)

    @app.post("/api/map")
    async def improve_map() -> Json:
        """Start to compute a better map; the events tell when it is there."""
        shared.improve_map()
        return Json({"map": shared.map_kind})


async def _events(app: FastAPI, shared: SharedSession, streams: Counter[str], client: str) -> AsyncIterator[str]:
    """Yield the state whenever it changes, until the service stops."""
    last, silence = None, 0.0
    streams[client] += 1
    try:
        while not app.state.service.server.should_exit:
            current = (shared.current.version, shared.is_busy, shared.map_kind, shared.is_saved, shared.n_new_images)
            if current != last or silence >= SECONDS_OF_SILENCE:
                last, silence = current, 0.0
                facts = dict(zip(("version", "is_busy", "map", "is_saved", "n_new_images"), current, strict=True))
                yield f"data: {json.dumps(facts)}\n\n"
            await asyncio.sleep(SECONDS_BETWEEN_EVENTS)
            silence += SECONDS_BETWEEN_EVENTS
    finally:
        streams[client] -= 1


async def _aside(work: Callable[..., T], *arguments: Any) -> T:  # noqa: ANN401
    """Call something that takes time or waits for a lock in a thread."""
    return await run_in_threadpool(work, *arguments)


@contextmanager
def reviewing(session: Session, title: str) -> Iterator[FastAPI]:
    """Yield the application of a session, with its threads and processes."""
    shared, thumbnails = SharedSession(session), Thumbnails(session.images)
    try:
        yield review_app(shared, thumbnails, title)
    finally:
        shared.close()
        thumbnails.close()
