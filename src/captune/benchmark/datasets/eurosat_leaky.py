"""EuroSAT as in the published tables, whose pool holds the test images too: compare with those tables only."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from captune.benchmark.datasets._eurosat import LAYOUTS, N_IMAGES, facts
from captune.benchmark.datasets._layouts import Layout, LayoutDataset
from captune.benchmark.datasets.base import LoadedDataset
from captune.data.images import ImageCollection

REMARK = "The pool holds the test images, as in the published tables: these numbers say nothing about new images."


def _with_leak(layout: Layout) -> Layout:
    """Return the layout, read with the test images added to the pool, in the order of all images."""

    def read(folder: Path) -> LoadedDataset:
        clean = layout.read(folder)
        paths = clean.pool.paths + clean.test.paths
        labels = np.concatenate([clean.pool_labels, clean.test_labels])
        order = sorted(range(len(paths)), key=lambda i: (labels[i], paths[i]))
        pool = ImageCollection(tuple(paths[i] for i in order), clean.pool.root)
        return dataclasses.replace(clean, pool=pool, pool_labels=labels[order], remarks=(REMARK, *clean.remarks))

    return dataclasses.replace(layout, read=read)


class EuroSATLeaky(LayoutDataset):
    """Pool: all images, test images among them."""

    facts = facts("EuroSAT (leaky)", N_IMAGES)
    layouts = tuple(_with_leak(layout) for layout in LAYOUTS)
