"""captune: adapt CLIP to your own images, without labels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from captune.backbones.base import wrap as wrap
    from captune.backbones.image import wrap_image_encoder as wrap_image_encoder
    from captune.concepts.confusion import confusion_margin as confusion_margin
    from captune.concepts.mismatch import detect_mismatch as detect_mismatch
    from captune.core.errors import CaptuneError as CaptuneError
    from captune.data.precomputed import ClassTexts as ClassTexts
    from captune.data.precomputed import Embeddings as Embeddings
    from captune.data.vocabulary import NONE as NONE
    from captune.estimator import CaptuneClassifier as CaptuneClassifier
    from captune.exports.base import export as export
    from captune.labeling.selection import first_labels as first_labels
    from captune.labeling.selection import top_k_per_class as top_k_per_class
    from captune.mixture.gaussian_mixture import fit_gaussian_mixture as fit_gaussian_mixture
    from captune.pipeline import adapt as adapt
    from captune.pipeline import audit as audit
    from captune.results.health import check_health as check_health
    from captune.results.image_classifier import load as load
    from captune.results.run import Run as Run
    from captune.review.opening import open as open
    from captune.review.opening import open_run as open_run
    from captune.review.session import Session as Session

__version__ = "0.2.0"
__all__ = [
    "NONE",
    "CaptuneClassifier",
    "CaptuneError",
    "ClassTexts",
    "Embeddings",
    "Run",
    "Session",
    "__version__",
    "adapt",
    "audit",
    "check_health",
    "confusion_margin",
    "detect_mismatch",
    "export",
    "first_labels",
    "fit_gaussian_mixture",
    "load",
    "open",
    "open_run",
    "top_k_per_class",
    "wrap",
    "wrap_image_encoder",
]

_HOMES = {
    "adapt": "captune.pipeline",
    "audit": "captune.pipeline",
    "export": "captune.exports.base",
    "load": "captune.results.image_classifier",
    "open": "captune.review.opening",
    "open_run": "captune.review.opening",
    "Run": "captune.results.run",
    "Session": "captune.review.session",
    "wrap": "captune.backbones.base",
    "wrap_image_encoder": "captune.backbones.image",
    "Embeddings": "captune.data.precomputed",
    "ClassTexts": "captune.data.precomputed",
    "NONE": "captune.data.vocabulary",
    "CaptuneClassifier": "captune.estimator",
    "CaptuneError": "captune.core.errors",
    "check_health": "captune.results.health",
    "confusion_margin": "captune.concepts.confusion",
    "detect_mismatch": "captune.concepts.mismatch",
    "first_labels": "captune.labeling.selection",
    "fit_gaussian_mixture": "captune.mixture.gaussian_mixture",
    "top_k_per_class": "captune.labeling.selection",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 (the type checker reads the imports above)
    """Import public names when they are first used, so that `import captune` stays light."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'captune' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, of which most are not imported yet."""
    return sorted(__all__)
