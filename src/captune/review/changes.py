"""What a change did to the predictions: how many, from which class to which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from captune.core.arrays import Ints

MOST_NAMED = 3


class Move(NamedTuple):
    """A number of images whose predicted class changed from `old` to `new`."""

    old: str
    new: str
    n_images: int


@dataclass(frozen=True)
class Change:
    """What a change did: how many predictions are others now, and from which class to which.

    `what` is the change in words; `notes` are what a person should know, such as contradictory answers. The most
    frequent moves come first.
    """

    what: str
    n_images: int
    n_changed: int
    moves: tuple[Move, ...]
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Return the change in words."""
        listed = ", ".join(f"{move.n_images} from {move.old!r} to {move.new!r}" for move in self.moves[:MOST_NAMED])
        more = ", and others" if len(self.moves) > MOST_NAMED else ""
        details = f": {listed}{more}" if listed else ""
        what = self.what[:1].upper() + self.what[1:]
        return f"{what}. {self.n_changed} of {self.n_images} predictions changed{details}."

    def as_dict(self) -> dict[str, Any]:
        """Return all fields and the sentence as JSON values."""
        return {**self.__dict__, "sentence": self.sentence}

    def __str__(self) -> str:
        return "\n".join([self.sentence, *self.notes])


def compare(
    what: str,
    before: tuple[Ints, Sequence[str]],
    after: tuple[Ints, Sequence[str]],
    notes: Sequence[str] = (),
    renamed: dict[str, str] | None = None,
) -> Change:
    """Compare predicted classes, each given as class ids `(images,)` and class names, before and after a change.

    An image whose class was only renamed did not change.
    """
    renamed = renamed or {}
    old_names = [renamed.get(name, name) for name in before[1]]
    every = {name: i for i, name in enumerate(dict.fromkeys([*old_names, *after[1]]))}
    old, new = (
        np.asarray([every[name] for name in names], dtype=np.int64)[ids]
        for ids, names in ((before[0], old_names), (after[0], after[1]))
    )
    changed = np.flatnonzero(old != new)
    names = list(every)
    pairs = Counter(zip(old[changed].tolist(), new[changed].tolist(), strict=True))
    moves = tuple(
        Move(names[a], names[b], n) for (a, b), n in sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0]))
    )
    return Change(what, len(new), len(changed), moves, tuple(notes))
