"""CAP: concept alignment, then prompts or adapters tuned with a confusion-aware calibrated margin (ICML 2025)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from captune.backbones.base import Backbone
from captune.concepts.confusion import class_prototypes, class_similarity, confident_counts, confusion_margin
from captune.concepts.mismatch import PAPER_MISMATCH, MismatchSettings
from captune.core import registry
from captune.core.arrays import Floats, Ints
from captune.core.errors import InputError
from captune.data.task import AdaptationTask
from captune.embeddings.embed import embed_classes, score
from captune.labeling.gaussian_mixture import fit_gaussian_mixture
from captune.labeling.neighborhood import neighbor_consensus, neighbor_graph
from captune.labeling.pseudo_labels import PseudoLabels, Source
from captune.labeling.selection import class_mask, first_pseudo_labels, restrict_to, top_k_per_class
from captune.methods import _estimate
from captune.methods._alignment import align_task
from captune.methods._cap_settings import QUICK, CapSettings
from captune.methods.base import Context, Method
from captune.training.feeds import Request
from captune.training.loop import Course, Optimization, fit
from captune.training.objective import ConfusionObjective, LabeledViews
from captune.tuners.base import Tuner
from captune.tuners.feature_adapter import FeatureAdapter


class Cap(Method):
    """Concept-adaptive pseudo-labeling."""

    Settings: ClassVar[type[CapSettings]] = CapSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"full": {}, "quick": QUICK}

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Align concepts, take the first pseudo-labels, then train while they grow."""
        settings: CapSettings = self.settings
        objective, course = self.prepare(task, backbone, context)
        chosen = {field.name: getattr(settings, field.name) for field in fields(Optimization)}
        with context.runtime.training(encodes_images=objective.tuner.edits_images):
            fit(objective, course, Optimization(**chosen), context.runtime, context.checkpoints)
        context.history.append((settings.epochs, course.reliable))
        tuner, keeps_start = objective.tuner, settings.start_share > 0 and not len(task.seen_classes)
        return tuner.with_start(settings.start_share) if keeps_start and isinstance(tuner, FeatureAdapter) else tuner

    def prepare(
        self, task: AdaptationTask, backbone: Backbone, context: Context
    ) -> tuple[ConfusionObjective, CapCourse]:
        """Return the student before its first step, and the course that will train it."""
        settings: CapSettings = self.settings
        if len(task.unlabeled) == 0:
            raise InputError(
                f"All {len(task.labeled.labels)} images have a given label, and CAP learns from images without one. "
                "Add unlabeled images, or leave labels out of --labels."
            )
        unlabeled = context.embed(backbone, task.unlabeled)
        texts = embed_classes(backbone, task.vocabulary)
        vocabulary, described = task.vocabulary, {}
        sizes = _estimate.Sizes(len(unlabeled.vectors), len(task.labeled.labels), len(vocabulary))
        _estimate.tell(backbone, vocabulary, settings, sizes, context.runtime)

        # Section 3.1: which names mislead, and what stands for them instead?
        if settings.concept_alignment:
            detection = PAPER_MISMATCH if settings.detection == "paper" else MismatchSettings()
            detection = replace(detection, seed=context.runtime.seed)
            found = align_task(
                task, backbone, unlabeled.vectors, texts, context, detection, settings.describe, settings.choose
            )
            described = dict(found.vectors)
            if settings.class_texts == "aligned":
                own = {c: vocabulary.texts(c) if settings.describe == "all" else () for c in found.sentences}
                vocabulary = vocabulary.with_descriptions({c: own[c] + s for c, s in found.sentences.items()})

        # Sections 3.2 and 3.3: the student learns from D_PL and from its own confident predictions.
        device = context.runtime.device
        tuner: Tuner = registry.load("tuners", settings.tuner)(backbone, vocabulary).to(device)
        feed = context.feed(tuner, task, settings.strong_views)
        allowed = torch.from_numpy(class_mask(task.target_classes, len(texts)))
        objective = ConfusionObjective(
            tuner, feed, allowed, settings.tau, settings.adapter_width, settings.independent_adapters
        ).to(device)
        course = CapCourse(task, objective, unlabeled.vectors, context, settings)
        course.take_first_labels(texts, described)
        return objective, course


