"""The frozen backbone, with each class represented by its text embedding; nothing is trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from captune.backbones.base import Backbone
from captune.data.vocabulary import Vocabulary
from captune.embeddings.embed import embed_classes
from captune.tuners.base import Tuner


class Frozen(Tuner):
    """The backbone without changes; its class embeddings are computed once."""

    def __init__(self, backbone: Backbone, vocabulary: Vocabulary, settings: Any = None) -> None:  # noqa: ANN401
        super().__init__(backbone, vocabulary, settings)
        self._classes: Tensor | None = None

    def class_embeddings(self) -> Tensor:
        """Return the embeddings of the class texts."""
        if self._classes is None:
            self._classes = torch.from_numpy(embed_classes(self.backbone, self.vocabulary)).to(self.backbone.device)
        return self._classes
