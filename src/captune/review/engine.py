"""What a session computes with: embeddings of images and texts in memory, and any method on top of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from captune.backbones.base import Backbone
from captune.backbones.precomputed import Precomputed
from captune.core import runtime
from captune.core.arrays import Bools, Floats, Ints
from captune.core.errors import InputError
from captune.core.files import digest, write_json
from captune.data.images import ImageCollection, no_usable_image
from captune.data.precomputed import ClassTexts, Embeddings
from captune.data.task import AdaptationTask, LabeledImages
from captune.data.vocabulary import NONE, Vocabulary, fill
from captune.describers.base import describe_classes, describer_of
from captune.describers.none import NoDescriber
from captune.embeddings.embed import embed_classes, embed_images, embed_texts
from captune.embeddings.predictions import Predictions
from captune.embeddings.similarity import find_outliers_and_duplicates
from captune.methods.base import Context
from captune.plan import Plan, change_settings
from captune.results.classifier import Classifier
from captune.results.finishing import Finished, environment_of, finish
from captune.results.run import Run
from captune.results.run_folder import CARD, read_run_card
from captune.review.answers import Answers
from captune.review.estimate import AccuracyEstimate

T = TypeVar("T")
METHOD = "transductive"
"""The method of a session: every change takes effect within a second."""


def applied(answers: Answers) -> str:
    """Return a digest of what the classifier depends on: classes, their texts and labels; not checks."""
    texts = [(name, [(part, answers.descriptions.get(part)) for part in answers.parts(name)]) for name in answers.names]
    labels = sorted((image, a.label, a.part, a.is_group) for image, a in answers.training().items())
    return digest(repr((texts, labels)).encode("utf-8", "surrogatepass"), 8)


@dataclass(frozen=True)
class Start:
    """What a session begins with: classes, their descriptions, and labels by image name."""

    names: tuple[str, ...]
    descriptions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    offered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Descriptions by a describer, which are used if they separate the images better than the names."""


