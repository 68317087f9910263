"""Estimate the time and cost of a run on many images on GPUs from a formula; nothing is measured.

seconds = encodings / min(GPUs * peak * utilisation / FLOP of an image, cores * decoded images a second and core)
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class VisionTower:
    """The sizes of a vision transformer."""

    name: str
    width: int
    layers: int
    patch: int
    side: int = 224

    def flop(self) -> float:
        """Return floating-point operations of one image: 2 for each multiply-add of patches, layers and attention."""
        n_patches = (self.side // self.patch) ** 2
        tokens, width = n_patches + 1, self.width
        layer = 12 * tokens * width**2 + 2 * tokens**2 * width
        return 2.0 * (n_patches * 3 * self.patch**2 * width + self.layers * layer)


TOWERS = (
    VisionTower("CLIP ViT-B/32", 768, 12, 32),
    VisionTower("CLIP ViT-B/16", 768, 12, 16),
    VisionTower("CLIP ViT-L/14", 1024, 24, 14),
)


def encodings(preset: str, epochs: int = 50, grow_every: int = 5, strong_views: int = 4) -> float:
    """Return the largest number of times that a run of CAP encodes each image, without cached embeddings.

    `quick` encodes each image once as it is and once for each strong view. `full` encodes it once at the start,
    whenever pseudo-labels grow, in every epoch in which it is pseudo-labeled (their share grows to about one), and
    once at the end.
    """
    if preset == "quick":
        return 1.0 + strong_views
    growths = [epoch for epoch in range(1, epochs) if epoch % grow_every == 0]
    labeled = sum(grow_every * sum(grown <= epoch for grown in growths) / epochs for epoch in range(1, epochs))
    return 1.0 + len(growths) + labeled + 1.0


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=float, default=10e6)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--peak", type=float, default=312e12, help="FLOP/s of a GPU in bf16 (A100: 312e12)")
    parser.add_argument("--utilisation", type=float, default=0.35, help="share of the peak that is reached")
    parser.add_argument("--cores", type=int, default=64, help="CPU cores that decode: 8 workers for each process")
    parser.add_argument("--decoded", type=float, default=150, help="images that a core reads and decodes a second")
    parser.add_argument("--price", type=float, default=32.0, help="US dollars an hour for the machine")
    options = parser.parse_args()
    print(
        f"{options.images:,.0f} images, {options.gpus} GPUs of {options.peak / 1e12:.0f} TFLOP/s at "
        f"{options.utilisation:.0%}, {options.cores} decoding cores at {options.decoded:.0f} images/s, "
        f"${options.price:.0f}/h"
    )
    decoding = options.cores * options.decoded
    print(f"{'backbone':<14} {'GFLOP':>6} {'GPUs/s':>8} {'decoded/s':>9}  {'step':<16} {'hours':>6} {'cost':>7}")
    for tower in TOWERS:
        computing = options.gpus * options.peak * options.utilisation / tower.flop()
        for step, times in (("embed once", 1.0), ("quick", encodings("quick")), ("full", encodings("full"))):
            hours = options.images * times / min(computing, decoding) / 3600
            numbers = f"{tower.flop() / 1e9:6.1f} {computing:8,.0f} {decoding:9,.0f}"
            print(f"{tower.name:<14} {numbers}  {step:<10} x{times:4.1f} {hours:6.2f} {hours * options.price:7.2f}")


if __name__ == "__main__":
    main()
