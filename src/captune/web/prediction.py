"""The prediction service: an image in, the most probable classes out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from captune import __version__
from captune.data.decoding import UnreadableImageError
from captune.results.image_classifier import load, top_k
from captune.web.body import announced_length, image_content, read_body
from captune.web.guard import Json, explain
from captune.web.limits import BODIES_AT_ONCE, Budget, Limits, Refusal
from captune.web.page import docs_page, drop_page, html
from captune.web.predictor import AnyClassifier, Predictor
from captune.web.server import Service, nothing, say, serve_until_stopped

DEFAULT_TOP_K = 5
GET = ["GET", "HEAD"]


class ClassProbability(BaseModel):
    """One class."""

    label: str
    probability: float


class Prediction(BaseModel):
    """The most probable classes of an image, most probable first, and the time it took."""

    predictions: list[ClassProbability]
    seconds: float


class Health(BaseModel):
    """Whether requests are being answered, and how many connections are open."""

    status: str
    classes: int
    version: str
    busy: int


class Problem(BaseModel):
    """Why a request was refused."""

    error: str


REFUSALS = {
    status: {"model": Problem, "description": meaning}
    for status, meaning in {
        400: "Invalid query, form or length; a body that ends early",
        408: "The request took too long to arrive",
        411: "No Content-Length",
        413: "The image is too large",
        422: "Not an image that can be decoded within the limits",
        503: "Too many images at once, or no result in time",
    }.items()
}
IMAGE_BODY = {
    "requestBody": {
        "required": True,
        "description": "A JPEG, PNG, WebP, TIFF, BMP or GIF file, as the body or as the first file of a form.",
        "content": {
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {"type": "object", "properties": {"image": {"type": "string", "format": "binary"}}}
            },
        },
    },
    "parameters": [
        {
            "name": "top_k",
            "in": "query",
            "description": "Number of classes to return.",
            "schema": {"type": "integer", "minimum": 1, "default": DEFAULT_TOP_K},
        }
    ],
}


def make_app(title: str) -> FastAPI:
    """Return an application with the routes that every captune page has: metrics and documentation."""
    app = FastAPI(title=title, version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)

    async def answer(request: Request, error: Exception) -> Response:
        return explain(error)

    for kind in (Refusal, HTTPException, Exception):
        app.add_exception_handler(kind, answer)

    @app.api_route("/metrics", methods=GET, include_in_schema=False)
    async def metrics() -> Response:
        content = generate_latest(app.state.metrics.registry)
        return Response(content, media_type=CONTENT_TYPE_LATEST)

    @app.api_route("/docs", methods=GET, include_in_schema=False)
    async def docs() -> Response:
        return html(docs_page(app.openapi()))

    return app


def prediction_app(predictor: Predictor, title: str, limits: Limits) -> FastAPI:
    """Return the application of `captune serve`."""
    app = make_app("captune")
    page = drop_page(title, predictor.names, limits.max_bytes)
    images, memory = Budget(limits.concurrency), Budget(BODIES_AT_ONCE * limits.max_bytes)
    app.state.images = images

    @app.get("/health", response_model=Health, responses={503: {"model": Health}})
    @app.head("/health", include_in_schema=False)
    async def health() -> Json:
        """Tell whether requests are being answered."""
        is_serving = predictor.is_serving(limits.timeout)
        facts = {"classes": len(predictor.names), "version": __version__, "busy": app.state.service.n_connections}
        status = HTTPStatus.OK if is_serving else HTTPStatus.SERVICE_UNAVAILABLE
        return Json({"status": "ok" if is_serving else "not serving", **facts}, status)

    @app.api_route("/", methods=GET, include_in_schema=False)
    async def drop() -> Response:
        return html(page)

    @app.post("/predict", response_model=Prediction, responses=REFUSALS, openapi_extra=IMAGE_BODY)  # type: ignore[arg-type]
    async def predict(request: Request) -> Json:
        """Classify an image."""
        k = read_top_k(request)
        length = announced_length(request.headers, limits.max_bytes)
        with images.share(1), memory.share(length):
            content = await image_content(request.headers, await read_body(request, length, limits.timeout))
            started = time.monotonic()
            try:
                row = await predictor.classify(content, limits.timeout)
            except UnreadableImageError as error:
                raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, f"The image cannot be used: {error}.") from None
        names = predictor.names
        best = [{"label": names[c], "probability": round(float(row[c]), 6)} for c in top_k(row[None], k)[0]]
        return Json({"predictions": best, "seconds": round(time.monotonic() - started, 4)})

    return app


def read_top_k(request: Request) -> int:
    """Return the number of classes that a query asks for."""
    given = request.query_params.multi_items()
    if any(name != "top_k" for name, _ in given):
        raise Refusal(HTTPStatus.BAD_REQUEST, "The only query parameter is top_k, as in /predict?top_k=3.")
    text = given[0][1] if given else str(DEFAULT_TOP_K)
    if len(given) > 1 or not (text.isascii() and text.isdigit()) or len(text) > 6 or int(text) < 1:
        raise Refusal(HTTPStatus.BAD_REQUEST, "top_k must be an integer of at least 1.")
    return int(text)


@contextmanager
def predicting(classifier: AnyClassifier, title: str, limits: Limits) -> Iterator[FastAPI]:
    """Yield the application of a classifier, with its thread and processes."""
    predictor = Predictor(classifier)
    try:
        yield prediction_app(predictor, title, limits)
    finally:
        predictor.close()


def serve(
    run: str | Path,
    host: str,
    port: int,
    limits: Limits,
    token: str = "",
    log: Callable[[str], None] = nothing,
) -> None:
    """Serve a run or an export until SIGINT or SIGTERM; the port is bound before the weights are loaded."""
    with Service(host, port, limits, token, say, log) as service:
        classifier = load(run)
        with predicting(classifier, Path(run).resolve().name, limits) as app:
            serve_until_stopped(service, app, f"Serving {len(classifier.names)} classes")
