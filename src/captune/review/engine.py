"""What a session computes with: embeddings of images and texts in memory, and any method on top of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from captune.backbones.base import Backbone
from captune.backbones.precomputed import Precomputed
from captune.core import runtime
from captune.core.arrays import Floats, Ints
from captune.core.errors import InputError
from captune.core.files import digest
from captune.core.settings import RunSettings
from captune.data.images import ImageCollection, no_usable_image
from captune.data.precomputed import ClassTexts, Embeddings
from captune.data.task import AdaptationTask, LabeledImages
from captune.data.vocabulary import Vocabulary
from captune.describers.base import describe_classes, describer_of
from captune.describers.none import NoDescriber
from captune.embeddings.embed import EmbeddedImages, embed_images, embed_texts
from captune.embeddings.predictions import Predictions
from captune.methods.base import Context
from captune.plan import Plan, change_settings
from captune.results.classifier import Classifier, predict_collection
from captune.results.finishing import Finished, environment_of, finish
from captune.results.run import Run
from captune.results.run_folder import claim_folder, update_review
from captune.review.answers import Answer, Answers
from captune.review.corrections import CHECK, FILE, Correction, Corrections
from captune.review.estimate import AccuracyEstimate

METHOD = "transductive"
"""The method of a session: every change takes effect within a second."""


def applied(corrections: Sequence[Correction]) -> str:
    """Return a digest of the corrections that change the classifier: all but checks and skipped images."""
    used = [said.id for said in corrections if said.kind != "skip" and said.suggestion != CHECK]
    return digest("\n".join(used).encode(), 8)


NOTHING_APPLIED = applied(())


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
        self.plan = plan
        self.runtime = runtime.start(plan.settings, quiet=True)
        self.cache = plan.cache
        self.backbone = (backbone or plan.open_backbone()).to(self.runtime.device)
        loud = dataclasses.replace(self.runtime, quiet=quiet)
        embedded = embed_images(self.backbone, plan.images, self.cache, loud, plan.settings.batch_size)
        if not len(embedded.image_index):
            raise InputError(no_usable_image(plan.images, embedded.skipped))
        self.all_images, self.skipped = plan.images, embedded.skipped
        self.images: ImageCollection = plan.images.subset(embedded.image_index)
        self.vectors: Floats = embedded.vectors
        self._embedded = Embeddings(self.vectors, (self.images.name(i) for i in range(len(self.images))))
        self._rows = {self._embedded.name(i): i for i in range(len(self._embedded))}
        self.start = start or self._start_of(plan)
        self._texts: dict[str, Floats] = {}
        self._keeps_zero_shot: bool | None = None
        self._last: Finished | None = None
        self.notes: list[str] = []

    @property
    def settings(self) -> RunSettings:
        """Return the settings of every run."""
        return self.plan.settings

    @property
    def is_adapted(self) -> bool:
        """Return whether the classifier was made here, and not adopted from a run."""
        return self._last is not None

    @property
    def method(self) -> str:
        """Return the id of the method."""
        return self.settings.method

    def set_method(self, method: str | None, settings: Mapping[str, Any]) -> None:
        """Use another method, or other settings of it."""
        built = change_settings(self.plan.all_settings(), {"method": method, **settings})
        self.plan = dataclasses.replace(self.plan, settings=built[0], method=built[1])
        self._keeps_zero_shot = None

    def adopt(self, classifier: Classifier) -> None:
        """Use an existing classifier until the next adaptation."""
        self.classifier = classifier
        found = predict_collection(
            classifier,
            self.images,
            self.cache,
            self.runtime,
            self.settings.batch_size,
            EmbeddedImages(np.arange(len(self.images)), self.vectors, {}),
        )
        self.probabilities = found.probabilities

    def adapt(self, answers: Answers, training: Mapping[str, Answer]) -> Floats:
        """Adapt to all images with the labels of some, and return the probabilities of all, `(images, classes)`."""
        vocabulary = self.vocabulary(answers)
        backbone = self._remembered(vocabulary, answers)
        task = self._task(vocabulary, answers, training)
        context = Context(self.runtime, self.cache, self.settings.batch_size, self._describer(answers))
        self.notes = []
        plan = dataclasses.replace(self.plan, task=task, images=self._embedded)
        # Without labels, zero-shot is kept or not as in a run: decided once, until the method changes.
        has_labels = len(task.labeled) > 0
        self._last = finish(plan, backbone, context, False if has_labels else self._keeps_zero_shot)
        if not has_labels:
            self._keeps_zero_shot = self._last.kept == "zero_shot"
        self.classifier, self.probabilities = self._last.classifier, self._last.predictions.probabilities
        return self.probabilities

    def vocabulary(self, answers: Answers) -> Vocabulary:
        """Return the classes with the descriptions that people gave; others are up to the method."""
        plain = Vocabulary(tuple(answers.names), (self.settings.template,))
        described = {}
        for class_id, name in enumerate(answers.names):
            sentences = answers.descriptions.get(name, ())
            if not self.has_text_encoder:
                described[class_id] = answers.origins(name)
            elif sentences:
                is_from_start = sentences == self.start.descriptions.get(name)
                described[class_id] = sentences if is_from_start else (*plain.texts(class_id), *sentences)
        return plain.with_descriptions(described)

    @property
    def has_text_encoder(self) -> bool:
        """Return whether new names and descriptions can be embedded."""
        return not isinstance(self.backbone, Precomputed)

    def check_texts(self) -> None:
        """Raise an error if new texts cannot be embedded."""
        if not self.has_text_encoder:
            raise InputError(
                "New classes and descriptions need a text encoder, but the class texts are embedded already. Open the "
                "session with class names and a backbone."
            )

    def run(
        self,
        answers: Answers,
        corrections: Corrections,
        predictions: Predictions,
        estimate: AccuracyEstimate | None,
    ) -> Run:
        """Return the current state as a run."""
        assert self._last is not None
        review = {
            "accuracy": None if estimate is None else estimate.as_dict(),
            "n_labels": sum(not answer.is_check for answer in answers.used().values()),
            "applied": applied(corrections.active()),
            "start": dataclasses.asdict(self.start),
        }
        readable = np.setdiff1d(np.arange(len(self.all_images)), np.asarray(list(self.skipped), dtype=np.int64))
        return self._last.run(
            environment_of(self.all_images, self.backbone, self.runtime),
            images=self.all_images,
            predictions=Predictions(readable, predictions.probabilities),
            skipped=self.skipped,
            classifier=self.with_encoder(),
            evidence=self._last.collect(predictions),
            review=review,
        )

    def save(
        self,
        folder: str | Path | None,
        overwrite: bool,
        answers: Answers,
        corrections: Corrections,
        predictions: Predictions,
        estimate: AccuracyEstimate | None,
    ) -> Path:
        """Write the run folder and add the corrections to the file in it."""
        target = Path(folder) if folder is not None else self.folder
        if target is None:
            raise InputError("Where should the run be saved? Pass a folder.")
        is_own = self.folder is not None and target.resolve() == self.folder.resolve()
        if self._last is None:  # nothing changed but the estimate
            if not is_own:
                raise InputError(f"Nothing changed yet. Copy the run folder {str(self.folder)!r} instead.")
            update_review(target, accuracy=None if estimate is None else estimate.as_dict())
            return target
        made = self.run(answers, corrections, predictions, estimate)
        with ExitStack() as stack:
            stack.enter_context(claim_folder(target, overwrite or is_own, None))
            made.write(target)
        stored = Corrections(target / FILE, corrections.person)
        stored.extend(corrections)
        self.folder = target
        return target

    # Inside

    def _start_of(self, plan: Plan) -> Start:
        vocabulary, labeled = plan.task.vocabulary, plan.task.labeled
        names = vocabulary.names
        describer = plan.open_describer()
        offered: dict[str, tuple[str, ...]] = {}
        if not isinstance(describer, NoDescriber):
            answers = describe_classes(describer, names, phrase=plan.settings.domain)
            offered = {name: tuple(sentences) for name, sentences in answers.found.items()}
        return Start(
            names,
            {names[c]: tuple(sentences) for c, sentences in vocabulary.descriptions.items()},
            {labeled.images.name(i): names[label] for i, label in enumerate(labeled.labels.tolist())},
            offered,
        )

    def _describer(self, answers: Answers) -> Any:  # noqa: ANN401 (a describer)
        offered = {name: list(texts) for name, texts in self.start.offered.items() if name in answers.names}
        return (describer_of(offered) if offered else None) or NoDescriber()

    def _task(self, vocabulary: Vocabulary, answers: Answers, training: Mapping[str, Answer]) -> AdaptationTask:
        ids = {name: i for i, name in enumerate(answers.names)}
        known = sorted(
            (self._rows[image], ids[answer.label], not answer.is_group) for image, answer in training.items()
        )
        positions, labels, single = np.asarray(known, dtype=np.int64).reshape(-1, 3).T
        rest: Ints = np.setdiff1d(np.arange(len(self._embedded)), positions)
        # With a label for every image there is nothing left to predict; a method still needs images to adapt to.
        unlabeled = self._embedded.subset(rest) if len(rest) else self._embedded
        labeled = LabeledImages(self._embedded.subset(positions), labels, single.astype(np.bool_))
        return AdaptationTask(vocabulary, unlabeled, labeled)

    def _remembered(self, vocabulary: Vocabulary, answers: Answers) -> Precomputed:
        """Return a table of all sentences as a backbone; sentences that are new are embedded first."""
        sentences = [text for c in range(len(vocabulary)) for text in vocabulary.texts(c)]
        sentences += [t.format(name) for name in vocabulary.names for t in vocabulary.templates]
        sentences += [text for name in answers.names for text in self.start.offered.get(name, ())]
        new = [text for text in dict.fromkeys(sentences) if text not in self._texts]
        if not self.has_text_encoder:
            new = [text for text in new if text in self.start.names]
        if new:
            self._texts |= dict(zip(new, embed_texts(self.backbone, new), strict=True))
        vectors = np.stack(list(self._texts.values()))
        return Precomputed(ClassTexts(tuple(self._texts), vectors, self.backbone.logit_scale))

    def with_encoder(self) -> Classifier:
        """Return the classifier with the true encoders instead of the table of sentences."""
        old = self.classifier.tuner
        if old.backbone is self.backbone:
            return self.classifier
        tuner = type(old)(self.backbone, old.vocabulary, old.settings)
        tuner.load_state_dict(old.state_dict())
        return Classifier(tuner.to(self.runtime.device), self.classifier.tuner_name, self.classifier.class_vectors)
