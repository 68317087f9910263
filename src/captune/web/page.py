"""The page for dropping an image: one file that fetches nothing but the prediction."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from captune import __version__, report

_HERE = Path(__file__).parent
_STYLE = (Path(report.__file__).parent / "page.css").read_text("utf-8") + (_HERE / "drop.css").read_text("utf-8")
_SCRIPT = (_HERE / "drop.js").read_text("utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


PAGE_POLICY = (
    f"default-src 'none'; script-src {_digest(_SCRIPT)}; style-src {_digest(_STYLE)}; img-src blob: data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Only our own script and style, identified by digests, and only requests to this service."""


def make_page(title: str, names: Sequence[str], max_bytes: int) -> bytes:
    """Return the page; the title and the class names are escaped."""
    environment = Environment(
        loader=PackageLoader("captune.web", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("drop.html.j2").render(
        title=title,
        names=names,
        max_bytes=max_bytes,
        version=__version__,
        stylesheet=Markup(_STYLE),
        script=Markup(_SCRIPT),
    )
    return page.encode("utf-8", "backslashreplace")