class Engine:
    """Embeddings in memory, and the classifier that the last adaptation made."""

    classifier: Classifier
    probabilities: Floats
    """Of all images, as the classifier sees them, `(images, classes)`."""

    def __init__(
        self, plan: Plan, backbone: Backbone | None = None, start: Start | None = None, quiet: bool = False
    ) -> None:
        self.folder: Path | None = None
        self.is_theirs = False
        """Whether somebody else made the run, and the user did not name its images."""
        self.plan, self.cache = plan, plan.cache
        self.runtime = runtime.start(plan.settings, quiet=True)
        self.backbone = (backbone or plan.open_backbone(self.runtime)).to(self.runtime.device)
        loud = dataclasses.replace(self.runtime, quiet=quiet)
        embedded = embed_images(self.backbone, plan.images, self.cache, loud, plan.settings.batch_size)
        if not len(embedded.image_index):
            raise InputError(no_usable_image(plan.images, embedded.skipped))
        self.all_images, self._readable, self.skipped = plan.images, embedded.image_index, embedded.skipped
        self.images: ImageCollection = plan.images.subset(embedded.image_index)
        self.rows = {self.images.name(i): i for i in range(len(self.images))}
        """The position of each readable image by its name."""
        self.known = set(self.rows)
        """The images that could be read when the run was made, or otherwise now."""
        self._embedded = Embeddings(embedded.vectors, self.rows)
        self.vectors: Floats = embedded.vectors
        self.start = start or self._start_of(plan)
        self._texts: dict[str, Floats] = {}
        self._fit_scores: dict[bytes, Floats] = {}
        self._keeps_zero_shot: bool | None = None
        self.last: Finished | None = None
        """What the last adaptation made; None while the classifier is that of a run."""
        self.notes: list[str] = []
        """What to tell with the next change, such as which method adapts if it is not the one of the run."""
        self.review: dict[str, Any] = {}
        """What run.json says about people's answers, such as the looks of `accept`."""

    @cached_property
    def examined(self) -> tuple[Bools, Bools]:
        """Return which images are outliers, and which have duplicates, each `(images,)`."""
        return find_outliers_and_duplicates(self.vectors)

    @property
    def fits(self) -> Floats | None:
        """Return how well each image fits the names, `(images,)`; None before the first adaptation."""
        return None if self.last is None else self.last.predictions.fits

    def set_method(self, method: str | None, settings: Mapping[str, Any]) -> None:
        """Use another method, or other settings of it."""
        built = change_settings(self.plan.all_settings(), {"method": method, **settings})
        self.plan = dataclasses.replace(self.plan, settings=built[0], method=built[1])
        self._keeps_zero_shot = None

    def on(self, images: ImageCollection) -> Engine:
        """Return the same on other images."""
        other = Engine(dataclasses.replace(self.plan, images=images), self.backbone, self.start, quiet=True)
        other.folder, other.is_theirs, other.review, other.notes = self.folder, self.is_theirs, self.review, self.notes
        return other

    def adopt(self, classifier: Classifier) -> None:
        """Use an existing classifier until the next adaptation."""
        self.classifier = classifier
        if classifier.tuner.edits_images:
            found = classifier.compute(self.images, None, self.runtime, self.plan.settings.batch_size)
            self.probabilities = found.probabilities
        else:
            self.probabilities = classifier.score_embeddings(self.vectors)

    def here(self, found: Mapping[str, T]) -> dict[int, T]:
        """Return what is known about images that are here, by position."""
        return {self.rows[image]: value for image, value in found.items() if image in self.rows}

    def adapt(self, answers: Answers) -> Floats:
        """Adapt to all images with the labels of some, and return the probabilities of all, `(images, classes)`.

        The parts of merged classes are adapted as classes of their own, and united afterward: a merge never moves an
        image from its new class to another one.
        """
        vocabulary = self.vocabulary(answers)
        backbone = self._remembered(vocabulary)
        task = self._task(vocabulary, answers, backbone)
        offered = {name: list(texts) for name, texts in self.start.offered.items() if name in vocabulary.names}
        describer = (describer_of(offered) if offered else None) or NoDescriber()
        size = self.plan.settings.batch_size
        context = Context(self.runtime, self.cache, size, describer, fit_scores=self._fit_scores)
        plan = dataclasses.replace(self.plan, task=task, images=self._embedded)
        # Without labels, zero-shot is kept or not as in a run: decided once, until the method changes.
        has_labels = len(task.labeled) > 0
        self.last = finish(plan, backbone, context, False if has_labels else self._keeps_zero_shot)
        if not has_labels:
            self._keeps_zero_shot = self.last.kept == "zero_shot"
        n_parts = [len(answers.parts(name)) for name in answers.names]
        made = self.last.classifier
        self.classifier = Classifier(made.tuner, made.class_vectors, answers.names, n_parts)
        self.probabilities = self.classifier.unite(self.last.predictions.probabilities)
        return self.probabilities

    def vocabulary(self, answers: Answers) -> Vocabulary:
        """Return the parts of all classes with the descriptions that people gave; others are up to the method."""
        named = [
            pair for name in answers.names for pair in zip(answers.parts(name), answers.origins(name), strict=True)
        ]
        plain = Vocabulary(tuple(part for part, _ in named), (self.plan.settings.template,))
        described: dict[int, tuple[str, ...]] = {}
        for part_id, (part, origin) in enumerate(named):
            if not self.has_text_encoder:
                described[part_id] = (origin,)
            elif sentences := answers.descriptions.get(part, ()):
                is_from_start = sentences == self.start.descriptions.get(part)
                described[part_id] = sentences if is_from_start else (*plain.texts(part_id), *sentences)
        return plain.with_descriptions(described)

    @property
    def has_text_encoder(self) -> bool:
        """Return whether new names and descriptions can be embedded."""
        return not isinstance(self.backbone, Precomputed)

    def check_texts(self) -> None:
        """Raise an error if new texts cannot be embedded."""
        if not self.has_text_encoder:
            raise InputError(
                "New classes and descriptions need a text encoder: open the session with class names and a backbone."
            )

    def run(self, answers: Answers, predictions: Predictions, estimate: AccuracyEstimate) -> Run:
        """Return the current state as a run."""
        assert self.last is not None
        n_parts = self.classifier.n_parts
        evidence = self.last.collect(predictions if n_parts is None else self.last.predictions)
        if evidence is not None and n_parts is not None:
            evidence = evidence.united(n_parts, self.classifier.unite, predictions.probabilities)
        review = {
            **self.review,
            "accuracy": estimate.as_dict() if estimate else None,
            "n_labels": sum(not answer.is_check for answer in answers.used().values()),
            "applied": applied(answers),
            "start": dataclasses.asdict(self.start),
        }
        return self.last.run(
            environment_of(self.all_images, self.backbone, self.runtime),
            images=self.all_images,
            made=(self.with_encoder(), dataclasses.replace(predictions, image_index=self._readable)),
            skipped=self.skipped,
            evidence=evidence,
            review=review,
            is_theirs=self.is_theirs,
        )

    def remember(self, **facts: Any) -> None:  # noqa: ANN401 (JSON values)
        """Keep what run.json says about people's answers; in the folder, if there is one."""
        self.review |= facts
        if self.folder is not None:
            card = read_run_card(self.folder)
            write_json(self.folder / CARD, {**card, "review": {**card.get("review", {}), **facts}})

    # Inside

    def _start_of(self, plan: Plan) -> Start:
        vocabulary, labeled, describer = plan.task.vocabulary, plan.task.labeled, plan.open_describer()
        names, offered = vocabulary.names, dict[str, tuple[str, ...]]()
        if not isinstance(describer, NoDescriber):
            answers = describe_classes(describer, names, phrase=plan.settings.domain)
            offered = {name: tuple(sentences) for name, sentences in answers.found.items()}
        explicit = {names[c]: tuple(sentences) for c, sentences in vocabulary.descriptions.items()}
        labels = {labeled.images.name(i): names[label] for i, label in enumerate(labeled.labels.tolist())}
        return Start(names, explicit, labels, offered)

    def _task(self, vocabulary: Vocabulary, answers: Answers, backbone: Backbone) -> AdaptationTask:
        ids, texts = {part: i for i, part in enumerate(vocabulary.names)}, embed_classes(backbone, vocabulary)
        here = sorted(self.here(answers.training()).items())
        known, unknown = list[tuple[int, int, bool]](), [row for row, answer in here if answer.label == NONE]
        for row, answer in here:
            if answer.label == NONE:
                continue
            parts = [ids[part] for part in answers.parts(answer.label)]
            # An answer that was given after a merge counts for the part whose text is nearest.
            own = ids[answer.part] if answer.part in ids else parts[int((texts[parts] @ self.vectors[row]).argmax())]
            known.append((row, own, not answer.is_group))
        positions, labels, single = np.asarray(known, dtype=np.int64).reshape(-1, 3).T
        rest: Ints = np.setdiff1d(np.arange(len(self._embedded)), [*positions, *unknown])
        # With a label for every image there is nothing left to predict; a method still needs images to adapt to.
        unlabeled = self._embedded.subset(rest) if len(rest) else self._embedded
        labeled = LabeledImages(self._embedded.subset(positions), labels, single.astype(np.bool_))
        return AdaptationTask(vocabulary, unlabeled, labeled, unknown=self._embedded.subset(unknown))

    def _remembered(self, vocabulary: Vocabulary) -> Precomputed:
        """Return a table of all sentences as a backbone; sentences that are new are embedded first."""
        sentences = [text for c in range(len(vocabulary)) for text in vocabulary.texts(c)]
        sentences += [fill(t, name) for name in vocabulary.names for t in vocabulary.templates]
        sentences += [text for part in vocabulary.names for text in self.start.offered.get(part, ())]
        new = [text for text in dict.fromkeys(sentences) if text not in self._texts]
        if not self.has_text_encoder:
            new = [text for text in new if text in self.start.names]
        if new:
            self._texts |= dict(zip(new, embed_texts(self.backbone, new), strict=True))
        vectors = np.stack(list(self._texts.values()))
        return Precomputed(ClassTexts(tuple(self._texts), vectors, self.backbone.logit_scale))

    def with_encoder(self) -> Classifier:
        """Return the classifier with the true encoders instead of the table of sentences."""
        own, old = self.classifier, self.classifier.tuner
        if old.backbone is self.backbone:
            return own
        tuner = type(old)(self.backbone, old.vocabulary, old.settings)
        tuner.load_state_dict(old.state_dict())
        return Classifier(tuner.to(self.runtime.device), own.class_vectors, own.names, own.n_parts or ())
