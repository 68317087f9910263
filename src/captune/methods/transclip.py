"""TransCLIP, zero-shot version: a Gaussian mixture with neighbors and the texts as prior (Zanella et al., 2024)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Gt

from captune.backbones.base import Backbone
from captune.core.arrays import Floats, softmax_rows, unit_rows
from captune.core.settings import NonNegative, Positive
from captune.data.task import AdaptationTask
from captune.embeddings.embed import score
from captune.methods.base import Context, Method
from captune.methods.stata import neighbor_graph
from captune.mixture.gaussian_mixture import MixtureFit
from captune.tuners.base import Tuner
from captune.tuners.gaussian import Gaussian


@dataclass(frozen=True)
class TransClipSettings:
    """The settings of TransCLIP.

    Attributes:
        describe: With `none`, a class is represented by its name; with `all`, by the mean of name and descriptions.
        neighbors: Number of nearest images whose assignments an image is drawn to.
        n_top: Most confident images per class from which the means start.
        iterations: Rounds of estimation of means and variance.
        inner_iterations: Updates of the assignments in each round.
        density_weight: Weight of the Gaussian log-density. The paper's equations leave it at 1; 1/50 reproduces the
            accuracies that its authors' code gives.
        neighbor_weight: Weight of the neighbors' assignments.
        text_weight: Weight of the divergence from the text probabilities.
    """

    describe: Literal["none", "all"] = "none"
    neighbors: NonNegative = 3
    n_top: Positive = 8
    iterations: Positive = 10
    inner_iterations: Positive = 5
    density_weight: Annotated[float, Gt(0)] = 0.02
    neighbor_weight: float = 1 / 3
    text_weight: float = 1.0


class TransClip(Method):
    """A transductive baseline; it uses no labels."""

    Settings: ClassVar[type[TransClipSettings]] = TransClipSettings

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Estimate the mixture from all unlabeled images; new images are classified without neighbors."""
        images = context.embed(backbone, task.unlabeled).vectors
        settings = asdict(self.settings)
        tuner = Gaussian(backbone, context.align_concepts(task, backbone, settings.pop("describe")).vocabulary)
        texts = tuner.class_embeddings().cpu().numpy()
        found = solve_transclip(images, texts, backbone.logit_scale, **settings)
        tuner.set_mixture(found)
        context.record(step="transclip", predicted=np.bincount(found.probabilities.argmax(axis=1)).tolist())
        return tuner.to(context.runtime.device)


def solve_transclip(
    images: Floats,
    texts: Floats,
    logit_scale: float,
    *,
    neighbors: int = 3,
    n_top: int = 8,
    iterations: int = 10,
    inner_iterations: int = 5,
    density_weight: float = 0.02,
    neighbor_weight: float = 1 / 3,
    text_weight: float = 1.0,
) -> MixtureFit:
    """Return the assignments of all images and the linear rule without its neighbor term.

    Block coordinate updates of the assignments z, the means and one diagonal covariance of the objective: Gaussian
    log-likelihood, agreement of neighbors with affinity max(0, cosine), and KL divergence to the text probabilities.
    """
    n_images, width = images.shape
    zero_shot = score(images, texts, logit_scale)
    prior = text_weight * np.log(zero_shot + 1e-12)
    graph = neighbor_graph(images, neighbors)
    n_top = min(n_top, n_images)
    top = np.argpartition(-zero_shot, n_top - 1, axis=0)[:n_top]
    means = unit_rows(images[top].mean(axis=0))
    variance = np.full(width, 1.0 / width, dtype=np.float32)
    z = zero_shot
    for _ in range(iterations):
        weights = np.float32(density_weight) * means / variance
        offsets = -0.5 * (weights * means).sum(axis=1)
        density = images @ weights.T + offsets
        for _ in range(inner_iterations):
            z = softmax_rows(prior + density + neighbor_weight * (graph @ z))
        counts, sums = z.sum(axis=0), z.T @ images
        means = unit_rows(sums / np.maximum(counts, 1e-9)[:, None])
        scatter = (images**2).sum(axis=0) - 2 * (means * sums).sum(axis=0) + (counts[:, None] * means**2).sum(axis=0)
        variance = np.maximum(scatter / n_images, 1e-8).astype(np.float32)
    none = np.zeros(len(texts), dtype=np.float32)
    return MixtureFit(weights, np.asarray(offsets, dtype=np.float32), 1.0, z, iterations, none)
