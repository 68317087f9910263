"""Web pages: review and serve."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from captune.commands import _shared
from captune.commands._shared import Argument, argument, command, flag, out, several
from captune.commands.adapt import given_settings, read_project
from captune.core.errors import require
from captune.web.server import Limits, Service, say, serve_until_stopped

if TYPE_CHECKING:
    from captune.review.session import Session

OUT = "captune-review"
PACKAGES = ("fastapi", "prometheus_client", "uvicorn")
MOST_JSON = 5_000_000
"""Bytes of one answer; the positions of some hundred thousand images."""


def _address(port: int) -> tuple[Argument, ...]:
    """Return the options of where a page is served, and for whom."""
    return (
        argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)"),
        argument("--port", type=int, default=port, help="port to listen on; 0 picks a free one"),
        argument("--token", default="", metavar="WORD", help="word that clients must send, if others can connect"),
    )


@command(
    argument("images", metavar="RUN|IMAGES", nargs="?", help=f"run folder, or with --classes: {_shared.IMAGES_HELP}"),
    _shared.MOVED_IMAGES,
    argument("--labels", metavar="folders|CSV", help=f"labels that are known already: {_shared.LABELS_HELP}"),
    _shared.METHOD,
    argument("--person", help="who is answering (default: the user name)"),
    *_shared.RUN_OPTIONS,
    out(help=f"with IMAGES: run folder to create, or to continue (default: {OUT})"),
    *_address(8001),
)
def review(options: argparse.Namespace) -> None:
    """Look at images, name groups, change classes and see the effect, in the browser."""
    require("web", *PACKAGES)
    with Service(options.host, options.port, Limits(max_bytes=MOST_JSON), options.token) as service:
        session = _open(options)
        from captune.web.review.review_app import reviewing

        folder = session.engine.folder
        assert folder is not None
        with reviewing(session, folder.resolve().name) as app:
            serve_until_stopped(service, app, f"Reviewing {len(session.images)} images in {folder}")


def _open(options: argparse.Namespace) -> Session:
    """Return a session on a run folder, which is created first if there are only images and classes."""
    from captune.core.files import is_file

    is_run = options.images and is_file(Path(options.images) / "run.json") and not options.classes
    inputs, settings = ({}, given_settings(options)) if is_run else read_project(options)  # before heavy imports
    from captune.review.corrections import FILE, Corrections
    from captune.review.opening import open_session

    if is_run:
        return open_session(options.images, images=options.moved_images, person=options.person, **settings)
    folder = Path(inputs.pop("out") or OUT)
    if is_file(folder / "run.json") and not options.overwrite:
        say(f"Continuing in {folder} (pass --overwrite to start over)")
        return open_session(folder, person=options.person, **settings)
    session = open_session(inputs.pop("images"), **inputs, person=options.person, **settings)
    session.save(folder, overwrite=options.overwrite)
    session.corrections = Corrections(folder / FILE, session.person)
    return session


@command(
    _shared.ANY_RUN,
    *_address(8000),
    argument("--max-bytes", type=int, default=Limits.max_bytes, metavar="N", help="maximum size of a request"),
    argument("--concurrency", type=int, default=Limits.concurrency, metavar="N", help="most images at once"),
    argument("--timeout", type=float, default=Limits.timeout, metavar="SECONDS", help="limit for request and response"),
    several(
        "--allow-origin",
        help="site whose pages may send requests, such as https://example.org (CORS); repeat for several",
        metavar="SITE",
    ),
    flag("--quiet", help="do not log requests"),
)
def serve(options: argparse.Namespace) -> None:
    """Classify images over HTTP or on a web page."""
    limits = Limits(options.max_bytes, options.concurrency, options.timeout)
    require("web", *PACKAGES)
    from captune.results.image_classifier import load
    from captune.web.prediction import predicting

    log = None if options.quiet else say
    with Service(options.host, options.port, limits, options.token, say, log, options.allow_origin) as service:
        classifier = load(options.run)  # which takes a while: a port in use is told before
        with predicting(classifier, Path(options.run).resolve().name, limits) as app:
            serve_until_stopped(service, app, f"Serving {len(classifier.names)} classes")
