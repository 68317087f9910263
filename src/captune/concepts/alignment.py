"""Concept alignment: detect misleading class names, describe them, and choose the best descriptions (Section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from captune.backbones.base import Backbone
from captune.concepts.clustering import ShrinkingClusters
from captune.concepts.confusion import class_closeness, class_prototypes
from captune.concepts.mismatch import MismatchFindings, MismatchSettings, detect_mismatch, match_texts
from captune.core.arrays import Floats, Ints, softmax_rows
from captune.core.runtime import threads_for
from captune.data.vocabulary import Vocabulary
from captune.describers.base import PAIR_PROMPT, PAPER_PROMPT, Describer, Descriptions, describe_classes, pair_key
from captune.embeddings.embed import embed_classes, embed_texts

Scope = Literal["auto", "mismatched", "confused", "all", "none"]
Choice = Literal["best", "mean"]

MANY_ROUNDS = 2000
"""A detection of so many rounds shows its progress."""
CONFUSED = 1.0
"""Standard deviations by which confused classes are closer than the average pair."""
SHRINKAGE = 0.5
"""Of the variances of images, toward their mean, before the images are whitened."""
CLEAR_DIFFERENCE = 2.0
"""In standard deviations of how many labels only one of two equal kinds of texts would get right."""


@dataclass(frozen=True)
class Alignment:
    """Which text represents each class, decided once for pseudo-labels, tuner, report and saved classifier.

    `described` are the ids of the classes whose descriptions are used; `descriptions` are the describer's answers and
    problems; `findings` are None if misleading names were not looked for; `reason` says why all descriptions are used
    or none is, if labels or images decided that.
    """

    vocabulary: Vocabulary
    described: Ints
    descriptions: Descriptions = field(default_factory=Descriptions)
    findings: MismatchFindings | None = None
    reason: str = ""

    def vectors(self, backbone: Backbone) -> dict[int, Floats]:
        """Return the embeddings of the texts of described classes, `(width,)` each, by class id."""
        texts = embed_classes(backbone, self.vocabulary)
        return {int(class_id): texts[class_id] for class_id in self.described}


def align_concepts(
    images: Floats,
    vocabulary: Vocabulary,
    backbone: Backbone,
    describer: Describer,
    *,
    describe: Scope = "mismatched",
    choose: Choice = "best",
    detection: MismatchSettings | None = None,
    labeled: tuple[Floats, Ints] | None = None,
    classes: Ints | None = None,
    phrase: str = "{}",
    progress: Callable[[str, int], AbstractContextManager[Any]] = lambda *_: nullcontext(),
) -> Alignment:
    """Describe classes and decide which text represents each, from embeddings of unlabeled images `(images, width)`.

    The paper is `describe = "mismatched"` and `choose = "best"`: only misleading names among `classes` are described,
    and the best of five descriptions represents the class (Appendix B). With `choose = "mean"` it is the mean of all;
    with `describe = "all"` every class is described and represented by the mean of its name and descriptions; with
    `describe = "auto"` only if that suits the images better than the names do, or the labels of `labeled` images. With
    `describe = "confused"`, descriptions say how classes that exchange images differ, and are used as with `auto`.
    With `describe = "none"` all keep their names. Misleading names are looked for if they are to be described, or if
    there are settings for it.
    """
    eligible = np.arange(len(vocabulary)) if classes is None else np.unique(classes)
    names, findings, scale = embed_classes(backbone, vocabulary), None, backbone.logit_scale
    if detection is not None or describe == "mismatched":
        detection = detection or MismatchSettings()
        n_rounds = detection.runs_of(len(images), len(eligible)) * len(eligible)
        shown = n_rounds if n_rounds >= MANY_ROUNDS else 0
        with progress("Finding misleading names", shown) as advance:
            findings = detect_mismatch(images, names, scale, detection, eligible, advance or (lambda _: None))
    asked = findings.mismatched if findings is not None and describe == "mismatched" else eligible
    pairs = confused_pairs(images, names, scale, eligible) if describe == "confused" else []
    questions: list[Any] = [vocabulary.names[c] for c in asked] if describe not in ("none", "confused") else []
    questions += [(vocabulary.names[a], vocabulary.names[b]) for pair in pairs for a, b in (pair, pair[::-1])]
    prompt = PAIR_PROMPT if pairs else PAPER_PROMPT
    with progress("Describing classes", len(questions) if describer.is_remote else 0) as advance:
        answers = describe_classes(describer, questions, phrase=phrase, prompt=prompt, advance=advance)
    if pairs:  # the descriptions of a class are what tells it from all others that it is confused with
        told = dict[str, list[str]]()
        for a, b in questions:
            told.setdefault(a, []).extend(answers.found.get(pair_key(a, b), []))
        answers = Descriptions({name: found for name, found in told.items() if found}, answers.problems)
    sentences = {vocabulary.names.index(name): tuple(found) for name, found in answers.found.items()}
    reason = ""
    if describe == "mismatched" and choose == "best" and findings is not None:
        embedded = {c: embed_texts(backbone, found) for c, found in sentences.items()}
        left, seed = images[findings.remaining], 0 if detection is None else detection.seed
        best = choose_descriptions(left, embedded, scale, runs=max(1, findings.runs), seed=seed)
        sentences = {c: (sentences[c][index],) for c, index in best.items()}
    elif describe != "mismatched":
        sentences = {c: (*vocabulary.texts(c), *found) for c, found in sentences.items()}
    chosen = vocabulary.with_descriptions(sentences)
    if describe in ("auto", "confused") and sentences:
        helps, reason = choose_texts(images, names, embed_classes(backbone, chosen), scale, labeled)
        if not helps:
            chosen, sentences = vocabulary, {}
    described = np.asarray(sorted(sentences), dtype=np.int64)
    return Alignment(chosen, described, answers, findings, reason)


def confused_pairs(images: Floats, names: Floats, logit_scale: float, classes: Ints) -> list[tuple[int, int]]:
    """Return pairs of classes that exchange images, by names `(classes, width)`, those with the lower ids first."""
    probabilities = softmax_rows(logit_scale * (images @ names.T))
    prototypes = class_prototypes(images, probabilities.argmax(axis=1), names)
    closeness = np.triu(class_closeness(prototypes, names, probabilities), 1)
    return [(int(a), int(b)) for a, b in np.argwhere(closeness >= CONFUSED) if np.isin((a, b), classes).all()]


def choose_descriptions(
    images: Floats, descriptions: Mapping[int, Floats], logit_scale: float, *, runs: int = 1, seed: int = 0
) -> dict[int, int]:
    """Return the position of the best description of each class, by class id (Appendix B).

    The remaining images (I_final) are clustered into as many clusters as a class has descriptions `(n, width)`, or as
    there are images if these are fewer. Each description has a probability for each centroid, the softmax of the scaled
    cosine over the centroids; the description of the most probable pair is chosen. With several runs, the probability
    of a description's best centroid is averaged over as many clusterings; one run is the paper. Without images, the
    first description is chosen.
    """
    images = np.ascontiguousarray(images, dtype=np.float32)
    centroids: dict[int, list[Floats]] = {}
    chosen = {}
    for class_id, texts in descriptions.items():
        n_clusters = min(len(texts), len(images))
        if n_clusters not in centroids:  # classes with the same number of descriptions share the clusters
            generators = [np.random.default_rng([seed, run]) for run in range(runs)]
            centroids[n_clusters] = [ShrinkingClusters(images, n_clusters, each).centroids for each in generators]
        chosen[class_id] = best_description(texts, centroids[n_clusters], logit_scale) if n_clusters else 0
    return chosen


def best_description(texts: Floats, clusterings: list[Floats], logit_scale: float) -> int:
    """Return the text that is most probable for a centroid, on average over clusterings."""
    matches = [match_texts(texts, centroids, logit_scale) for centroids in clusterings]
    # Ranked by 1 - p, which is exact where p rounds to one.
    against = np.mean([match.odds_against / (1 + match.odds_against) for match in matches], axis=0)
    similarity = np.mean([match.similarity for match in matches], axis=0)
    return int(np.lexsort((-similarity, against))[0])


def choose_texts(
    images: Floats, names: Floats, described: Floats, logit_scale: float, labeled: tuple[Floats, Ints] | None = None
) -> tuple[bool, str]:
    """Return whether descriptions are used, and why: by labels if these clearly differ, else by the unlabeled images.

    Only the labels of classes that have descriptions count.
    """
    n_names, n_described, n_different, n_labels = 0, 0, 0, 0
    if labeled is not None:
        vectors, labels = (part[(names != described).any(axis=1)[labeled[1]]] for part in labeled)
        right = [(vectors @ texts.T).argmax(axis=1) == labels for texts in (names, described)]
        n_names, n_described = (int(np.count_nonzero(one)) for one in right)
        n_different, n_labels = int(np.count_nonzero(right[0] != right[1])), len(labels)
    if abs(n_described - n_names) > CLEAR_DIFFERENCE * n_different**0.5:
        is_described = n_described > n_names
        reason = f"Of {n_labels} labels, descriptions alone get {n_described} right and names {n_names}"
    else:
        with threads_for(images.size * max(names.shape)):
            is_described = descriptions_help(images, names, described, logit_scale)
        reason = f"Descriptions separate the images {'better' if is_described else 'no better'} than the names alone"
    choice = "are used" if is_described else "are not used (describe=all uses descriptions anyway)"
    return is_described, f"{reason}, so descriptions {choice}."


def descriptions_help(images: Floats, names: Floats, described: Floats, logit_scale: float) -> bool:
    """Return whether descriptions pick out more coherent groups of images than the names do, without labels.

    The images that the text of a class picks out, softly or as its top images, have a mean. The farther these means lie
    from the center of all images, in whitened coordinates and beyond chance, the better the texts separate the images.
    The answer is for all described classes at once: decided class by class, accuracy is lower
    (`benchmarks/descriptions.py`).
    """
    before, after = coherence_of_texts(images, names, described, logit_scale)
    gains = np.log(np.maximum(after.mean(axis=1), 1e-6) / np.maximum(before.mean(axis=1), 1e-6))
    return bool(gains.sum() > 0)


def coherence_of_texts(images: Floats, names: Floats, described: Floats, logit_scale: float) -> tuple[Floats, Floats]:
    """Return how coherent the images are that each class picks out, by name and described, `(2, classes)` each.

    The rows are for all images, weighted by probability, and for the top images. Texts of both kinds are compared with
    the same mean over images and the same spread over classes.
    """
    centered = images - images.mean(axis=0)
    variances, axes = np.linalg.eigh(centered.T @ centered / len(images))
    scale = np.sqrt((1 - SHRINKAGE) * variances + SHRINKAGE * max(float(variances.mean()), 1e-12))
    whitened = np.asarray((centered @ axes) / scale, dtype=np.float32)  # coordinates of nearly equal variance
    by_name, by_text = (np.float32(logit_scale) * (images @ texts.T) for texts in (names, described))
    by_name, by_text = by_name - by_name.mean(axis=0), by_text - by_text.mean(axis=0)
    by_text *= by_name.std(axis=1).mean() / max(float(by_text.std(axis=1).mean()), 1e-12)
    return _coherence(whitened, by_name), _coherence(whitened, by_text)


def _coherence(whitened: Floats, scores: Floats) -> Floats:
    """Return the squared distance of class means from the center beyond chance, weighted and of the top images."""
    n_images, n_classes = scores.shape
    probabilities = softmax_rows(scores)
    chance = float((whitened**2).sum(axis=1).mean())
    counts = np.maximum(probabilities.sum(axis=0), 1e-9)
    effective = counts**2 / np.maximum((probabilities**2).sum(axis=0), 1e-12)
    weighted = (((probabilities.T @ whitened) / counts[:, None]) ** 2).sum(axis=1) - chance / effective
    k = min(n_images, max(4, n_images // n_classes // 4))
    top = np.argpartition(-probabilities, k - 1, axis=0)[:k]
    typical = (whitened[top].mean(axis=0) ** 2).sum(axis=1) - chance / k
    return np.stack([weighted, typical])
