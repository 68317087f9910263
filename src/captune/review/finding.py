"""Finding images of a session: by words, by an example, and by what is known about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from captune.core.arrays import Bools, Floats, Ints
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
    """An image that was found.

    Attributes:
        position: Position of the image.
        image: Name of the image.
        label: Its current class.
        confidence: Probability of this class.
        similarity: Cosine similarity to the example, or to the words, beyond that to the class names; 0 without one.
    """

    position: int
    image: str
    label: str
    confidence: float
    similarity: float


@dataclass(frozen=True)
class Query:
    """What to look for.

    Attributes:
        words: What the images show, compared with them by the text encoder.
        like: An image that they resemble.
        label: Class that they are predicted as.
        confidence: Lowest and highest confidence.
        only: Filters, all of which must hold; see `FILTERS`.
    """

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
    chosen = _best_first(-confidence if scores is None else scores, allowed, count, skip)
    found = [
        Found(
            position=int(i),
            image=session.images.name(int(i)),
            label=session.names[predicted[i]],
            confidence=float(confidence[i]),
            similarity=0.0 if scores is None else float(scores[i]),
        )
        for i in chosen
    ]
    return found, int(allowed.sum())


def _scores(session: Session, query: Query) -> Floats | None:
    """Return the cosine similarity of all images to what is looked for, `(images,)`.

    Some images resemble every text. The mean similarity to the class names is therefore subtracted for words.
    """
    engine = session.engine
    if query.like is not None:
        example = _unit(engine.vectors[session.position(query.like)])
    elif query.words.strip():
        engine.check_texts()
        words, template = query.words.strip(), engine.settings.template
        names = embed_texts(engine.backbone, [fill(template, name) for name in session.names])
        asked = embed_texts(engine.backbone, [words, fill(template, words)])
        example = _unit(asked.mean(axis=0)) - names.mean(axis=0)
    else:
        return None
    return np.asarray(engine.vectors @ example, dtype=np.float32)


def _unit(vector: Floats) -> Floats:
    return np.asarray(vector / max(float(np.linalg.norm(vector)), 1e-12), dtype=np.float32)


def _mask(session: Session, name: str) -> Bools:
    """Return the images that a filter lets through."""
    if name in ("outliers", "duplicates"):
        return session.engine.examined[name == "duplicates"]
    if name == "changed":
        return session.changed()
    mask = np.zeros(len(session.images), dtype=np.bool_)
    if name == "unlabeled":
        mask[list(session.labels)] = True
        return ~mask
    if name == NONE:
        images: Iterable[str] = [image for image, answer in session.answers.labels.items() if answer.label == NONE]
    else:
        images = disagreements(session.corrections.active())
    mask[[session.position(image) for image in images if session.knows(image)]] = True
    return mask


def _best_first(scores: Floats, allowed: Bools, count: int, skip: int) -> Ints:
    """Return the positions with the highest scores, without sorting all of them."""
    positions = np.flatnonzero(allowed)
    wanted = min(skip + count, len(positions))
    if wanted < len(positions):
        positions = positions[np.argpartition(-scores[positions], wanted)[:wanted]]
    order = np.lexsort((positions, -scores[positions]))
    return np.asarray(positions[order][skip:wanted], dtype=np.int64)


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
