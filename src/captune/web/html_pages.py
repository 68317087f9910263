"""Pages that fetch nothing but this service's own responses."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import Response

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


def drop_page(title: str, names: Sequence[str], max_bytes: int) -> bytes:
    """Return the page for dropping an image; the title and the class names are escaped."""
    return _render("drop.html.j2", title=title, names=names, max_bytes=max_bytes, script=Markup(_SCRIPT))


def docs_page(schema: dict[str, Any]) -> bytes:
    """Return the documentation of the routes in an OpenAPI schema."""
    routes = [
        {"method": method.upper(), "path": path, **route}
        for path, methods in schema["paths"].items()
        for method, route in methods.items()
    ]
    shapes = {
        name: json.dumps({field: _kind(part) for field, part in shape.get("properties", {}).items()}, indent=2)
        for name, shape in schema.get("components", {}).get("schemas", {}).items()
    }
    return _render("docs.html.j2", routes=routes, shapes=shapes)


def html(content: bytes, policy: str = PAGE_POLICY) -> Response:
    """Return a page as a response with its content security policy."""
    return Response(content, media_type="text/html", headers={"Content-Security-Policy": policy})


def _kind(part: dict[str, Any]) -> Any:  # noqa: ANN401 (a name, or a list of one)
    if part.get("type") == "array":
        return [_kind(part["items"])]
    return str(part.get("$ref", part.get("type", "anything"))).rpartition("/")[2]


def _render(template: str, **values: object) -> bytes:
    environment = Environment(
        loader=PackageLoader("captune.web", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template(template).render(version=__version__, stylesheet=Markup(_STYLE), **values)
    return page.encode("utf-8", "backslashreplace")
