"""The 24 patterns by class name, with the size of a repeat and how far the cloth may be turned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from captune.world import geometric, organic
from captune.world.fields import Cloth
from captune.world.geometric import Dyed


@dataclass(frozen=True)
class Pattern:
    """How one class is drawn."""

    dye: Callable[[Cloth], Dyed]
    period: tuple[float, float]
    """Smallest and largest repeat, in pixels."""
    turn: float = 25.0
    """Largest rotation of the cloth, in degrees."""
    is_centered: bool = False
    """Whether the pattern has a single center, which stays in the picture."""
    is_tonal: bool = False
    """Whether the inks are shades of the ground instead of other colors."""


PATTERNS: dict[str, Pattern] = {
    "striped": Pattern(geometric.striped, (10, 18), turn=90),
    "pinstriped": Pattern(geometric.pinstriped, (8, 12), turn=90),
    "gingham": Pattern(geometric.gingham, (9, 15)),
    "tartan": Pattern(geometric.tartan, (22, 34)),
    "houndstooth": Pattern(geometric.houndstooth, (15, 22), turn=15),
    "herringbone": Pattern(geometric.herringbone, (9, 13)),
    "chevron": Pattern(geometric.chevron, (10, 15)),
    "argyle": Pattern(geometric.argyle, (18, 28), turn=15),
    "polka-dotted": Pattern(geometric.polka_dotted, (12, 20)),
    "paisley": Pattern(organic.paisley, (19, 27)),
    "checkered": Pattern(geometric.checkered, (13, 24)),
    "basketweave": Pattern(geometric.basketweave, (12, 18)),
    "honeycomb": Pattern(geometric.honeycomb, (10, 16)),
    "scales": Pattern(organic.scales, (12, 19)),
    "leopard": Pattern(organic.leopard, (11, 16), turn=90),
    "zebra": Pattern(organic.zebra, (9, 14), turn=90),
    "marbled": Pattern(organic.marbled, (10, 16), turn=90),
    "camouflage": Pattern(organic.camouflage, (11, 17), turn=20),
    "woven": Pattern(geometric.woven, (5.5, 8)),
    "quilted": Pattern(geometric.quilted, (22, 32), turn=15),
    "damask": Pattern(organic.damask, (22, 30), turn=15, is_tonal=True),
    "ikat": Pattern(organic.ikat, (22, 32), turn=15),
    "tie-dye": Pattern(organic.tie_dye, (44, 64), turn=90, is_centered=True),
    "speckled": Pattern(organic.speckled, (4.5, 7), turn=90),
}
"""Class id = position in this mapping, always."""
