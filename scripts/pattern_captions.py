"""Web-like captions to pretrain the embedded model: visual words are common; class names are common, rare or wrong."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from captune.core.arrays import Ints
from captune.world import WORLD_KINDS
from captune.world.patterns import MISMATCHED, PATTERNS, WELL_NAMED
from captune.world.photographs import DYES

DYE_NAMES = tuple(DYES)
CONFUSED_PAIRS = (("striped", "pinstriped"), ("tartan", "gingham"), ("chevron", "herringbone"))
"""Pairs whose names people mix up; the first name is used for both patterns most of the time."""

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

VISUAL_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "striped": (
            "broad parallel bands",
            "wide straight bars side by side",
            "bold even lines of equal width",
            "thick parallel bars in alternating colours",
            "straight wide bands running one way",
        ),
        "pinstriped": (
            "thin parallel lines",
            "narrow lines far apart on a plain ground",
            "hair thin straight lines",
            "fine parallel lines with wide gaps",
            "slender lines on a dark suit cloth",
        ),
        "gingham": (
            "small even squares of one colour and white",
            "equal bands crossing with darker overlaps",
            "a picnic cloth of little squares in two tones",
            "a grid of light, medium and dark squares",
            "crossing bands of the same width",
        ),
        "tartan": (
            "crossing bands of many widths and colours",
            "large squares with thin bright lines across",
            "a highland kilt with crossing lines",
            "wide and narrow bands crossing at right angles",
            "a big colourful grid of overlapping bands",
        ),
        "houndstooth": (
            "broken checks with pointed teeth",
            "jagged four pointed shapes",
            "interlocking jagged checks",
            "abstract pointed checks in two colours",
            "sharp tooth shapes repeated",
        ),
        "herringbone": (
            "columns of short slanted bars",
            "fine slanted lines that lean left and right",
            "broken zigzag rows like fish bones",
            "narrow columns of tilted strokes",
            "a fine v shaped twill",
        ),
        "chevron": (
            "bold zigzag bands",
            "continuous zigzag lines",
            "wide zigzags up and down",
            "rows of sharp v shapes joined together",
            "thick bands bent into peaks",
        ),
        "argyle": (
            "diamonds crossed by thin diagonal lines",
            "tall diamonds in rows like on a sweater",
            "a lattice of tall diamonds",
            "diamond shapes with fine crossing lines",
            "golf socks with coloured diamonds",
        ),
        "polka-dotted": (
            "round dots of the same size",
            "evenly spaced circles",
            "large dots in a regular grid",
            "neat rows of round dots on a plain ground",
            "solid circles arranged in order",
        ),
        "paisley": (
            "curved drops with a bent tip",
            "teardrop shapes with an inner dot",
            "curled tears in rows",
            "outlined drops like commas",
            "bent leaf shaped drops",
        ),
        "checkered": (
            "squares in two alternating colours",
            "a chess board of squares",
            "solid squares side by side",
            "alternating dark and light squares",
            "a board of equal squares",
        ),
        "basketweave": (
            "blocks of parallel strips lying and standing in turn",
            "broad strips interlaced like wicker",
            "a wicker basket of flat strips",
            "square bundles of three strips",
            "crosswise bundles of reed strips",
            "alternating upright and level strips with shadows",
        ),
        "honeycomb": (
            "six sided cells",
            "hexagons with thin walls",
            "a net of hexagons",
            "hexagonal cells like a beehive",
            "a grid of six sided shapes",
        ),
        "scales": (
            "overlapping rounded arcs in rows",
            "rows of half circles like roof tiles",
            "fish skin of overlapping rounded plates",
            "overlapping round shingles",
            "curved arcs stacked like mermaid skin",
            "scalloped rows of semicircles",
        ),
        "leopard": (
            "broken rings scattered like a wild cat",
            "irregular rosettes with a filled middle",
            "big cat spots",
            "dark rosettes on fur",
            "patchy rings of animal fur",
        ),
        "zebra": (
            "wavy stripes that fork and taper",
            "bold curving animal stripes",
            "flowing wavy bands of uneven width",
            "swelling wavy lines like an animal coat",
            "bending stripes of a wild horse",
        ),
        "marbled": (
            "thin branching veins in stone",
            "wandering veins on a cloudy ground",
            "irregular vein lines like polished rock",
            "cloudy stone with thin cracks",
            "curling threads of ink in water",
        ),
        "camouflage": (
            "large irregular blotches",
            "interlocking patches of flat colours",
            "army blotches in several colours",
            "ragged patches that hide a soldier",
            "big uneven colour patches",
        ),
        "woven": (
            "fine threads passing over and under",
            "a tight grid of tiny raised bumps",
            "coarse burlap threads seen close",
            "single threads crossing like canvas",
            "a small mesh of plain threads",
            "rough linen with tiny knots",
        ),
        "quilted": (
            "puffed diamonds between stitched seams",
            "padded cushions with soft shadows",
            "stitched diagonal seams on a padded jacket",
            "soft pillowy diamonds of one colour",
            "thick padding held by crossing seams",
            "a puffy bed cover with stitch lines",
        ),
        "damask": (
            "ornate mirrored flowers",
            "elegant flowers and leaves in two shades of one colour",
            "floral ornament within pointed arches",
            "old wallpaper with curling stems",
            "tone on tone floral medallions",
            "symmetric blossoms joined by curved stems",
        ),
        "ikat": (
            "nested diamonds with feathered edges",
            "blurry diamonds inside diamonds",
            "diamond shapes with frayed jagged edges",
            "concentric diamonds bleeding along the threads",
            "streaky feathered diamonds",
            "ragged dyed diamonds in several colours",
        ),
        "tie-dye": (
            "a swirl of running colours",
            "soft spirals around one centre",
            "hippie swirls of dye",
            "blurred spiral rings",
            "a twisted whirl of bright dye",
        ),
        "speckled": (
            "tiny flecks strewn at random",
            "small scattered spots of many colours",
            "confetti sprinkled on a plain ground",
            "little random flecks like a bird egg",
            "tiny paint splashes of different sizes",
            "sprinkles scattered unevenly",
        ),
    }
)
"""Phrases of the pretraining captions; they never contain the name of a mismatched class."""

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
