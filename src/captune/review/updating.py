"""New images join a run: answers, names and checks stay, and a line says what is new."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from captune.core.arrays import Bools, Floats, Ints, evenly_spaced
from captune.core.errors import InputError
from captune.core.scratch import row_parts
from captune.data.images import ImageCollection
from captune.data.inputs import Images, collect_images
from captune.data.precomputed import Embeddings
from captune.review.changes import Change, compare

if TYPE_CHECKING:
    from captune.review.session import Session

MOST_COMPARED = 4096
UNLIKE_SHARE = 0.01
"""An image is unlike anything before if its nearest old image is farther than for all but this share of old images."""
MOST_NAMED = 3


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
        if self.grown:
            told.append("most in " + ", ".join(f"{name} (+{n})" for name, n in list(self.grown.items())[:MOST_NAMED]))
        if self.unlike:
            told.append(f"{len(self.unlike)} unlike anything before, such as {self.unlike[0]}")
        if self.n_gone:
            told.append(f"{self.n_gone} images are gone and marked as skipped")
        return "\n".join([f"{'; '.join(told)}.", *([str(self.change)] if self.n_new or self.n_gone else [])])


def update(session: Session, images: Images | None) -> Update:
    """Add new images to a session and adapt; without new or missing images, nothing changes."""
    engine = session.engine
    source = images
    if source is None:
        source = engine.all_images.root if engine.all_images.kind == "files" else engine.plan.sources.get("images", "")
    joined = join(engine.all_images, collect_images(source, single=False))
    old, old_names, old_vectors, old_labels = session.images, session.names, engine.vectors, session.predictions.labels
    if len(joined) == len(engine.all_images) and not _is_any_gone(old):
        return Update(0, 0, {}, (), compare("nothing is new", (old_labels, old_names), (old_labels, old_names)))
    session.replace_images(joined)
    places = {old.name(i): i for i in range(len(old))}
    rows = np.asarray([places.get(session.images.name(i), -1) for i in range(len(session.images))], dtype=np.int64)
    is_new, labels = rows < 0, session.predictions.labels
    what = f"added {int(is_new.sum())} images to {len(old)}"
    before, after = (old_labels[rows[~is_new]], old_names), (labels[~is_new], session.names)
    counts = np.bincount(labels[is_new], minlength=len(session.names))
    grown = {session.names[c]: int(counts[c]) for c in np.argsort(-counts, kind="stable") if counts[c]}
    unlike = tuple(session.images.name(int(i)) for i in _unlike(old_vectors, session.engine.vectors, is_new))
    change = compare(what, before, after, session.engine.notes)
    return Update(int(is_new.sum()), len(old) - int(np.count_nonzero(~is_new)), grown, unlike, change)


def join(known: ImageCollection, found: ImageCollection) -> ImageCollection:
    """Return the known images and, after them, those that are new; names of the known ones stay as they are."""
    if isinstance(known, Embeddings) and isinstance(found, Embeddings):
        places = {known.name(i): i for i in range(len(known))}
        new = [i for i in range(len(found)) if found.name(i) not in places]
        for i in range(len(found)):
            place = places.get(found.name(i))
            if place is not None and not np.allclose(known.vectors[place], found.vectors[i], atol=1e-3):
                raise InputError(
                    f"There is another image {found.name(i)!r} already. Name the new embeddings: "
                    "captune.Embeddings(vectors, names)."
                )
        names = [*(known.name(i) for i in range(len(known))), *(found.name(i) for i in new)]
        return Embeddings(np.concatenate([known.vectors, found.vectors[new]]), names)
    if known.kind != "files" or found.kind != "files":
        raise InputError(f"Expected more {known.kind}, got {found.kind}. Open a session on all of them instead.")
    there = {os.path.abspath(file) for file in known.files}  # noqa: PTH100 (millions of names)
    paths = [os.path.abspath(file) for file in found.files]  # noqa: PTH100
    new = [i for i, path in enumerate(paths) if path not in there]
    if known.root.is_absolute() and found.where is None:
        found = ImageCollection(paths, found.root.absolute())
    return known + found.subset(new)


def _is_any_gone(images: ImageCollection) -> bool:
    return images.kind == "files" and images.where is None and not all(map(os.path.exists, images.files))


def _unlike(old: Floats, vectors: Floats, is_new: Bools) -> Ints:
    """Return the new images whose nearest old image is farther than old images are from each other, farthest first."""
    known = old[evenly_spaced(len(old), MOST_COMPARED)]
    new = np.flatnonzero(is_new)
    if len(known) < 2 or not len(new):
        return new[:0]
    among = known @ known.T
    np.fill_diagonal(among, -np.inf)
    least = float(np.quantile(among.max(axis=1), UNLIKE_SHARE))
    nearest = np.concatenate([(vectors[new[rows]] @ known.T).max(axis=1) for rows in row_parts(len(new), len(known))])
    is_unlike = nearest < least
    return new[is_unlike][np.argsort(nearest[is_unlike], kind="stable")]
