"""Ground truth about the classes: the kind of each name, and descriptions of each pattern."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

WELL_NAMED = "well-named"
MISMATCHED = "mismatched"
CONFUSED = "confused"

WORLD_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "striped": CONFUSED,
        "pinstriped": CONFUSED,
        "gingham": CONFUSED,
        "tartan": CONFUSED,
        "houndstooth": WELL_NAMED,
        "herringbone": CONFUSED,
        "chevron": CONFUSED,
        "argyle": WELL_NAMED,
        "polka-dotted": WELL_NAMED,
        "paisley": WELL_NAMED,
        "checkered": WELL_NAMED,
        "basketweave": MISMATCHED,
        "honeycomb": WELL_NAMED,
        "scales": MISMATCHED,
        "leopard": WELL_NAMED,
        "zebra": WELL_NAMED,
        "marbled": WELL_NAMED,
        "camouflage": WELL_NAMED,
        "woven": MISMATCHED,
        "quilted": MISMATCHED,
        "damask": MISMATCHED,
        "ikat": MISMATCHED,
        "tie-dye": WELL_NAMED,
        "speckled": MISMATCHED,
    }
)
"""Kind of every class: ground truth for tests and tables that no method may read."""

CONFUSED_PAIRS: tuple[tuple[str, str], ...] = (
    ("striped", "pinstriped"),
    ("tartan", "gingham"),
    ("chevron", "herringbone"),
)
"""Pairs whose names people mix up; the first name is used for both patterns most of the time."""


def descriptions_path() -> Path:
    """Return the YAML file with five descriptions of every class, as a language model would answer."""
    return Path(__file__).with_name("descriptions.yaml")
