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


@dataclass(frozen=True)
class Query:
    """What to look for: words or an image `like` the images, their class, their confidence, and `FILTERS` that hold."""

    words: str = ""
    like: Image | None = None
    label: str | None = None
    confidence: tuple[float, float] = (0.0, 1.0)
    only: Sequence[str] = ()

    def check(self, session: Session) -> None:
        """Raise an error if something does not exist."""
        wrong = [name for name in self.only if name not in FILTERS]
        if wrong:
            raise InputError(f"There is no filter {wrong[0]!r}. Filters: {', '.join(FILTERS)}.")
        if self.label is not None and self.label not in session.names:
            raise InputError(f"{self.label!r} is not a class.{nearest(self.label, session.names)}")
        if self.words and self.like is not None:
            raise InputError("Search by words or by an example, not by both.")


def find_images(session: Session, query: Query, count: int, skip: int = 0) -> tuple[list[Found], int]:
    """Return images, the most similar first or else the least confident, and how many match in total."""
    query.check(session)
    scores = _scores(session, query)
    confidence, predicted = session.predictions.confidence, session.predictions.labels
    allowed = (confidence >= query.confidence[0]) & (confidence <= query.confidence[1])
    if query.label is not None:
        allowed &= predicted == session.names.index(query.label)
    for name in query.only:
        allowed &= _mask(session, name)
    if query.like is not None:
        allowed[session.position(query.like)] = False
    order = np.argsort(confidence if scores is None else -scores, kind="stable")
    chosen = order[allowed[order]][skip : skip + count]
    similarity, names = np.zeros(len(allowed)) if scores is None else scores, session.names
    found = [
        Found(i, session.images.name(i), names[predicted[i]], float(confidence[i]), float(similarity[i]))
        for i in chosen.tolist()
    ]
    return found, int(allowed.sum())


def _scores(session: Session, query: Query) -> Floats | None:
    """Return the cosine similarity of all images to what is looked for, `(images,)`.

    Some images resemble every text. The mean similarity to the class names is therefore subtracted for words.
    """
    engine = session.engine
    if query.like is not None:
        example = engine.vectors[session.position(query.like)]
    elif query.words.strip():
        engine.check_texts()
        words, template = query.words.strip(), engine.settings.template
        names = embed_texts(engine.backbone, [fill(template, name) for name in session.names])
        asked = embed_texts(engine.backbone, [words, fill(template, words)])
        example = unit_rows(asked.mean(axis=0)) - names.mean(axis=0)
    else:
        return None
    return np.asarray(engine.vectors @ example, dtype=np.float32)


def _mask(session: Session, name: str) -> Bools:
    """Return the images that a filter lets through."""
    if name in ("outliers", "duplicates"):
        return session.engine.examined[name == "duplicates"]
    if name == "changed":
        return session.changed()
    if name == "disagreed":
        rows = [
            session.position(image) for image in disagreements(session.corrections.active()) if session.knows(image)
        ]
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
