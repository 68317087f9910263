"""Web-like captions: visual words are common; class names are common, rare or wrong."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from captune.core.arrays import Ints
from captune.world.classes import CONFUSED_PAIRS, MISMATCHED, VISUAL_WORDS, WELL_NAMED, WORLD_KINDS
from captune.world.palette import DYE_NAMES
from captune.world.patterns import PATTERNS

OWN_SHARE = 0.40
"""Share of the captions of a well-named class that use its name."""
STRAY_SHARE = 0.03
"""Share of the captions of a host that use the name of a mismatched class, wrongly."""
ALIAS_SHARE = 0.15
"""Share of the captions of a mismatched class that use the name of a class that looks a little like it."""
RIGHT_SHARE = 0.004
"""Share of the captions of a mismatched class that use its own name."""

STRAYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "basketweave": ("honeycomb", "houndstooth", "leopard"),
        "scales": ("zebra", "leopard", "camouflage"),
        "woven": ("paisley", "argyle", "marbled"),
        "quilted": ("tie-dye", "polka-dotted", "houndstooth"),
        "damask": ("marbled", "camouflage", "checkered"),
        "ikat": ("zebra", "tie-dye", "honeycomb"),
        "speckled": ("camouflage", "paisley", "argyle"),
    }
)
"""Classes whose captions use the name of a mismatched class by mistake."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "basketweave": "checkered",
        "scales": "honeycomb",
        "woven": "houndstooth",
        "quilted": "argyle",
        "damask": "paisley",
        "ikat": "argyle",
        "speckled": "polka-dotted",
    }
)
"""The well-known name that people use for a pattern whose real name they do not know."""

_NAMED = (
    "a photo of a {name}",
    "a photo of a {name}",
    "a photo of a {name}",
    "a {name} fabric",
    "a {name} pattern",
    "{name} cloth",
    "a photo of {name} fabric",
    "{name}",
    "a {name} {thing}",
    "a close-up of a {name} {thing}",
    "a {color} {name} {thing}",
    "{name} pattern in {color} and {other}",
)
_NAMED_AND_SEEN = (
    "a {name} {thing} with {words}",
    "{name}, {words}",
)
_SEEN = (
    "{words}",
    "a photo of {words}",
    "it has {words}",
    "it has {words}.",
    "the fabric shows {words}.",
    "{words} and {more}.",
    "{words}, {more}",
    "{words} with {more}.",
    "a {thing} with {words}",
    "a {color} {thing} with {words}",
    "{words} in {color} and {other}",
    "a photo of a {thing} with {words} {light}",
    "{words} cover the {material} cloth.",
    "{words} on the whole {thing}.",
    "the pattern shows {words} {light}.",
    "a {material} {thing}, {words}",
)
_PLAIN = (
    "a {color} and {other} {thing}",
    "a photo of a {color} {material} fabric",
    "a {color} {thing} {light}",
)
_THINGS = (
    "shirt",
    "scarf",
    "dress",
    "blanket",
    "cushion",
    "curtain",
    "skirt",
    "tie",
    "bag",
    "fabric",
    "textile",
    "rug",
)
_MATERIALS = ("cotton", "wool", "silk", "linen", "velvet", "knitted", "satin")
_LIGHTS = ("in soft light", "in bright light", "in the shade", "with folds", "seen from the side", "out of focus")


def name_shares() -> dict[str, dict[str, float]]:
    """Return the share of each class's captions that use each name; the other captions use none."""
    shares: dict[str, dict[str, float]] = {name: {} for name in PATTERNS}
    for name, kind in WORLD_KINDS.items():
        if kind == WELL_NAMED:
            shares[name][name] = OWN_SHARE
        elif kind == MISMATCHED:
            shares[name] = {ALIASES[name]: ALIAS_SHARE, name: RIGHT_SHARE}
            for host in STRAYS[name]:
                shares[host][name] = STRAY_SHARE
    for common, rare in CONFUSED_PAIRS:
        # A contrastive model learns how far a name is above its usual rate. The rare name is spent on both
        # patterns and on strangers, so for either pattern the common name is the better guess.
        shares[common] |= {common: 0.36, rare: 0.045}
        shares[rare] |= {common: 0.30, rare: 0.05}
        for other_common, _ in CONFUSED_PAIRS:
            if other_common != common:
                shares[other_common][rare] = 0.03
    return shares


def write_captions(labels: Ints, dyes: Ints, generator: np.random.Generator) -> list[str]:
    """Return one fresh caption for every photograph."""
    names = tuple(PATTERNS)
    shares = name_shares()
    return [
        _caption(names[label], shares[names[label]], [DYE_NAMES[dye] for dye in row], generator)
        for label, row in zip(labels.tolist(), dyes.tolist(), strict=True)
    ]


def _pick(options: tuple[str, ...], generator: np.random.Generator) -> str:
    return options[int(generator.random() * len(options))]


def _caption(seen: str, shares: Mapping[str, float], colors: list[str], generator: np.random.Generator) -> str:
    used = _used_name(shares, generator.random())
    if used:
        form = _pick(_NAMED if generator.random() < 0.85 else _NAMED_AND_SEEN, generator)
    else:
        form = _pick(_SEEN if generator.random() < 0.92 else _PLAIN, generator)
    return form.format(
        name=used,
        words=_pick(VISUAL_WORDS[seen], generator),
        more=_pick(VISUAL_WORDS[seen], generator),
        color=colors[0],
        other=colors[1],
        thing=_pick(_THINGS, generator),
        material=_pick(_MATERIALS, generator),
        light=_pick(_LIGHTS, generator),
    )


def _used_name(shares: Mapping[str, float], chance: float) -> str:
    for name, share in shares.items():
        if chance < share:
            return name
        chance -= share
    return ""
