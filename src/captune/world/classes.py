"""Ground truth about the classes: the kind of each name, and the visual phrases that describe each pattern."""

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


def descriptions_path() -> Path:
    """Return the YAML file with five descriptions of every class, as a language model would answer."""
    return Path(__file__).with_name("descriptions.yaml")
