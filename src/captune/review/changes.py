"""What a change did to the predictions, and how new images join a session."""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from captune.core.arrays import Bools, Floats, Ints, evenly_spaced, row_parts
from captune.core.errors import InputError
from captune.data.images import ImageCollection
from captune.data.inputs import Images, collect_images
from captune.data.precomputed import Embeddings

if TYPE_CHECKING:
    from captune.review.session import Session

MOST_NAMED = 3
MOST_COMPARED = 4096
UNLIKE_SHARE = 0.01
"""An image is unlike anything before if its nearest old image is farther than for all but this share of old images."""


class Move(NamedTuple):
    """A number of images whose predicted class changed from `old` to `new`."""

    old: str
    new: str
    n_images: int


@dataclass(frozen=True)
class Change:
    """What a change did: how many predictions are others now, and the most frequent moves first.

    `what` is the change in words; `notes` are what a person should know, such as contradictory answers.
    """

    what: str
    n_images: int
    n_changed: int
    moves: tuple[Move, ...]
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Return the change in words."""
        listed = [f"{move.n_images} from {move.old!r} to {move.new!r}" for move in self.moves[:MOST_NAMED]]
        more = ", and others" if len(self.moves) > MOST_NAMED else ""
        details = f": {', '.join(listed)}{more}" if listed else ""
        what = self.what[:1].upper() + self.what[1:]
        return f"{what}. {self.n_changed} of {self.n_images} predictions changed{details}."

    def as_dict(self) -> dict[str, Any]:
        """Return all fields and the sentence as JSON values."""
        return {**self.__dict__, "sentence": self.sentence}

    def __str__(self) -> str:
        return "\n".join([self.sentence, *self.notes])


@dataclass(frozen=True)
class Update:
    """What new images brought: how many can be read, how many of each class, and which are unlike anything before.

    `n_gone` images cannot be read any more; they stay among the skipped images. `change` is about the others.
    """

    n_new: int
    n_gone: int
    grown: Mapping[str, int]
    unlike: tuple[str, ...]
    change: Change

    def __str__(self) -> str:
        told = [f"{self.n_new} new images"]
        if most := [f"{name} (+{n})" for name, n in list(self.grown.items())[:MOST_NAMED]]:
            told.append(f"most in {', '.join(most)}")
        if self.unlike:
            told.append(f"{len(self.unlike)} unlike anything before, such as {self.unlike[0]}")
        if self.n_gone:
            told.append(f"{self.n_gone} images are gone and marked as skipped")
        return "\n".join([f"{'; '.join(told)}.", *([str(self.change)] if self.n_new or self.n_gone else [])])


def compare(
    what: str,
    before: tuple[Ints, Sequence[str]],
    after: tuple[Ints, Sequence[str]],
    notes: Sequence[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> Change:
    """Compare predicted classes, each given as class ids `(images,)` and names; a renamed class is the same one."""
    old_names = [(renamed or {}).get(name, name) for name in before[1]]
    names = list(dict.fromkeys([*old_names, *after[1]]))
    ids = {name: i for i, name in enumerate(names)}
    old = np.asarray([ids[name] for name in old_names], dtype=np.int64)[before[0]]
    new = np.asarray([ids[name] for name in after[1]], dtype=np.int64)[after[0]]
    pairs = Counter(zip(old[old != new].tolist(), new[old != new].tolist(), strict=True))
    ordered = sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0]))
    moves = tuple(Move(names[a], names[b], n) for (a, b), n in ordered)
    return Change(what, len(new), pairs.total(), moves, tuple(notes))


def update(session: Session, images: Images | None) -> Update:
    """Add new images to a session and adapt; without new or missing images, nothing changes."""
    old, known, here = copy.copy(session), session.engine.all_images, session.engine.known
    if images is None:
        images = known.root if known.kind == "files" else session.engine.plan.sources.get("images", "")
    joined = join(known, collect_images(images, single=False))
    is_any_gone = known.kind == "files" and not known.where.any() and not all(map(os.path.exists, old.images.files))
    before = old.predictions.labels, old.names
    if len(joined) == len(known) and here == set(old.engine.rows) and not is_any_gone:
        return Update(0, 0, {}, (), compare("nothing is new", before, before))
    session.__dict__ = type(session)(session.engine.on(joined), session.corrections, session.seed).__dict__
    names, labels = [session.images.name(i) for i in range(len(session.images))], session.predictions.labels
    rows = np.asarray([old.engine.rows.get(name, -1) for name in names], dtype=np.int64)
    is_new = np.asarray([name not in here for name in names], dtype=np.bool_) | (rows < 0)
    n_new, n_gone = int(np.count_nonzero(is_new)), len(here.difference(session.engine.rows))
    before, after = (before[0][rows[~is_new]], old.names), (labels[~is_new], session.names)
    change = compare(f"added {n_new} images to {len(before[0])}", before, after, session.engine.notes)
    grown = dict(Counter(session.names[label] for label in labels[is_new].tolist()).most_common())
    unlike = tuple(names[i] for i in _unlike(old.engine.vectors, session.engine.vectors, is_new).tolist())
    return Update(n_new, n_gone, grown, unlike, change)


def join(known: ImageCollection, found: ImageCollection) -> ImageCollection:
    """Return the known images and, after them, those that are new; names of the known ones stay as they are."""
    if isinstance(known, Embeddings) and isinstance(found, Embeddings):
        places = {known.name(i): i for i in range(len(known))}
        for i in range(len(found)):
            place = places.get(found.name(i))
            if place is not None and not np.allclose(known.vectors[place], found.vectors[i], atol=1e-3):
                hint = "Name the new embeddings: captune.Embeddings(vectors, names)."
                raise InputError(f"There is another image {found.name(i)!r} already. {hint}")
        new = [i for i in range(len(found)) if found.name(i) not in places]
        return Embeddings(np.concatenate([known.vectors, found.vectors[new]]), [*places, *map(found.name, new)])
    if known.kind != "files" or found.kind != "files":
        raise InputError(f"Expected more {known.kind}, got {found.kind}. Open a session on all of them instead.")
    there = {os.path.abspath(file) for file in known.files}  # noqa: PTH100 (millions of names)
    paths = [os.path.abspath(file) for file in found.files]  # noqa: PTH100
    if known.root.is_absolute() and not found.where.any():
        found = ImageCollection(paths, found.root.absolute())
    return known + found.subset([i for i, path in enumerate(paths) if path not in there])


def _unlike(old: Floats, vectors: Floats, is_new: Bools) -> Ints:
    """Return the new images whose nearest old image is farther than old images are from each other, farthest first."""
    known, new = old[evenly_spaced(len(old), MOST_COMPARED)], np.flatnonzero(is_new)
    if len(known) < 2 or not len(new):
        return new[:0]
    among = known @ known.T
    np.fill_diagonal(among, -np.inf)
    least = float(np.quantile(among.max(axis=1), UNLIKE_SHARE))
    nearest = np.concatenate([(vectors[new[rows]] @ known.T).max(axis=1) for rows in row_parts(len(new), len(known))])
    order = np.argsort(nearest, kind="stable")
    return new[order[nearest[order] < least]]
