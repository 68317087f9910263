"""Names that no image shows: accuracy (%) where a few, half, two thirds or all of the names are present.

    python benchmarks/absent.py BEDS                           # 20 draws in every cell
    python benchmarks/absent.py BEDS --draws 4 --first 100     # other draws
    python benchmarks/absent.py BEDS --old /path/to/captune-0.2/src

`benchmarks/beds.py` says what a bed is; the cells are those of StatA (Zanella et al., 2025). The columns are zero-shot,
the mixture with all names (`absent_names=False`), StatA, the mixture, and what keep-better keeps. `--csv` writes every
draw. The exit code says whether what is kept is never more than one point below zero-shot.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from beds import Bed, make_world, read_bed
from captune.core.arrays import Floats, Ints
from captune.embeddings.embed import score
from captune.methods.stata import solve_stata
from captune.mixture.gaussian_mixture import MixtureSettings, fit_gaussian_mixture
from captune.results.health import check_health

CELLS = {"1 to 4": 64, "5 to 25": 500, "half": 500, "two thirds": 700, "all": 1000}
COLUMNS = ("zero-shot", "all names", "StatA", "mixture", "kept")
CLEAR = 3.0
"""Gain, in points, that the health check should recognize."""


def draw(bed: Bed, cell: str, seed: int) -> tuple[Floats, Ints]:
    """Return random images of random classes, and their labels."""
    n_classes, generator = len(bed.texts), np.random.default_rng([seed, list(CELLS).index(cell)])
    wanted = {"half": n_classes // 2, "two thirds": 2 * n_classes // 3, "all": n_classes}
    few, some = int(generator.integers(1, 5)), int(generator.integers(5, 26))
    n_present = min(n_classes, wanted.get(cell, few if cell == "1 to 4" else some))
    present = generator.permutation(n_classes)[:n_present]
    rows = generator.permutation(np.flatnonzero(np.isin(bed.labels, present)))[: CELLS[cell]]
    return bed.images[rows], bed.labels[rows]


def measure(bed: Bed, cell: str, seed: int) -> dict[str, object]:
    """Return the accuracies of one draw, in percent."""
    images, labels = draw(bed, cell, seed)
    texts, scale = bed.texts, bed.logit_scale
    before = score(images, texts, scale)
    after = fit_gaussian_mixture(images, texts, scale)
    health = check_health(images, before, after.probabilities, texts, scale)
    kept = after.probabilities if health.verdict == "helpful" else before
    everything = fit_gaussian_mixture(images, texts, scale, MixtureSettings(absent_names=False)).probabilities
    found = (before, everything, solve_stata(images, texts, scale).probabilities, after.probabilities, kept)
    accuracy = [round(100 * float(np.mean(rows.argmax(axis=1) == labels)), 2) for rows in found]
    return {
        "bed": bed.name,
        "present": cell,
        "draw": seed,
        **dict(zip(COLUMNS, accuracy, strict=True)),
        "verdict": health.verdict,
        "expected": round(100 * health.expected_change, 2),
        "error": round(100 * health.standard_error, 2),
        "names": round(1 - float(np.mean(after.is_absent)), 3) if after.is_absent.size else 1.0,
    }


def all_beds(folder: Path) -> Iterator[Bed]:
    """Yield the embedded world and every bed of a folder."""
    yield make_world()
    yield from map(read_bed, sorted(folder.glob("*.npz")))


def main() -> int:
    """Print one row per bed and cell, then how far the health check recognizes gains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with beds as .npz files")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    parser.add_argument("--beds", nargs="*", help="names of beds; all by default")
    parser.add_argument("--csv", type=Path, help="table of all draws to write")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    print(f"| bed | present | {' | '.join(COLUMNS)} | names kept |" + "\n" + "|---" * (len(COLUMNS) + 3) + "|")
    for bed in all_beds(options.folder):
        for cell in CELLS if not options.beds or bed.name in options.beds else ():
            found = [measure(bed, cell, seed) for seed in range(options.first, options.first + options.draws)]
            means = [float(np.mean([float(str(row[column])) for row in found])) for column in (*COLUMNS, "names")]
            numbers = " | ".join(f"{number:.1f}" for number in means[:-1])
            print(f"| {bed.name} | {cell} | {numbers} | {means[-1]:.0%} |", flush=True)
            rows += found
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    change = {name: np.array([float(str(r[name])) - float(str(r["zero-shot"])) for r in rows]) for name in COLUMNS}
    is_kept = np.array([row["verdict"] == "helpful" for row in rows])
    clear = change["mixture"] > CLEAR
    print(f"Gains above {CLEAR:.0f} points: {clear.sum()} of {len(rows)} draws, {is_kept[clear].mean():.0%} recognized")
    print(f"Worst draw against zero-shot: mixture {change['mixture'].min():+.1f}, kept {change['kept'].min():+.1f}")
    return int(change["kept"].min() < -1.0)


if __name__ == "__main__":
    sys.exit(main())
