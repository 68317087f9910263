"""Concept alignment as methods use it: on a task, with the run's describer, remarks and records."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captune.backbones.base import Backbone
from captune.concepts.alignment import Alignment, Choice, Scope, align_concepts
from captune.concepts.mismatch import MismatchFindings, MismatchSettings
from captune.core import distributed
from captune.core.arrays import Floats
from captune.data.task import AdaptationTask
from captune.describers.base import Descriptions
from captune.embeddings.embed import embed_texts
from captune.methods.base import Context


def align_task(
    task: AdaptationTask,
    backbone: Backbone,
    image_vectors: Floats,
    class_vectors: Floats,
    context: Context,
    settings: MismatchSettings,
    describe: Scope = "mismatched",
    choose: Choice = "best",
) -> Alignment:
    """Align a task's concepts, say on screen what was found, and record it."""
    names = task.vocabulary.names
    align = partial(
        align_concepts,
        image_vectors,
        class_vectors,
        names,
        backbone.logit_scale,
        context.describer,
        lambda sentences: embed_texts(backbone, sentences),
        settings=settings,
        classes=task.target_classes,
        describe=describe,
        choose=choose,
        phrase=context.domain,
    )
    found = align() if distributed.size() == 1 else _unpack(*distributed.from_first(lambda: _pack(align())))
    mismatched = [names[c] for c in found.findings.mismatched]
    context.say(f"Names that mislead: {', '.join(mismatched) or 'none found'}.")
    missing = [names[c] for c in found.undescribed()]
    if missing:
        context.say(
            f"{len(missing)} of them have no description and keep their name. A description of how such images look "
            "usually finds the right ones: try --describer openai:gpt-4o-mini or --describer file:descriptions.yaml."
        )
    for name, problem in found.descriptions.problems.items():
        context.say(f"{name}: {problem}")
    context.record(
        step="concept_alignment",
        mismatched=mismatched,
        frequency={names[c]: round(float(found.findings.frequency[c]), 4) for c in found.findings.classes},
        concentration={names[c]: round(float(found.findings.concentration[c]), 4) for c in found.findings.classes},
        descriptions={names[c]: list(sentences) for c, sentences in found.sentences.items()},
        problems=dict(found.descriptions.problems),
    )
    return found


def _pack(found: Alignment) -> distributed.Parcel:
    """Return an alignment as it travels: only the first process looks for misleading names and asks about them."""
    findings = {field.name: getattr(found.findings, field.name) for field in fields(MismatchFindings)}
    arrays = {name: value for name, value in findings.items() if isinstance(value, np.ndarray)}
    vectors = {f"vector.{class_id}": vector for class_id, vector in found.vectors.items()}
    facts = {
        "findings": {name: value for name, value in findings.items() if name not in arrays},
        "descriptions": [found.descriptions.found, found.descriptions.problems],
        "sentences": [[class_id, list(sentences)] for class_id, sentences in found.sentences.items()],
    }
    return {name: torch.tensor(array) for name, array in {**arrays, **vectors}.items()}, facts


def _unpack(tensors: dict[str, Tensor], facts: dict[str, Any]) -> Alignment:
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    sentences = {class_id: tuple(words) for class_id, words in facts["sentences"]}
    vectors = {class_id: arrays.pop(f"vector.{class_id}") for class_id in sentences if f"vector.{class_id}" in arrays}
    findings = MismatchFindings(**arrays, **facts["findings"])
    return Alignment(findings, Descriptions(*facts["descriptions"]), sentences, vectors)
