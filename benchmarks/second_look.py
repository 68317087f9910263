"""A second look: processor time of the same `captune adapt --method transductive`, and of one with 20 new labels.

The images are in the cache. Each run includes its report and is compared with `python -c "import torch, transformers"`
in turn, so that other load affects both:

    python benchmarks/second_look.py [--images 10000] [--backbone ID] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from captune.world import class_names

MOST_TIMES = 3.0
N_LABELS = 20
IMPORTS = [sys.executable, "-c", "import torch, transformers"]


def write_images(folder: Path, n: int) -> None:
    """Write n different small photographs of random patches."""
    folder.mkdir()
    drawn = np.random.default_rng(0)
    for number in range(n):
        patches = Image.fromarray(drawn.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        patches.resize((96, 96)).save(folder / f"{number:06d}.jpg")


def processor_seconds(words: list[str], cache: Path) -> float:
    """Return the processor time of a command and of the processes it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, env={**os.environ, "CAPTUNE_CACHE": str(cache)}, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Fill the cache, measure both second looks and the imports in turn, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--backbone", default="embedded:patterns")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_images(folder / "photos", options.images)
        names = class_names()
        rows = [f"photos/{i:06d}.jpg,{names[i % len(names)]}" for i in range(N_LABELS)]
        (folder / "labels.csv").write_text("\n".join(["path,label", *rows]))
        words = [sys.executable, "-m", "captune", "adapt", str(folder / "photos"), "--classes", ",".join(names)]
        words += ["--backbone", options.backbone, "--method", "transductive", "--quiet", "--overwrite"]
        words += ["--out", str(folder / "run")]
        labeled = [*words, "--labels", str(folder / "labels.csv")]
        first = processor_seconds(words, folder / "cache")
        rounds = [
            [processor_seconds(command, folder / "cache") for command in (IMPORTS, words, labeled)]
            for _ in range(options.rounds)
        ]
    imports, again, with_labels = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"{options.images:,} images, {len(names)} classes, {options.backbone}; processor seconds, median")
    print(f"import torch, transformers   {imports:6.1f}")
    print(f"the first run                {first:6.1f}")
    ratios = []
    for title, seconds in (("the same run again", again), (f"with {N_LABELS} new labels", with_labels)):
        ratios.append(seconds / imports)
        print(f"{title:28} {seconds:6.1f}   {ratios[-1]:.2f} times the imports, target {MOST_TIMES}")
    return 0 if max(ratios) <= MOST_TIMES else 1


if __name__ == "__main__":
    sys.exit(main())
