"""The routes of the review page: GET tells what is known and changes nothing, POST does everything else."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

import numpy as np
from fastapi import Body, FastAPI, Query, Request
from fastapi.responses import Response, StreamingResponse
from PIL import Image
from pydantic import StrictInt, StringConstraints
from starlette.exceptions import HTTPException

from captune.core.errors import CaptuneError
from captune.data.decoding import UnreadableImageError
from captune.data.precomputed import Embeddings
from captune.review.changes import Change
from captune.review.session import Session
from captune.web.middleware import Json, problem
from captune.web.prediction import GET, make_app
from captune.web.review.shared_session import SharedSession

Text = Annotated[str, Body(embed=True, max_length=2000)]
Texts = Annotated[list[Annotated[str, StringConstraints(max_length=2000)]], Body()]
Images = Annotated[list[StrictInt], Body()]
Share = Annotated[float, Body(ge=0, lt=1)]
BYTES = "application/octet-stream"
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
SIDES = (96, 192, 1024)
"""Longest side of a picture: small, medium and large."""


def review_app(shared: SharedSession, title: str) -> FastAPI:
    """Return the application of `captune review`."""
    app = make_app("captune review")
    assets = {path.name: path.read_bytes() for path in ASSETS.iterdir() if path.suffix in KINDS}
    streams: Counter[str] = Counter()

    @app.exception_handler(CaptuneError)
    async def explain(_: Request, error: CaptuneError) -> Response:
        return problem(HTTPStatus.BAD_REQUEST, str(error))

    _add_reading(app, shared, title)
    _add_changing(app, shared)

    @app.api_route("/", methods=GET, include_in_schema=False)
    async def page() -> Response:
        return Response(assets["index.html"], media_type="text/html", headers={"Content-Security-Policy": POLICY})

    @app.api_route("/assets/{name}", methods=GET, include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in assets:
            raise HTTPException(HTTPStatus.NOT_FOUND, "Not found.")
        return Response(assets[name], media_type=KINDS[Path(name).suffix])

    @app.get("/image/{position}/{side}", include_in_schema=False)
    def image(position: int, side: int) -> Response:
        images = shared.session.images
        if side not in SIDES or isinstance(images, Embeddings):
            raise HTTPException(HTTPStatus.NOT_FOUND, f"Expected a picture in one of the sizes {SIDES}.")
        try:
            picture = images.read(shared.session.position(position)).decode(side).copy()
        except UnreadableImageError as error:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"No picture: {error}.") from None
        picture.thumbnail((side, side), Image.Resampling.BICUBIC)
        content = io.BytesIO()
        picture.save(content, "JPEG", quality=85)
        kept = {"Cache-Control": "private, max-age=3600"}  # by the browser
        return Response(content.getvalue(), media_type="image/jpeg", headers=kept)

    @app.get("/events", include_in_schema=False)
    async def events(request: Request) -> Response:
        client = request.client.host if request.client else ""
        if streams[client] >= MOST_STREAMS:
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"Too many windows: at most {MOST_STREAMS} per client.")
        return StreamingResponse(_events(app, shared, streams, client), media_type="text/event-stream")

    return app


def _add_reading(app: FastAPI, shared: SharedSession, title: str) -> None:
    """Add the routes that tell what is known."""

    @app.get("/health")
    async def health() -> Json:
        """Tell that requests are being answered."""
        return Json({"status": "ok", "images": len(shared.session.images)})

    @app.get("/api/state")
    async def state() -> Json:
        """Return progress, accuracy, classes and the last change."""
        return Json(
            {"title": title, "has_pictures": not isinstance(shared.session.images, Embeddings), **shared.state()}
        )

    @app.get("/api/facts")
    async def facts(positions: str) -> Json:
        """Return what is known about some images, by positions separated by commas."""
        try:
            return Json([shared.facts(int(text)) for text in positions.split(",")[:MOST_SUGGESTIONS]])
        except ValueError:
            raise HTTPException(HTTPStatus.BAD_REQUEST, "Expected positions separated by commas.") from None

    @app.get("/api/find")
    def search(
        words: Annotated[str, Query(max_length=2000)] = "",
        like: int | None = None,
        label: str | None = None,
        low: float = 0.0,
        high: float = 1.0,
        only: Annotated[tuple[str, ...], Query()] = (),
        count: int = 60,
        skip: int = 0,
    ) -> Json:
        """Return images by words or like an image, with filters; `skip` continues a list."""
        most = min(max(count, 1), MOST_FOUND)
        return Json(shared.find(words, like, label, (low, high), only, most, max(skip, 0)))

    @app.get("/api/groups")
    def groups() -> Json:
        """Return the groups of images that belong together."""
        return Json(shared.groups())

    @app.get("/api/moves")
    def moves(since: str = "last") -> Json:
        """Return which images changed their class since the last adaptation or since the `start`."""
        return Json(shared.moves(since))

    @app.get("/api/map/points")
    async def points() -> Response:
        """Return the places of all images on the map, as pairs of 32-bit floats from 0 to 1."""
        return Response(shared.map_points.astype("<f4").tobytes(), media_type=BYTES)

    @app.get("/api/map/classes")
    async def classes() -> Response:
        """Return 16-bit integers for all images: class now, and class at the start."""
        now, first = shared.current, shared.first
        ids = {name: c for c, name in enumerate(now.session.names)}
        start = np.asarray([ids.get(name, len(ids)) for name in first.names_now(now)])
        both = now.session.predictions.labels, start[first.session.predictions.labels]
        return Response(np.stack(both).astype("<u2").tobytes(), media_type=BYTES)


def _add_changing(app: FastAPI, shared: SharedSession) -> None:
    """Add the routes by which people answer, change classes and save."""

    @app.post("/api/suggestions")
    def suggestions(window: Text, count: Annotated[int, Body()] = 20, precision: Share = 0) -> Json:
        """Return images worth an answer, or to check for a precision, and reserve them for a window."""
        return Json(shared.suggestions(window, min(max(count, 1), MOST_SUGGESTIONS), precision))

    @app.post("/api/worth")
    def worth(count: Annotated[int, Body(embed=True)] = 20) -> Json:
        """Return in words what the next answers are worth."""
        return Json({"sentence": shared.worth(min(max(count, 1), MOST_SUGGESTIONS))})

    @app.post("/api/answer")
    def answer(
        kind: Annotated[Literal["label", "not", "skip"], Body()],
        images: Images,
        label: Text = "",
        suggestion: Text = "",
        id: Text = "",
        person: Text = "",
    ) -> Json:
        """Save that images are of a class or none (`label`), are not of it (`not`) or cannot be named (`skip`)."""
        return Json({"id": shared.answer(kind, images, label, suggestion, id, person)})

    @app.post("/api/undo")
    def undo(id: Text = "") -> Json:
        """Undo an answer, by its id or the last one."""
        return Json(shared.undo(id))

    @app.post("/api/group")
    def group(group: Annotated[StrictInt, Body()], label: Text, others: Images = []) -> Json:  # noqa: B006 (not changed)
        """Name a whole group, except some of its images."""
        return Json(shared.change(lambda session: session.name_group(group, label, except_=others)))

    @app.post("/api/class")
    def change(
        action: Annotated[Literal["rename", "merge", "add", "remove", "describe"], Body()],
        name: Text = "",
        new: Text = "",
        names: Texts = [],  # noqa: B006 (not changed)
        sentences: Texts = [],  # noqa: B006
    ) -> Json:
        """Rename, merge, add, remove or describe classes, and return what changed."""
        lines = [line.strip() for line in sentences if line.strip()]
        works: dict[str, Callable[[Session], Change]] = {
            "rename": lambda session: session.rename(name, new),
            "merge": lambda session: session.merge(names, new),
            "add": lambda session: session.add(name, lines),
            "remove": lambda session: session.remove(name),
            "describe": lambda session: session.describe(name, lines),
        }
        return Json(shared.change(works[action]))

    @app.post("/api/export")
    def export(format: Annotated[Literal["csv", "label_studio", "coco", "onnx"], Body(embed=True)]) -> Response:
        """Save the run, and return its labels or its classifier as a file."""
        name, content = shared.export(format)
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, errors='replace')}"}
        return Response(content, media_type=BYTES, headers=headers)

    @app.post("/api/accept")
    def accept(precision: Annotated[float, Body(embed=True)] = 0.95) -> Json:
        """Return how many labels can be accepted, and what checks say about the most confident ones."""
        return Json(shared.accept(precision))

    @app.post("/api/update")
    def update() -> Json:
        """Add the new images in the folder of the run."""
        return Json(shared.update())

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
            if (current := shared.progress()) != last or silence >= SECONDS_OF_SILENCE:
                last, silence = current, 0.0
                yield f"data: {json.dumps(current)}\n\n"
            await asyncio.sleep(SECONDS_BETWEEN_EVENTS)
            silence += SECONDS_BETWEEN_EVENTS
    finally:
        streams[client] -= 1


@contextmanager
def reviewing(session: Session, title: str) -> Iterator[FastAPI]:
    """Yield the application of a session, with its threads and processes."""
    shared = SharedSession(session)
    try:
        yield review_app(shared, title)
    finally:
        shared.close()
