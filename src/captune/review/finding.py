"""Finding images of a session: by words, by an example, and by what is known about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from captune.core.arrays import Bools, Floats, unit_rows
from captune.core.errors import InputError, nearest
from captune.data.vocabulary import NONE, fill
from captune.embeddings.embed import embed_texts
from captune.review.corrections import Correction

if TYPE_CHECKING:
    from captune.review.session import Image, Session

FILTERS = ("changed", "unlabeled", "outliers", "duplicates", NONE, "disagreed")
SECOND_OPINION = "second opinion"
"""The kind of suggestion that shows an image on which people disagree; an answer to it settles the matter."""


@dataclass(frozen=True)
class Found:
    """An image that was found, with its current class.

    `similarity` is the cosine similarity to the example, or to the words beyond that to the class names; 0 without one.
    """

    position: int
    image: str
    label: str
    confidence: float
    similarity: float


def find_images(
    session: Session,
    words: str,
    like: Image | None,
    label: str | None,
    limits: tuple[float, float],
    only: Sequence[str],
    count: int,
    skip: int = 0,
) -> tuple[list[Found], int]:
    """Return images, the most similar first or else the least confident, and how many match in total."""
    confidence, predicted, names = session.predictions.confidence, session.predictions.labels, session.names
    allowed = (confidence >= limits[0]) & (confidence <= limits[1])
    similarity: Floats = np.zeros(len(confidence), dtype=np.float32)
    if label is not None:
        if label not in names:
            raise InputError(f"{label!r} is not a class.{nearest(label, names)}")
        allowed &= predicted == names.index(label)
    for name in only:
        allowed &= _mask(session, name)
    if words.strip() and like is not None:
        raise InputError("Search by words or by an example, not by both.")
    if like is not None:
        example = session.position(like)
        similarity = session.engine.vectors @ session.engine.vectors[example]
        allowed[example] = False
    elif words.strip():
        similarity = session.engine.vectors @ _direction(session, words.strip())
    # Without words or an example, the order is that of the confidence.
    order = np.lexsort((confidence, -similarity))
    found = [
        Found(i, session.images.name(i), names[predicted[i]], float(confidence[i]), float(similarity[i]))
        for i in order[allowed[order]][skip : skip + count].tolist()
    ]
    return found, int(allowed.sum())


def _direction(session: Session, words: str) -> Floats:
    """Return what words mean beyond the class names, `(width,)`: some images resemble every text."""
    engine = session.engine
    engine.check_texts()
    template = engine.plan.settings.template
    names = embed_texts(engine.backbone, [fill(template, name) for name in session.names])
    asked = embed_texts(engine.backbone, [words, fill(template, words)])
    return np.asarray(unit_rows(asked.mean(axis=0)) - names.mean(axis=0), dtype=np.float32)


def _mask(session: Session, name: str) -> Bools:
    """Return the images that a filter lets through."""
    if name not in FILTERS:
        raise InputError(f"There is no filter {name!r}. Filters: {', '.join(FILTERS)}.")
    if name in ("outliers", "duplicates"):
        return session.engine.examined[name == "duplicates"]
    if name == "changed":
        return session.changed()
    if name == "disagreed":
        rows = list(session.engine.here(disagreements(session.corrections.active())))
    else:
        rows = [row for row, answer in session.labels.items() if name == "unlabeled" or answer.label == NONE]
    mask = np.zeros(len(session.images), dtype=np.bool_)
    mask[rows] = True
    return ~mask if name == "unlabeled" else mask


def disagreements(corrections: Iterable[Correction]) -> dict[str, dict[str, str]]:
    """Return images that people gave different labels, with the label of each person."""
    labels: dict[str, dict[str, str]] = {}
    for answer in corrections:
        if answer.kind != "label" or answer.group >= 0:
            continue
        for image in answer.images:
            if answer.suggestion == SECOND_OPINION:
                labels[image] = {}
            labels.setdefault(image, {})[answer.person] = answer.label
    return {image: given for image, given in labels.items() if len(set(given.values())) > 1}
