"""Concept alignment as methods use it: on a task, with the run's describer, remarks and records."""

from __future__ import annotations

from functools import partial

from captune.backbones.base import Backbone
from captune.concepts.alignment import Alignment, Choice, Scope, align_concepts
from captune.concepts.mismatch import MismatchSettings
from captune.core import distributed
from captune.core.arrays import Floats
from captune.data.task import AdaptationTask
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
    found = align() if distributed.size() == 1 else Alignment.unpack(*distributed.from_first(lambda: align().pack()))
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
