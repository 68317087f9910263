"""Concept alignment: find the names that mislead, have them described, and say what stands for each class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from captune.concepts.descriptions import choose_descriptions, mean_descriptions
from captune.concepts.mismatch import MismatchFindings, MismatchSettings, detect_mismatch
from captune.core.arrays import Floats, Ints
from captune.describers.base import Describer, Descriptions, describe_classes

Scope = Literal["mismatched", "all"]
Choice = Literal["best", "mean"]


@dataclass(frozen=True)
class Alignment:
    """What concept alignment found.

    Attributes:
        findings: The mismatch detection's own findings.
        descriptions: What the describer answered, and its problems, by class name.
        sentences: The sentences that now stand for a class, by class id.
        vectors: Their embedding, by class id, `(width,)` each.
    """

    findings: MismatchFindings
    descriptions: Descriptions
    sentences: Mapping[int, tuple[str, ...]]
    vectors: Mapping[int, Floats]

    def undescribed(self) -> Ints:
        """Return the classes whose name misleads and that nothing else stands for."""
        return np.asarray([c for c in self.findings.mismatched if int(c) not in self.vectors], dtype=np.int64)


def align_concepts(
    image_embeddings: Floats,
    class_embeddings: Floats,
    names: Sequence[str],
    logit_scale: float,
    describer: Describer,
    embed: Callable[[Sequence[str]], Floats],
    *,
    settings: MismatchSettings | None = None,
    classes: Ints | None = None,
    describe: Scope = "mismatched",
    choose: Choice = "best",
    phrase: str = "{}",
    n: int = 5,
    advance: Callable[[int], None] | None = None,
) -> Alignment:
    """Find misleading names among `classes`, describe them and choose what stands for them (Section 3.1).

    With `describe = "mismatched"` and `choose = "best"` this is the paper: only misleading names are described, and
    of n descriptions the best stands for the class (Appendix B). `choose = "mean"` takes the mean of all n, and
    `describe = "all"` describes every class and takes the mean of its name and descriptions.
    """
    findings = detect_mismatch(image_embeddings, class_embeddings, logit_scale, settings, classes)
    wanted = findings.classes if describe == "all" else findings.mismatched
    ids = {names[class_id]: int(class_id) for class_id in wanted}
    answers = describe_classes(describer, list(ids), phrase=phrase, n=n, advance=advance)
    texts = {ids[name]: tuple(sentences) for name, sentences in answers.found.items()}
    embedded = {class_id: embed(sentences) for class_id, sentences in texts.items()}
    if describe == "all":
        return Alignment(findings, answers, texts, mean_descriptions(embedded, class_embeddings))
    if choose == "mean":
        return Alignment(findings, answers, texts, mean_descriptions(embedded))
    best = choose_descriptions(
        image_embeddings,
        findings.remaining,
        embedded,
        logit_scale,
        runs=findings.runs,
        seed=(settings or MismatchSettings()).seed,
    )
    sentences = {class_id: (texts[class_id][choice.index],) for class_id, choice in best.items()}
    vectors = {class_id: embedded[class_id][choice.index] for class_id, choice in best.items()}
    return Alignment(findings, answers, sentences, vectors)
