"""captune: adapt CLIP to your own images, without labels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from captune.backbones.base import Backbone as Backbone
    from captune.backbones.base import wrap as wrap
    from captune.backbones.image import wrap_image_encoder as wrap_image_encoder
    from captune.concepts.confusion import ConfusionMargin as ConfusionMargin
    from captune.concepts.confusion import confusion_margin as confusion_margin
    from captune.concepts.mismatch import MismatchFindings as MismatchFindings
    from captune.concepts.mismatch import MismatchSettings as MismatchSettings
    from captune.concepts.mismatch import detect_mismatch as detect_mismatch
    from captune.core.errors import CaptuneError as CaptuneError
    from captune.core.typed_settings import AdaptSettings as AdaptSettings
    from captune.data.images import ImageCollection as ImageCollection
    from captune.data.precomputed import ClassTexts as ClassTexts
    from captune.data.precomputed import Embeddings as Embeddings
    from captune.data.vocabulary import NONE as NONE
    from captune.distill import Distilled as Distilled
    from captune.embeddings.predictions import Predictions as Predictions
    from captune.estimator import CaptuneClassifier as CaptuneClassifier
    from captune.exports.base import Exported as Exported
    from captune.exports.base import export as export
    from captune.labeling.pseudo_labels import PseudoLabels as PseudoLabels
    from captune.labeling.selection import first_labels as first_labels
    from captune.labeling.selection import top_k_per_class as top_k_per_class
    from captune.mixture.gaussian_mixture import MixtureFit as MixtureFit
    from captune.mixture.gaussian_mixture import MixtureSettings as MixtureSettings
    from captune.mixture.gaussian_mixture import fit_gaussian_mixture as fit_gaussian_mixture
    from captune.pipeline import adapt as adapt
    from captune.pipeline import audit as audit
    from captune.report.page import Report as Report
    from captune.results.classifier import Classifier as Classifier
    from captune.results.health import HealthCheck as HealthCheck
    from captune.results.health import check_health as check_health
    from captune.results.image_classifier import ImageClassifier as ImageClassifier
    from captune.results.image_classifier import SkippedWarning as SkippedWarning
    from captune.results.image_classifier import UnknownLabelWarning as UnknownLabelWarning
    from captune.results.image_classifier import load as load
    from captune.results.metrics import Metrics as Metrics
    from captune.results.run import Run as Run
    from captune.review.accept import Acceptance as Acceptance
    from captune.review.answers import Answer as Answer
    from captune.review.changes import Change as Change
    from captune.review.changes import Update as Update
    from captune.review.estimate import AccuracyEstimate as AccuracyEstimate
    from captune.review.finding import Found as Found
    from captune.review.opening import open_session as open_session
    from captune.review.session import Session as Session
    from captune.review.suggestions import Group as Group
    from captune.review.suggestions import Suggestion as Suggestion

__version__ = "0.2.0"
_PUBLIC = {
    "captune.backbones.base": "Backbone wrap",
    "captune.backbones.image": "wrap_image_encoder",
    "captune.concepts.confusion": "ConfusionMargin confusion_margin",
    "captune.concepts.mismatch": "MismatchFindings MismatchSettings detect_mismatch",
    "captune.core.errors": "CaptuneError",
    "captune.core.typed_settings": "AdaptSettings",
    "captune.data.images": "ImageCollection",
    "captune.data.precomputed": "ClassTexts Embeddings",
    "captune.data.vocabulary": "NONE",
    "captune.distill": "Distilled",
    "captune.embeddings.predictions": "Predictions",
    "captune.estimator": "CaptuneClassifier",
    "captune.exports.base": "Exported export",
    "captune.labeling.pseudo_labels": "PseudoLabels",
    "captune.labeling.selection": "first_labels top_k_per_class",
    "captune.mixture.gaussian_mixture": "MixtureFit MixtureSettings fit_gaussian_mixture",
    "captune.pipeline": "adapt audit",
    "captune.report.page": "Report",
    "captune.results.classifier": "Classifier",
    "captune.results.health": "HealthCheck check_health",
    "captune.results.image_classifier": "ImageClassifier SkippedWarning UnknownLabelWarning load",
    "captune.results.metrics": "Metrics",
    "captune.results.run": "Run",
    "captune.review.accept": "Acceptance",
    "captune.review.answers": "Answer",
    "captune.review.changes": "Change Update",
    "captune.review.estimate": "AccuracyEstimate",
    "captune.review.finding": "Found",
    "captune.review.opening": "open_session",
    "captune.review.session": "Session",
    "captune.review.suggestions": "Group Suggestion",
}
"""The public names, by the module that they are imported from when they are first used."""
_HOMES = {name: module for module, names in _PUBLIC.items() for name in names.split()}
__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:  # noqa: ANN401 (the type checker reads the imports above)
    """Import public names when they are first used, so that `import captune` stays light."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in ("open", "open_run"):  # deprecated in 0.3; the first replaced the builtin after `import *`
        import warnings

        warnings.warn(f"captune.{name} is now captune.open_session", DeprecationWarning, stacklevel=2)
        now = import_module("captune.review.opening").open_session
        return now if name == "open" else lambda run, images=None, **settings: now(run, images=images, **settings)
    raise AttributeError(f"module 'captune' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, of which most are not imported yet."""
    return sorted(__all__)
