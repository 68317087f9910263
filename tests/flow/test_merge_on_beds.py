"""Merging is a union: on real embeddings, no merge costs accuracy with both classes counted as one.

CAPTUNE_BEDS names a folder of beds that `benchmarks/embed_bed.py` made, such as those of UC Merced and Pets.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import captune
from captune.core.arrays import Ints
from captune.world import class_names, render_world

CLIP = Path(os.environ.get("CAPTUNE_TESTBED", "missing")) / "data" / "clip-vit-b32"
BEDS = {path.stem: path for place in (CLIP, Path(os.environ.get("CAPTUNE_BEDS", CLIP))) for path in place.glob("*.npz")}

pytestmark = pytest.mark.slow


def open_bed(name: str) -> tuple[captune.Session, list[str], Ints]:
    """Return a session on the images of a bed, its class names and the truth."""
    if name == "patterns":
        world = render_world(8, seed=5)
        images = list(world.images)
        return captune.open_session(images, class_names(), backbone="embedded:patterns"), [*class_names()], world.labels
    arrays = np.load(BEDS[name])
    names, vectors = [f"class {i}" for i in range(len(arrays["texts"]))], arrays["train_images"]
    texts = captune.ClassTexts(tuple(names), arrays["texts"], float(arrays["logit_scale"]))
    return captune.open_session(captune.Embeddings(vectors), texts, quiet=True), names, arrays["train_labels"]


@pytest.mark.parametrize("n_labels", [0, 42])
@pytest.mark.parametrize("bed", [*sorted(BEDS), "patterns"])
def test_accuracy_with_both_counted_as_one_never_falls(bed: str, n_labels: int) -> None:
    session, names, truth = open_bed(bed)
    generator = np.random.default_rng(0)
    if n_labels:
        chosen = generator.choice(len(truth), n_labels, replace=False)
        session.label({int(i): names[truth[i]] for i in chosen})
    for _ in range(6):
        a, b = generator.choice(len(session.names), 2, replace=False)
        one, two = session.names[a], session.names[b]
        united = {one: "both", two: "both"}
        # Equal labels: the accuracy with both counted as one stays the same, whatever is true.
        before = [united.get(session.names[label], session.names[label]) for label in session.predictions.labels]
        session.merge([one, two], "both")
        assert [session.names[label] for label in session.predictions.labels] == before
        session.undo()
