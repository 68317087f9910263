"""EuroSAT, clean: ten land uses from space, 5,000 test images that are not in the pool (Helber et al., 2019)."""

from __future__ import annotations

from captune.benchmark.datasets._eurosat import LAYOUTS, N_IMAGES, N_TEST, facts
from captune.benchmark.datasets._layouts import LayoutDataset


class EuroSAT(LayoutDataset):
    """Pool: all images that are not test images."""

    facts = facts("EuroSAT", N_IMAGES - N_TEST)
    layouts = LAYOUTS
