"""The frozen backbone, with each class represented by its text embedding; nothing is trained."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from captune.embeddings.embed import embed_classes
from captune.tuners.base import Tuner


class Frozen(Tuner):
    """The backbone without changes; its class embeddings are computed once."""

    @cached_property
    def _classes(self) -> Tensor:
        return torch.from_numpy(embed_classes(self.backbone, self.vocabulary)).to(self.backbone.device)

    def class_embeddings(self) -> Tensor:
        """Return the embeddings of the class texts."""
        return self._classes