class CapCourse(Course):
    """What happens around the steps: D_PL grows, and every epoch has its margin."""

    def __init__(
        self,
        task: AdaptationTask,
        objective: ConfusionObjective,
        vectors: Floats,
        context: Context,
        settings: CapSettings,
    ) -> None:
        self.task, self.objective, self.vectors = task, objective, vectors
        self.context, self.settings = context, settings
        self.n_classes = len(task.vocabulary)
        self.reliable = PseudoLabels.empty(self.n_classes)  # D_PL
        self.accepted = np.zeros(self.n_classes, dtype=np.int64)
        # Given images of classes that may be pseudo-labeled are neighbors too, and what they say is known.
        given = context.embed(objective.tuner.backbone, task.labeled.images)
        labels = task.labeled.labels[given.image_index]
        speaks = np.isin(labels, task.target_classes)
        self.known = np.eye(self.n_classes, dtype=np.float32)[labels[speaks]]
        everyone = np.concatenate([vectors, given.vectors[speaks]])
        self.graph = neighbor_graph(everyone, settings.neighbors) if settings.neighbors else None
        self.said: Ints | None = None  # what neighbors say of each image

    def take_first_labels(self, texts: Floats, described: Mapping[int, Floats]) -> None:
        """Fill D_PL before any training, by description where a name misleads."""
        scale, settings = self.objective.tuner.backbone.logit_scale, self.settings
        targets = self.task.target_classes
        if self.graph is None and settings.start_from == "zero_shot":
            self.reliable = first_pseudo_labels(self.vectors, texts, scale, described, k=settings.k, allowed=targets)
            return
        aligned = texts.copy()
        for class_id, vector in described.items():
            aligned[class_id] = vector
        if settings.start_from == "transductive":
            given = self.context.embed(self.objective.tuner.backbone, self.task.labeled.images)
            given_labels = self.task.labeled.labels[given.image_index]
            guess = fit_gaussian_mixture(
                self.vectors, aligned, scale, labeled=given.vectors, labels=given_labels, allowed=targets
            ).probabilities
        else:
            guess = restrict_to(score(self.vectors, aligned, scale), targets)
        if self.graph is None:
            self.reliable = top_k_per_class(guess, settings.k, targets)
        else:
            self._ask_neighbors(guess, settings.k, epoch=0)

    def begin(self, epoch: int) -> None:
        """Grow D_PL every few epochs (Appendix B) and compute the margin of the epoch (Section 3.2)."""
        settings = self.settings
        is_released = settings.recipe == "released"
        if epoch and (is_released or epoch % settings.grow_every == 0):
            self.context.history.append((epoch, self.reliable))
            self._grow(epoch)
        if not settings.margin or epoch == 0:  # the first epoch only warms up
            return
        images, probabilities, classes = self.objective.look(self.reliable.image_index)
        prototypes = class_prototypes(images, self.reliable.labels, classes)
        similarity = class_similarity(prototypes, classes)
        counts = self.accepted if is_released else confident_counts(probabilities, settings.tau)
        scale = None if is_released or not settings.scale_margin else self.objective.tuner.backbone.logit_scale
        margin = confusion_margin(
            similarity,
            counts,
            margin=settings.margin_scale,
            logit_scale=scale,
            recipe=settings.recipe,
            labeled=self.task.seen_classes,
        )
        self.context.arrays.update(similarity=similarity, margin=margin.matrix)
        self.objective.margin = torch.from_numpy(margin.matrix).to(self.context.runtime.device)

    def batches(self, epoch: int, first_step: int) -> Iterator[LabeledViews]:
        """Yield steps over D_PL, the labeled and the unlabeled images, drawn by seed and epoch alone."""
        settings, feed = self.settings, self.objective.feed
        device = self.context.runtime.device
        generator = np.random.default_rng([self.context.runtime.seed, epoch])
        sizes = (len(self.reliable), len(feed.given_labels), len(self.vectors))
        drawn = [_draw(generator, size, settings.iterations, settings.train_batch) for size in sizes]
        of_image = np.full(len(self.vectors), -1, dtype=np.int64)
        of_image[self.reliable.image_index] = self.reliable.labels
        requests = [
            Request(self.reliable.image_index[drawn[0][i]], drawn[1][i], drawn[2][i])
            for i in range(settings.iterations)
        ]
        for views in feed.views(requests, epoch, first_step):
            request = views.request
            said = None if self.said is None else torch.from_numpy(self.said[request.unlabeled]).to(device)
            yield LabeledViews(
                views,
                torch.from_numpy(of_image[request.reliable]).to(device),
                torch.from_numpy(feed.given_labels[request.given]).to(device),
                said,
            )

    def end(self, epoch: int, sums: Mapping[str, Tensor]) -> None:
        """Record the epoch, and how many labels of each class the student made and accepted."""
        self.accepted = sums["accepted"].cpu().numpy()
        self.context.record(
            step="epoch",
            epoch=epoch + 1,
            loss=round(float(sums["loss"]) / self.settings.iterations, 6),
            accepted_share=round(float(self.accepted.sum()) / max(1, int(sums["offered"])), 4),
            accepted=self.accepted.tolist(),
            reliable=self.reliable.counts().tolist(),
            largest_margin=round(float(self.objective.margin.max()), 4) if self.objective.margin is not None else 0.0,
        )
        shares = [facts["accepted_share"] for facts in self.context.rounds if facts["step"] == "epoch"]
        if falls_apart(shares):
            self.context.say(
                f"In epoch {epoch + 1} the student accepts {shares[-1]:.1%} of the images, {max(shares):.0%} at its "
                "best: the training is falling apart. Stop it, and start anew with --set gradient_clip=1 or a lower "
                "learning_rate."
            )

    def describe(self, epoch: int, sums: Mapping[str, Tensor]) -> str:
        """Return loss, accepted share and imbalance so far in this epoch."""
        accepted = sums["accepted"]
        n_accepted, offered = int(accepted.sum()), max(1, int(sums["offered"]))
        steps = max(1, offered // self.settings.train_batch)
        uneven = float(accepted.max()) * self.n_classes / max(1, n_accepted)
        return f"loss {float(sums['loss']) / steps:.3f}, accepted {n_accepted / offered:.0%}, imbalance {uneven:.1f}"

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return D_PL with its history, the margin and the counts."""
        tensors = {"accepted": torch.from_numpy(self.accepted)}
        if self.objective.margin is not None:
            tensors["margin"] = self.objective.margin
        tensors |= {f"shown.{name}": torch.tensor(array) for name, array in self.context.arrays.items()}
        if self.said is not None:
            tensors["said"] = torch.from_numpy(self.said)
        for epoch, labels in (*self.context.history, (-1, self.reliable)):
            for name in ("image_index", "labels", "confidence", "round", "source"):
                tensors[f"labels.{epoch}.{name}"] = torch.from_numpy(getattr(labels, name))
        epochs = [epoch for epoch, _ in self.context.history]
        return tensors, {"rounds": self.context.rounds, "history": epochs}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        device = self.context.runtime.device
        self.accepted = tensors["accepted"].numpy()
        self.objective.margin = tensors["margin"].to(device) if "margin" in tensors else None
        self.said = tensors["said"].numpy() if "said" in tensors else None
        names = ("image_index", "labels", "confidence", "round", "source")
        read = {
            epoch: PseudoLabels(
                n_classes=self.n_classes, **{name: tensors[f"labels.{epoch}.{name}"].numpy() for name in names}
            )
            for epoch in (*facts["history"], -1)
        }
        self.reliable = read.pop(-1)
        self.context.history[:] = list(read.items())
        self.context.rounds[:] = facts["rounds"]
        shown = {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith("shown.")}
        self.context.arrays.update({name: tensor.numpy() for name, tensor in shown.items()})

    def _grow(self, epoch: int) -> None:
        settings, n_images = self.settings, len(self.vectors)
        _, probabilities, _ = self.objective.look(np.arange(n_images))
        n_targets = len(self.task.target_classes)
        if settings.recipe == "released":
            most = max(settings.k, min(1000, int(0.8 * n_images / n_targets)))
            k = settings.k + int((most - settings.k) * min(1.0, epoch / (0.7 * settings.epochs)))
            found = top_k_per_class(probabilities, k, self.task.target_classes)
            self.reliable = found.stamped(epoch, Source.MODEL)
        elif self.graph is not None:
            even = max(settings.k, n_images / n_targets)
            k = int(settings.k + (even - settings.k) * epoch / settings.epochs)
            self._ask_neighbors(probabilities, k, epoch)
        else:
            n_new = max(1, int(n_images * settings.grow_every / (settings.epochs * n_targets)))
            free = np.setdiff1d(np.arange(n_images), self.reliable.image_index)
            found = top_k_per_class(probabilities[free], n_new, self.task.target_classes, predicted_only=True)
            self.reliable = self.reliable.extend(found.reindexed(free).stamped(epoch, Source.MODEL))

    def _ask_neighbors(self, probabilities: Floats, k: int, epoch: int) -> None:
        assert self.graph is not None
        consensus = neighbor_consensus(probabilities, self.graph, self.settings.balance, self.known)
        found = top_k_per_class(consensus, self.settings.k, self.task.target_classes)
        if epoch:  # past the first k, which every class keeps, only images that are predicted as the class come in
            more = top_k_per_class(consensus, k, self.task.target_classes, predicted_only=True)
            found = more.extend(found)
        self.reliable = found.stamped(epoch, Source.MODEL)
        self.said = consensus.argmax(axis=1)


def falls_apart(accepted_shares: Sequence[float]) -> bool:
    """Return whether the last epoch is the first to accept less than a quarter of what the best one did."""
    enough = max(accepted_shares) / 4
    return enough >= 0.025 and len(accepted_shares) > 1 and accepted_shares[-1] < enough <= accepted_shares[-2]


def _draw(generator: np.random.Generator, n_items: int, n_steps: int, size: int) -> list[Ints]:
    """Draw a batch for every step, going through all items before any comes again."""
    if n_items == 0:
        return [np.empty(0, dtype=np.int64) for _ in range(n_steps)]
    rounds = -(-n_steps * size // n_items)
    order = np.concatenate([generator.permutation(n_items) for _ in range(rounds)])
    return [order[i * size : (i + 1) * size] for i in range(n_steps)]
