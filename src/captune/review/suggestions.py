"""Which images a person should look at: a few that represent many others, and some at random as checks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from captune.core.arrays import Floats, Ints, canonical_order
from captune.data.images import ImageCollection
from captune.embeddings.predictions import Predictions
from captune.review.answers import Answer
from captune.review.corrections import CHECK, PRECISION
from captune.review.image_groups import cluster

if TYPE_CHECKING:
    from captune.review.session import Session

STOP_BELOW = 0.005
"""If the next answers would change a smaller share of the labels, more answers are not worth it."""
CHECK_SHARE = 0.2
"""Share of the suggested images that are drawn at random, to estimate accuracy."""
TURN_EVERY = 5
"""Of so many images, one is for the class with the fewest labels, so that every class gets its turn."""
CLEAR_WEIGHT, CLEAR_WORTH = 0.3, 0.1
"""Added to how unclear an image is, from 0 to 1, to make clusters and to sort them: confident predictions can be wrong,
too."""


@dataclass(frozen=True)
class Suggestion:
    """An image that is worth an answer, its current class, and why it was chosen.

    It represents so many images. `kind` is `typical`, `check` for an image drawn at random, or `precision` for one
    drawn where `accept` needs it.
    """

    position: int
    image: str
    label: str
    confidence: float
    group: int
    represents: int
    kind: str
    reason: str


@dataclass(frozen=True, eq=False)
class Choice:
    """Chosen images: positions, number of images they represent, and kinds, each `(chosen,)`."""

    positions: Ints
    represents: Ints
    kinds: tuple[str, ...]


def choose_images(
    vectors: Floats, probabilities: Floats, labels: Ints, may_choose: Ints, count: int, seed: int
) -> Choice:
    """Choose typical images of clusters without labels, those with the most unclear images first.

    There are as many clusters as labels and choices together, so every choice opens a part of the collection that no
    label represents yet (Hacohen et al., TypiClust, 2022), but at least as many as classes: the middle of a cluster
    of several classes is typical of none. Unclear images weigh more, so that the clusters divide what is not known
    (Zhdanov, Diverse mini-batch active learning, 2019). Every few images, one is chosen among those predicted as the
    class with the fewest labels. `labels` `(images,)` is -1 without a label.
    """
    if count < 1:
        return Choice(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), ())
    order = canonical_order(vectors)  # the same images are chosen whatever their order is
    vectors, probabilities, labels = vectors[order], probabilities[order], labels[order]
    may_choose = np.argsort(order)[may_choose]
    n_images, n_classes = probabilities.shape
    labeled = np.flatnonzero(labels >= 0)
    n_wanted = max(len(labeled) + count, n_classes)
    unclear = np.asarray(1.0 - probabilities.max(axis=1), dtype=np.float32)
    owners, distances = cluster(vectors, min(n_wanted, n_images), seed, unclear + np.float32(CLEAR_WEIGHT))
    n_clusters = int(owners.max()) + 1
    sizes = np.bincount(owners, minlength=n_clusters)
    worth = np.bincount(owners, weights=unclear + CLEAR_WORTH, minlength=n_clusters)
    n_chosen = np.minimum(np.bincount(owners[labeled], minlength=n_clusters), 1)
    predicted, n_seen = probabilities.argmax(axis=1), np.bincount(labels[labeled], minlength=n_classes)
    is_free = np.zeros(n_images, dtype=np.bool_)
    is_free[may_choose] = True
    typical = np.lexsort((distances, owners))
    starts = np.searchsorted(owners[typical], np.arange(n_clusters + 1))
    chosen: list[int] = []
    while len(chosen) < min(count, len(may_choose)):
        may_be_next = is_free
        if (len(labeled) + len(chosen)) % TURN_EVERY == TURN_EVERY - 1:
            is_left = np.bincount(predicted[is_free], minlength=n_classes) > 0
            may_be_next = is_free & (predicted == np.where(is_left, n_seen, n_images).argmin())
        is_empty = np.bincount(owners[may_be_next], minlength=n_clusters) == 0
        number = int(np.lexsort((-worth, n_chosen, is_empty))[0])
        members = typical[starts[number] : starts[number + 1]]
        position = int(members[may_be_next[members]][0])
        chosen.append(position)
        is_free[position] = False
        n_chosen[number] += 1  # a second image of a cluster only if all have one
        n_seen[predicted[position]] += 1
    taken = np.asarray(chosen, dtype=np.int64)
    return Choice(order[taken], sizes[owners[taken]], ("typical",) * len(chosen))


def spread_checks(found: Choice, checks: Ints) -> Choice:
    """Return choices with checks spread over them."""
    places = np.linspace(0, len(found.positions), len(checks) + 2)[1:-1].round().astype(np.int64)
    kinds = np.insert(np.asarray(found.kinds, dtype=object), places, CHECK)
    positions = np.insert(found.positions, places, checks)
    return Choice(positions, np.insert(found.represents, places, 1), tuple(str(kind) for kind in kinds))


def as_suggestions(
    found: Choice, images: ImageCollection, names: Sequence[str], predictions: Predictions, owners: Ints
) -> list[Suggestion]:
    """Return chosen images with their predictions, groups and reasons."""
    predicted, confidence = predictions.labels, predictions.confidence
    return [
        Suggestion(
            position=int(position),
            image=images.name(int(position)),
            label=names[predicted[position]],
            confidence=float(confidence[position]),
            group=int(owners[position]),
            represents=int(size),
            kind=kind,
            reason=sentence(kind, int(size), float(confidence[position])),
        )
        for position, size, kind in zip(found.positions, found.represents, found.kinds, strict=True)
    ]


def sentence(kind: str, represents: int, confidence: float) -> str:
    """Return why an image was chosen."""
    if kind == CHECK:
        return "drawn at random, to estimate accuracy"
    if kind == PRECISION:
        return "drawn at random among confident predictions, to certify their precision"
    state = "whose name is unclear" if confidence < 0.5 else "that look alike"
    return f"represents {represents} images {state}"


def expected_change(session: Session, suggestions: Sequence[Suggestion]) -> float:
    """Return the share of the labels that answers to suggestions would change, by a trial adaptation.

    The answers of the trial are drawn from the predicted probabilities, which are flattened (their square roots),
    because predictions are wrong more often than they say where names mislead.
    """
    generator, engine = np.random.default_rng(session.seed), copy.copy(session.engine)
    before, training = engine.probabilities, session.training()
    for suggestion in suggestions:
        chances = np.sqrt(before[suggestion.position].astype(np.float64))
        name = session.names[int(generator.choice(len(chances), p=chances / chances.sum()))]
        training[suggestion.image] = Answer(name)
    is_other = engine.adapt(session.answers, training).argmax(axis=1) != before.argmax(axis=1)
    is_other[[suggestion.position for suggestion in suggestions]] = False
    return float(is_other.mean())
