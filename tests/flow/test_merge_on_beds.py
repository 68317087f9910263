"""Merging is a union: on real embeddings, no merge costs accuracy with both classes counted as one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import captune

FOLDER = Path(os.environ.get("CAPTUNE_TESTBED", "")) / "data" / "clip-vit-b32"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="needs CAPTUNE_TESTBED with data/clip-vit-b32"),
]


@pytest.mark.parametrize("n_labels", [0, 42])
@pytest.mark.parametrize("bed", ["caltech-58", "cars-a", "imagenet-a"])
def test_accuracy_with_both_counted_as_one_never_falls(bed: str, n_labels: int) -> None:
    arrays, generator = np.load(FOLDER / f"{bed}.npz"), np.random.default_rng(0)
    names, truth = tuple(str(i) for i in range(len(arrays["texts"]))), arrays["train_labels"]
    texts = captune.ClassTexts(names, arrays["texts"], arrays["logit_scale"])
    session = captune.open_session(captune.Embeddings(arrays["train_images"]), texts, quiet=True)
    if n_labels:
        chosen = generator.choice(len(truth), n_labels, replace=False)
        session.label({int(i): names[truth[i]] for i in chosen})
    for _ in range(6):
        a, b = generator.choice(len(session.names), 2, replace=False)
        before = np.asarray(session.names, dtype=object)[session.predictions.labels]
        one, two = session.names[a], session.names[b]
        united = {one: "both", two: "both"}
        expected = np.asarray([united.get(name, name) for name in before], dtype=object)
        session.merge([one, two], "both")
        after = np.asarray(session.names, dtype=object)[session.predictions.labels]
        np.testing.assert_array_equal(after, expected)
        session.undo()
