"""The prediction service: an image in, the most probable classes out."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from jinja2 import StrictUndefined, Template
from markupsafe import Markup
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from captune import __version__, report
from captune.data.decoding import UnreadableImageError
from captune.results.image_classifier import ImageClassifier
from captune.results.image_classifier import top_k as most_probable
from captune.web.middleware import Json, problem
from captune.web.predictor import Predictor
from captune.web.server import BATCH, BODIES_AT_ONCE, Limits

DEFAULT_TOP_K = 5
GET = ["GET", "HEAD"]
MOST_PARTS = 16
MOST_FILES = 256
FILES_AT_ONCE = 4


TopK = Annotated[int, Query(ge=1, le=999_999, description="Number of classes to return.")]


REFUSED = {"description": "The field `error` says why the request was refused."}
REFUSALS: dict[int | str, dict[str, Any]] = dict.fromkeys((400, 408, 411, 413, 422, 503), REFUSED)


def _body(description: str) -> dict[str, Any]:
    content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in ("image/*", "multipart/form-data")}
    return {"requestBody": {"required": True, "description": description, "content": content}}


IMAGE_BODY = _body("A JPEG, PNG, WebP, TIFF, BMP or GIF file, as the body or as the first file of a form.")
BATCH_BODY = _body(f"A form with up to {MOST_FILES} image files.")


def make_app(title: str) -> FastAPI:
    """Return an application with the routes that every captune page has: metrics and documentation."""
    app = FastAPI(title=title, version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)

    async def explain(_: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return problem(error.status_code, error.detail, error.headers)
        if isinstance(error, RequestValidationError):
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"][1:])) or "The body"
            return problem(HTTPStatus.BAD_REQUEST, f"{place}: {first['msg']}.")
        if isinstance(error, ClientDisconnect):
            return problem(HTTPStatus.BAD_REQUEST, "The request ended early.")
        return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "Something went wrong inside the service.")

    for kind in (HTTPException, RequestValidationError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, explain)

    @app.api_route("/metrics", methods=GET, include_in_schema=False)
    async def metrics() -> Response:
        content = generate_latest(app.state.metrics.registry)
        return Response(content, media_type=CONTENT_TYPE_LATEST)

    return app


def prediction_app(predictor: Predictor, title: str, limits: Limits) -> FastAPI:
    """Return the application of `captune serve`."""
    app = make_app("captune")
    page = drop_page(title=title, names=predictor.names, max_bytes=limits.max_bytes)
    images, memory = Budget(limits.concurrency), Budget(BODIES_AT_ONCE * limits.max_bytes)
    app.state.images = images

    @app.get("/health")
    @app.head("/health", include_in_schema=False)
    async def health() -> Json:
        """Tell whether requests are being answered."""
        is_serving = predictor.is_serving(limits.timeout)
        facts = {"classes": len(predictor.names), "version": __version__, "busy": app.state.service.n_connections}
        status = HTTPStatus.OK if is_serving else HTTPStatus.SERVICE_UNAVAILABLE
        return Json({"status": "ok" if is_serving else "not serving", **facts}, status)

    @app.api_route("/", methods=GET, include_in_schema=False)
    async def drop() -> Response:
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": PAGE_POLICY})

    async def classify(content: bytes, k: int) -> tuple[list[dict[str, Any]], str]:
        """Return the most probable classes, or else what is wrong with the image."""
        try:
            row = await predictor.classify(content, limits.timeout)
        except UnreadableImageError as error:
            return [], f"The image cannot be used: {error}."
        best = most_probable(row[None], k)[0]
        return [{"label": predictor.names[c], "probability": round(float(row[c]), 6)} for c in best], ""

    @app.post("/predict", responses=REFUSALS, openapi_extra=IMAGE_BODY)
    async def predict(request: Request, top_k: TopK = DEFAULT_TOP_K) -> Json:
        """Classify an image."""
        with images.share(1), memory.share(int(request.headers["content-length"])):
            if request.headers.get("content-type", "").startswith("multipart/form-data"):
                content = await (await read_files(request, MOST_PARTS, limits.max_bytes))[0].read()
            else:
                content = await request.body()
            started = time.monotonic()
            best, wrong = await classify(content, top_k)
        if wrong:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, wrong)
        return Json({"predictions": best, "seconds": round(time.monotonic() - started, 4)})

    @app.post(BATCH, responses=REFUSALS, openapi_extra=BATCH_BODY)
    async def predict_batch(request: Request, top_k: TopK = DEFAULT_TOP_K) -> Json:
        """Classify all image files of a form; needs a service with a token."""
        if not app.state.service.token:
            raise HTTPException(HTTPStatus.FORBIDDEN, "Batches need a token: start captune serve with --token.")
        turns = asyncio.Semaphore(FILES_AT_ONCE)

        async def one(file: UploadFile) -> dict[str, Any]:
            async with turns:
                best, wrong = await classify(await file.read(), top_k)
            return {"file": file.filename, "predictions": best, "error": wrong}

        with images.share(FILES_AT_ONCE), memory.share(int(request.headers["content-length"])):
            files = await read_files(request, MOST_FILES, limits.max_bytes)
            started = time.monotonic()
            found = await asyncio.gather(*map(one, files))
        return Json({"files": found, "seconds": round(time.monotonic() - started, 4)})

    return app


HERE = Path(__file__).parent
_STYLE = (Path(report.__file__).parent / "page.css").read_text("utf-8") + (HERE / "drop.css").read_text("utf-8")
_SCRIPT = (HERE / "drop.js").read_text("utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


PAGE_POLICY = (
    f"default-src 'none'; script-src {_digest(_SCRIPT)}; style-src {_digest(_STYLE)}; img-src blob: data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Only our own script and style, identified by digests, and only requests to this service."""


def drop_page(**facts: Any) -> bytes:  # noqa: ANN401
    """Return the page for dropping an image; facts such as the names of classes are escaped."""
    source = (HERE / "drop.html.j2").read_text("utf-8")
    template = Template(source, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = template.render(facts, version=__version__, script=Markup(_SCRIPT), stylesheet=Markup(_STYLE))
    return page.encode("utf-8", "backslashreplace")


class Budget:
    """A total that requests share, such as images at once or bytes in memory; what does not fit is refused."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0

    @contextmanager
    def share(self, amount: int) -> Iterator[None]:
        """Reserve an amount; only called in the thread of the event loop."""
        if self.used + amount > self.total:
            sentence = "Too many images at once. Try again in a second."
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, sentence, {"Retry-After": "1"})
        self.used += amount
        try:
            yield
        finally:
            self.used -= amount


async def read_files(request: Request, most: int, max_bytes: int) -> list[UploadFile]:
    """Return the files of a multipart form."""
    try:
        form = await request.form(max_files=most, max_fields=MOST_PARTS, max_part_size=max_bytes)
    except HTTPException as error:
        sentence = f"The form cannot be read: {error.detail}"
        raise HTTPException(error.status_code, sentence, error.headers) from None
    found = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
    if not found:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "The form contains no file: send the image as a file field.")
    return found


@contextmanager
def predicting(classifier: ImageClassifier, title: str, limits: Limits) -> Iterator[FastAPI]:
    """Yield the application of a classifier, with its thread and processes."""
    predictor = Predictor(classifier)
    try:
        yield prediction_app(predictor, title, limits)
    finally:
        predictor.close()
