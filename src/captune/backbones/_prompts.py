"""How prompts enter a frozen encoder: forward pre-hooks replace the tokens that enter its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any, NoReturn, TypeAlias

from torch import Tensor, nn

from captune.core.errors import ModelError

Edit: TypeAlias = Callable[[int, Tensor], Tensor]
"""`edit(depth, tokens)` returns the tokens `(batch, length, width)` that enter the layer at this depth.

It may replace tokens; among the tokens of images, it may also append some at the end and remove them again. Depth 0 is
after the position embedding and before the norm at the entry, if there is one.
"""


def _refuse(*inputs: object) -> NoReturn:
    raise ModelError(
        "This encoder of the backbone does not support prompts. Choose a tuner that works on embeddings, or a backbone "
        "with transformer towers."
    )


@dataclass(frozen=True)
class Tower:
    """An encoder as its library computes it, and where prompts enter it.

    Attributes:
        encode: Computes features `(batch, features)` from inputs and their mask.
        modules: The modules that contain its weights.
        width: Length of a token.
        entries: What the tokens enter at each depth: the norm before the first layer or this layer, then all other
            layers. Empty for encoders without such layers, such as a ResNet.
    """

    encode: Callable[[Tensor, Tensor | None], Tensor]
    modules: Sequence[nn.Module]
    width: int
    entries: Sequence[nn.Module] = ()

    @property
    def depth(self) -> int:
        """Return the number of layers that prompts can enter."""
        return len(self.entries)

    def __call__(self, inputs: Tensor, mask: Tensor | None = None, edit: Edit | None = None) -> Tensor:
        """Return features, with the edit applied to the tokens that enter each layer."""
        if edit is None:
            return self.encode(inputs, mask)
        if not self.entries:
            _refuse()
        with _edited(self.entries, edit):
            return self.encode(inputs, mask)


@dataclass(frozen=True)
class TextTower(Tower):
    """An encoder of token ids; prompts replace placeholder words, so positions and masks stay correct.

    Attributes:
        words: The embedding of token ids.
        positions: Returns what is added to words, `(length, width)`.
        prompt_start: Position of the first word: after the start token, if there is one.
        padding_matters: Whether padding after a text changes its embedding.
    """

    words: Callable[[Tensor], Tensor] = _refuse
    positions: Callable[[], Tensor] = _refuse
    prompt_start: int = 1
    padding_matters: bool = True


@contextmanager
def _edited(entries: Sequence[nn.Module], edit: Edit) -> Iterator[None]:
    """Edit what enters these modules, in this thread: another one may be using the same encoder."""
    thread = get_ident()

    def hook_of(depth: int) -> Callable[..., Any]:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (edit(depth, inputs[0]), *inputs[1:]) if get_ident() == thread else inputs

        return hook

    handles = [module.register_forward_pre_hook(hook_of(depth)) for depth, module in enumerate(entries)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
