"""What StatA and TransCLIP share: a mixture of all images that is solved at once, with a graph of neighbors."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from scipy import sparse

from captune.backbones.base import Backbone
from captune.core.arrays import Floats
from captune.data.task import AdaptationTask
from captune.labeling.neighbors import nearest_neighbors
from captune.methods.base import Context, DescribeSettings, Method
from captune.mixture.gaussian_mixture import MixtureFit
from captune.tuners.base import Tuner
from captune.tuners.gaussian import Gaussian


class SolvedMixture(Method):
    """A transductive baseline without labels: a mixture next to the class texts with the published settings."""

    Settings: ClassVar[type[DescribeSettings]] = DescribeSettings

    @abstractmethod
    def solve(self, images: Floats, texts: Floats, logit_scale: float) -> MixtureFit:
        """Return the mixture of images `(images, width)`."""

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Estimate the mixture from all unlabeled images; new images are classified by its linear rule."""
        images = context.embed(backbone, task.unlabeled).vectors
        tuner = Gaussian(backbone, context.align_concepts(task, backbone, self.settings.describe).vocabulary)
        texts = tuner.class_embeddings().cpu().numpy()
        found = self.solve(images, texts, backbone.logit_scale)
        tuner.set_mixture(found)
        predicted = np.bincount(found.probabilities.argmax(axis=1), minlength=len(texts))
        context.record(step="mixture_of_baseline", predicted=predicted.tolist())
        return tuner.to(context.runtime.device)


def neighbor_graph(images: Floats, neighbors: int) -> sparse.csr_matrix:
    """Return the affinities max(0, cosine) of each image to its nearest images, `(images, images)`."""
    n_images = len(images)
    k = min(neighbors, n_images - 1)
    near = nearest_neighbors(images, np.arange(n_images), k)
    affinity = np.maximum(np.einsum("id,ikd->ik", images, images[near]), 0.0)
    rows = np.repeat(np.arange(n_images), k)
    return sparse.csr_matrix((affinity.ravel(), (rows, near.ravel())), shape=(n_images, n_images))
