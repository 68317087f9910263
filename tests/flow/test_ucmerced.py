"""The reader and the leakage check on the real photographs of UC Merced, where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from captune.benchmark.splits import shared_images
from captune.core import registry

TESTBED = os.environ.get("CAPTUNE_TESTBED", "")


@pytest.mark.slow
@pytest.mark.skipif(not TESTBED, reason="CAPTUNE_TESTBED names no folder with data/ucmerced")
def test_the_photographs_are_read_and_a_shared_one_is_found() -> None:
    data = registry.load("datasets", "ucmerced")().load(Path(TESTBED))
    assert data.remarks == ()  # all sizes are as expected
    assert set(np.bincount(data.pool_labels)) == {60}
    assert set(np.bincount(data.test_labels)) == {40}
    shared = shared_images(data.pool, data.test)  # the original has this photograph twice
    pairs = [(data.pool.name(i), data.test.name(j)) for i, j in shared]
    assert pairs == [("airplane/airplane01.jpg", "airplane/airplane02.jpg")]
