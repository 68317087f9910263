"""The growth of D_PL against a loop over the classes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from captune.labeling.selection import add_confident, top_k_per_class


def predicted(row: np.ndarray, allowed: list[int]) -> int:
    return max(allowed, key=lambda c: (row[c], -c))


def random_rows(generator: np.random.Generator, n_images: int, n_classes: int, allowed: list[int]) -> np.ndarray:
    rows = np.zeros((n_images, n_classes), dtype=np.float32)
    rows[:, allowed] = generator.dirichlet(np.full(len(allowed), 0.4), n_images)
    return rows


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n_images=st.integers(2, 40), n_new=st.integers(0, 4))
def test_growth_of_the_paper_equals_the_loop(seed: int, n_images: int, n_new: int) -> None:
    generator = np.random.default_rng(seed)
    allowed = [0, 2, 3]
    current = top_k_per_class(random_rows(generator, n_images, 4, allowed), 2, allowed)
    rows = random_rows(generator, n_images, 4, allowed)
    expected = dict(zip(current.image_index.tolist(), current.labels.tolist(), strict=True))
    known = set(expected)
    for c in allowed:
        own = [i for i in range(n_images) if i not in known and predicted(rows[i], allowed) == c]
        expected |= dict.fromkeys(sorted(own, key=lambda i: (-rows[i, c], i))[:n_new], c)
    grown = add_confident(current, rows, n_new, allowed, 5)
    assert dict(zip(grown.image_index.tolist(), grown.labels.tolist(), strict=True)) == expected
