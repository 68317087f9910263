"""What a person should look at: typical images, random checks, groups, and what was searched for."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from captune.core.arrays import Bools, Floats, Ints, canonical_order, score_rows, unit_rows
from captune.core.errors import InputError, nearest
from captune.core.files import digest
from captune.data.images import ImageCollection
from captune.data.vocabulary import NONE, fill
from captune.embeddings.embed import embed_texts
from captune.review.answers import Answer
from captune.review.corrections import CHECK, PRECISION, Correction

if TYPE_CHECKING:
    from captune.review.session import Image, Session

STOP_BELOW = 0.005
"""If the next answers would change a smaller share of the labels, more answers are not worth it."""
CHECK_SHARE = 0.2
"""Share of the suggested images that are drawn at random, to estimate accuracy."""
TURN_EVERY = 5
"""Of so many images, one is for the class with the fewest labels, so that every class gets its turn."""
CLEAR_WEIGHT, CLEAR_WORTH = 0.3, 0.1
"""Added to how unclear an image is, from 0 to 1, to make clusters and to sort them: confident predictions can be wrong,
too."""
MISSING_FIT, MISSING_CONFIDENCE = 0.1, 0.5
"""A group that is below both on average seems to be a class that has no name."""
GROUPS_PER_CLASS = 2
FEWEST_PER_GROUP = 5
SAMPLED_PER_CLUSTER, FEWEST_SAMPLED = 24, 4096
"""K-means runs on a sample of at most this many images per cluster; all images are then assigned."""
MOST_ALTERNATIVES = 3
REASONS = {
    CHECK: "drawn at random, to estimate accuracy",
    PRECISION: "drawn at random among confident predictions, to certify their precision",
}
FILTERS = ("changed", "unlabeled", "outliers", "duplicates", NONE, "disagreed")
SECOND_OPINION = "second opinion"
"""The kind of suggestion that shows an image on which people disagree; an answer to it settles the matter."""


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


class Choice(NamedTuple):
    """Chosen images, and the number of images that each represents, both `(chosen,)`."""

    positions: Ints
    represents: Ints


def choose_images(
    vectors: Floats, probabilities: Floats, labels: Ints, may_choose: Ints, count: int, seed: int
) -> Choice:
    """Choose typical images of clusters without labels, those with the most unclear images first.

    There are as many clusters as labels and choices together, so every choice opens a part of the collection that no
    label represents yet (Hacohen et al., TypiClust, 2022), but at least as many as classes: the middle of a cluster
    of several classes is typical of none. Unclear images weigh more, so that the clusters divide what is not known
    (Zhdanov, Diverse mini-batch active learning, 2019). `labels` `(images,)` is -1 without a label.
    """
    if count < 1:
        return Choice(may_choose[:0], may_choose[:0])
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
    return Choice(order[taken], sizes[owners[taken]])


def spread_checks(found: Choice, checks: Ints) -> list[tuple[int, int, str]]:
    """Return position, number of represented images and kind of choices, with checks spread over them."""
    chosen = [(row, size, "typical") for row, size in zip(*(part.tolist() for part in found), strict=True)]
    places = np.linspace(0, len(chosen), len(checks) + 2)[1:-1].round().astype(np.int64)
    for place, row in reversed(list(zip(places.tolist(), checks.tolist(), strict=True))):
        chosen.insert(place, (row, 1, CHECK))
    return chosen


def as_suggestions(chosen: Iterable[tuple[int, int, str]], session: Session) -> list[Suggestion]:
    """Return chosen images with their predictions, groups and reasons."""
    predicted, confidence = session.predictions.labels, session.predictions.confidence
    names, owners, suggestions = session.names, session.clusters[0], []
    for row, size, kind in chosen:
        state = "whose name is unclear" if confidence[row] < 0.5 else "that look alike"
        reason = REASONS.get(kind, f"represents {size} images {state}")
        facts = session.images.name(row), names[predicted[row]], float(confidence[row]), int(owners[row])
        suggestions.append(Suggestion(row, *facts, size, kind, reason))
    return suggestions


def expected_change(session: Session, suggestions: Sequence[Suggestion]) -> float:
    """Return the share of the labels that answers to suggestions would change, by a trial adaptation.

    The answers of the trial are drawn from the predicted probabilities, which are flattened (their square roots),
    because predictions are wrong more often than they say where names mislead.
    """
    generator, engine = np.random.default_rng(session.seed), copy.copy(session.engine)
    before, labels = engine.probabilities, dict(session.answers.labels)
    for suggestion in suggestions:
        chances = np.sqrt(before[suggestion.position].astype(np.float64))
        name = session.names[int(generator.choice(len(chances), p=chances / chances.sum()))]
        labels[suggestion.image] = Answer(name)
    is_other = engine.adapt(replace(session.answers, labels=labels)).argmax(axis=1) != before.argmax(axis=1)
    is_other[[suggestion.position for suggestion in suggestions]] = False
    return float(is_other.mean())


def worth_of(session: Session, suggestions: Sequence[Suggestion]) -> str:
    """Return in words how many labels answers to suggestions would change, and whether that is worth it."""
    change = expected_change(session, suggestions)
    stop = ": you may stop" if change < STOP_BELOW else ""
    return f"These answers change about {100 * change:.1f}% of the other labels{stop}."


@dataclass(frozen=True, eq=False)
class Group:
    """Images that belong together, the most typical first, with the class that most of them are predicted as.

    `share` of the images have this class, `confidence` is its mean probability, `alternatives` are the next classes
    with their shares, `n_labeled` images were named one by one, and `fits` is their mean fit to the names. The same
    images always have the same numbers.
    """

    number: int
    images: Ints
    name: str
    share: float
    confidence: float
    alternatives: tuple[tuple[str, float], ...]
    n_labeled: int
    fits: float = 1.0

    def __len__(self) -> int:
        return len(self.images)

    @property
    def question(self) -> str:
        """Return what to ask if the class of the group seems to be missing, or an empty string."""
        is_missing = self.fits < MISSING_FIT and self.confidence < MISSING_CONFIDENCE and not self.n_labeled
        return f"{len(self)} images look alike and fit no name: name them?" if is_missing else ""

    def digest(self, images: ImageCollection) -> str:
        """Return what identifies the group: a digest of the names of its images, whatever its number."""
        return digest("\n".join(sorted(images.name(int(i)) for i in self.images)).encode("utf-8", "surrogatepass"), 6)


def cluster(vectors: Floats, n_clusters: int, seed: int, weights: Floats | None = None) -> tuple[Ints, Floats]:
    """Return the K-means cluster of each image and its squared distance to the center, both `(images,)`."""
    from sklearn.cluster import KMeans

    n_clusters = max(1, min(n_clusters, len(vectors)))
    sample = canonical_order(vectors)[: max(FEWEST_SAMPLED, SAMPLED_PER_CLUSTER * n_clusters)]
    means = KMeans(n_clusters, n_init=1, max_iter=30, random_state=seed)
    means.fit(vectors[sample], sample_weight=None if weights is None else weights[sample])
    centers = np.asarray(means.cluster_centers_, dtype=np.float32)
    lengths = np.square(centers).sum(axis=1)
    distances = score_rows(vectors, n_clusters, lambda rows: lengths - 2 * (rows @ centers.T))
    owners = np.asarray(distances.argmin(axis=1), dtype=np.int64)
    return owners, distances.min(axis=1) + np.square(vectors).sum(axis=1)


def describe_groups(session: Session, fits: Floats) -> list[Group]:
    """Return all groups with their current names, in the order of their numbers."""
    (owners, distances), probabilities, names = session.clusters, session.predictions.probabilities, session.names
    predicted, order, found = probabilities.argmax(axis=1), np.lexsort((distances, owners)), []
    is_labeled = np.zeros(len(owners), dtype=np.bool_)
    is_labeled[[row for row, answer in session.labels.items() if not answer.is_group]] = True
    for members in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
        shares = np.bincount(predicted[members], minlength=len(names)) / len(members)
        best = np.argsort(-shares, kind="stable")[: MOST_ALTERNATIVES + 1]
        found.append(
            Group(
                number=int(owners[members[0]]),
                images=members,
                name=names[best[0]],
                share=float(shares[best[0]]),
                confidence=float(probabilities[members, best[0]].mean()),
                alternatives=tuple((names[c], float(shares[c])) for c in best[1:] if shares[c] > 0),
                n_labeled=int(is_labeled[members].sum()),
                fits=float(fits[members].mean()),
            )
        )
    return found


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
