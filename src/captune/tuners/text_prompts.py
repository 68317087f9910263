"""CoOp: context vectors shared by all classes, learned in front of the class name; images stay fixed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from captune.backbones.base import Backbone
from captune.core.settings import Positive
from captune.data.vocabulary import Vocabulary
from captune.tuners._prompted_texts import PLACEHOLDER, PromptedTexts, put_prompts
from captune.tuners.base import Tuner


@dataclass(frozen=True)
class TextPromptsSettings:
    """The size of the context.

    Attributes:
        n_context: Learned vectors in front of the class name; at most half of the text tower's length.
        members: Number of contexts whose class embeddings are averaged.
        full_stop: Whether a full stop follows the class name, as in CoOp and UPL; FPL, GRIP and CPL have none.
    """

    n_context: Positive = 16
    members: Positive = 1
    full_stop: bool = True


class TextPrompts(Tuner):
    """Prompts in the text tower only, so cached image embeddings stay valid."""

    Settings = TextPromptsSettings
    prompted_towers = frozenset(("text",))

    def __init__(self, backbone: Backbone, vocabulary: Vocabulary, settings: TextPromptsSettings | None = None) -> None:
        super().__init__(backbone, vocabulary, settings)
        longest = backbone.tokenize([f"{PLACEHOLDER} " * 1000]).ids.shape[1]
        n_context = min(self.settings.n_context, longest // 2)
        size = (self.settings.members, n_context, backbone.text_tower.width)
        self.context = nn.Parameter(torch.empty(size).normal_(std=0.02))
        # The context replaces the template; a class that has descriptions is still represented by them.
        texts = [vocabulary.descriptions.get(c, (name,)) for c, name in enumerate(vocabulary.names)]
        self.texts = PromptedTexts.tokenize(backbone, texts, n_context, "." if self.settings.full_stop else "")

    def class_embeddings(self) -> Tensor:
        """Return the embeddings of the class names behind the context, the mean over all members."""
        found = [self.texts.encode(partial(self._edit, own)) for own in self.context]
        return found[0] if len(found) == 1 else normalize(torch.stack(found).mean(0), dim=-1)

    def _edit(self, context: Tensor, depth: int, tokens: Tensor) -> Tensor:
        return tokens if depth else put_prompts(self.backbone.text_tower, depth, tokens, context)

    @classmethod
    def joined(
        cls, backbone: Backbone, vocabulary: Vocabulary, contexts: Tensor, full_stop: bool = True
    ) -> TextPrompts:
        """Return one tuner that averages the class embeddings of contexts `(members, n_context, width)`."""
        whole = cls(backbone, vocabulary, TextPromptsSettings(int(contexts.shape[1]), len(contexts), full_stop))
        with torch.no_grad():
            whole.context.copy_(contexts)
        return whole
