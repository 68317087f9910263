"""captune review: look at images, name groups, change classes and see the effect, in the browser."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from captune.commands._shared import IMAGES_HELP, LABELS_HELP, add_images_option, add_run_options
from captune.commands.serve import add_address_options

if TYPE_CHECKING:
    from captune.review.session import Session

OUT = "captune-review"
MOST_JSON = 5_000_000
"""Bytes of one answer; the positions of some hundred thousand images."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("images", metavar="RUN|IMAGES", nargs="?", help=f"run folder, or with --classes: {IMAGES_HELP}")
    add_images_option(parser)
    parser.add_argument("--labels", metavar="folders|CSV", help=f"labels that are known already: {LABELS_HELP}")
    parser.add_argument("--method", help="adaptation method that follows each answer (default: transductive)")
    parser.add_argument("--person", help="who is answering (default: the user name)")
    add_run_options(parser, f"with IMAGES: run folder to create, or to continue (default: {OUT})")
    add_address_options(parser, 8001)


def run(options: argparse.Namespace) -> None:
    """Serve the page until interrupted."""
    from captune.web.server import Limits, Service, check_installed, serve_until_stopped

    check_installed()
    with Service(options.host, options.port, Limits(max_bytes=MOST_JSON), options.token) as service:
        session = _open(options)
        from captune.web.review.review_app import reviewing

        folder = session.engine.folder
        assert folder is not None
        with reviewing(session, folder.resolve().name) as app:
            serve_until_stopped(service, app, f"Reviewing {len(session.images)} images in {folder}")


def _open(options: argparse.Namespace) -> Session:
    """Return a session on a run folder, which is created first if there are only images and classes."""
    from captune.commands._project import read_project
    from captune.commands._shared import given_settings
    from captune.core.files import is_file

    is_run = options.images and is_file(Path(options.images) / "run.json") and not options.classes
    inputs, settings = ({}, {}) if is_run else read_project(options)  # before anything that takes long to import
    from captune.results.run_folder import CARD
    from captune.review.corrections import FILE, Corrections
    from captune.review.opening import open_session

    if is_run:
        settings = given_settings(options)
        return open_session(options.images, images=options.moved_images, person=options.person, **settings)
    folder = Path(inputs.pop("out") or OUT)
    if is_file(folder / CARD) and not options.overwrite:
        from captune.web.server import say

        say(f"Continuing in {folder} (pass --overwrite to start over)")
        return open_session(folder, person=options.person, **settings)
    session = open_session(inputs.pop("images"), **inputs, person=options.person, **settings)
    session.save(folder, overwrite=options.overwrite)
    session.corrections = Corrections(folder / FILE, session.person)
    return session
