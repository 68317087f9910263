"""captune: adapt CLIP to your own images, without labels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from captune.auditing.audit import audit as audit
    from captune.backbones.base import wrap as wrap
    from captune.core.errors import CaptuneError as CaptuneError
    from captune.data.precomputed import ClassTexts as ClassTexts
    from captune.data.precomputed import Embeddings as Embeddings
    from captune.exports.base import export as export
    from captune.pipeline import adapt as adapt
    from captune.results.image_classifier import load as load
    from captune.review.opening import open as open
    from captune.review.opening import open_run as open_run
    from captune.review.session import Session as Session

__version__ = "0.1.0"
__all__ = [
    "CaptuneError",
    "ClassTexts",
    "Embeddings",
    "Session",
    "__version__",
    "adapt",
    "audit",
    "export",
    "load",
    "open",
    "open_run",
    "wrap",
]

_HOMES = {
    "adapt": "captune.pipeline",
    "audit": "captune.auditing.audit",
    "export": "captune.exports.base",
    "load": "captune.results.image_classifier",
    "open": "captune.review.opening",
    "open_run": "captune.review.opening",
    "Session": "captune.review.session",
    "wrap": "captune.backbones.base",
    "Embeddings": "captune.data.precomputed",
    "ClassTexts": "captune.data.precomputed",
    "CaptuneError": "captune.core.errors",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 (the type checker reads the imports above)
    """Import public names when they are first used, so that `import captune` stays light."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'captune' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, of which most are not imported yet."""
    return sorted(__all__)
