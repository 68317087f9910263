"""The first pseudo-labels, before any training: D_PL of the paper (Section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from captune.core.arrays import Bools, Floats, Ints, softmax_rows
from captune.core.errors import InputError, raise_all
from captune.labeling.leading import Scores, assign_some
from captune.labeling.pseudo_labels import PseudoLabels, Source
from captune.labeling.selection import Classes, class_mask

Ranking = Literal["cosine", "probability"]


def first_labels(
    image_embeddings: Floats,
    class_embeddings: Floats,
    logit_scale: float,
    described: Mapping[int, Floats] | None = None,
    *,
    k: int = 16,
    allowed: Classes | None = None,
    rank_described_by: Ranking = "cosine",
) -> PseudoLabels:
    """Return k images for every allowed class: by its description where it has one, else by its name.

    `described` holds the embedding of the chosen description of each class whose name misleads. It takes the
    place of the class name, and the zero-shot probabilities over the allowed classes with these texts are the one
    scale on which all classes compare. An image that several classes want goes to the one it is most probable
    in, and the place goes to the next image. Within a described class images are ranked by their cosine with the
    description, as in the paper, or by probability; within the others by probability.

    The two kinds of score must not be compared directly: a cosine of 0.3 says nothing beside a probability of 0.9.
    Ranking by probability suits mediocre descriptions better, ranking by cosine good ones.
    """
    _check(image_embeddings, class_embeddings, described or {}, rank_described_by)
    n_classes = len(class_embeddings)
    is_allowed = class_mask(allowed, n_classes)
    texts, is_described = _aligned_texts(class_embeddings, described or {})
    ranks_by_cosine = is_described & (rank_described_by == "cosine")

    def scores_of(rows: slice | Ints) -> Scores:
        cosines = np.asarray(image_embeddings[rows] @ texts.T, dtype=np.float32)
        probabilities = softmax_rows(np.where(is_allowed, logit_scale * cosines, np.float32(-np.inf)))
        preferences = np.where(is_allowed, probabilities, np.float32(-np.inf))
        return Scores(preferences, np.where(ranks_by_cosine, cosines, probabilities))

    quota = np.full(n_classes, k, dtype=np.int64)
    images, labels, confidence = assign_some(len(image_embeddings), scores_of, quota)
    return PseudoLabels(
        images,
        labels,
        confidence,
        n_classes,
        round=np.zeros(len(images), dtype=np.int64),
        source=np.where(is_described[labels], int(Source.DESCRIPTION), int(Source.NAME)),
    )


def _aligned_texts(class_embeddings: Floats, described: Mapping[int, Floats]) -> tuple[Floats, Bools]:
    texts = np.array(class_embeddings, dtype=np.float32)
    is_described = np.zeros(len(texts), dtype=np.bool_)
    for class_id, embedding in described.items():
        texts[class_id] = embedding
        is_described[class_id] = True
    return texts, is_described


def _check(image_embeddings: Floats, class_embeddings: Floats, described: Mapping[int, Floats], ranking: str) -> None:
    width = class_embeddings.shape[-1]
    if image_embeddings.ndim != 2 or image_embeddings.shape[1] != width or class_embeddings.ndim != 2:
        raise InputError(
            "Expected embeddings (images, width) and (classes, width), "
            f"got {image_embeddings.shape} and {class_embeddings.shape}."
        )
    problems = [
        f"class {class_id}: expected an id in 0..{len(class_embeddings) - 1} and a vector of shape ({width},), "
        f"got shape {np.shape(embedding)}"
        for class_id, embedding in described.items()
        if not 0 <= class_id < len(class_embeddings) or np.shape(embedding) != (width,)
    ]
    if ranking not in ("cosine", "probability"):
        problems.append(f"rank_described_by: expected 'cosine' or 'probability', got {ranking!r}")
    raise_all(problems, "These descriptions cannot be used")
