"""Images that fit no name: a third of the names is taken away; AUROC (%) of images with a name against those without.

    python benchmarks/unknown.py BEDS                  # 5 draws
    python benchmarks/unknown.py BEDS --first 100      # other draws

`benchmarks/beds.py` says what a bed is. The columns are the largest softmax (MCM), the largest cosine, `fits` without
answers, and `fits` after 21 answers to the images that review suggests. The second table shows how many images with a
name are rejected (%) with `reject` of 0.05 and 0.1, with a third of the names taken away and with all names.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from absent import all_beds
from beds import Bed
from captune.core.arrays import Bools, Floats
from captune.embeddings.embed import score
from captune.mixture.open_world import fit_to_names
from captune.review.suggestions import choose_images

N_ANSWERS = 21
COLUMNS = ("MCM", "cosine", "fits", f"fits, {N_ANSWERS} answers")
RATES = (0.05, 0.1)


def draw(bed: Bed, seed: int) -> tuple[Floats, Bools]:
    """Return the texts of two thirds of the names, and which images have one of them."""
    n_classes = len(bed.texts)
    gone = np.random.default_rng([seed, 5]).permutation(n_classes)[: n_classes // 3]
    return np.delete(bed.texts, gone, axis=0), ~np.isin(bed.labels, gone)


def measure(bed: Bed, seed: int) -> list[float]:
    """Return the AUROC of each score; images that were answered are left out of the last."""
    texts, is_known = draw(bed, seed)
    probabilities = score(bed.images, texts, bed.logit_scale)
    none = np.full(len(bed.images), -1)
    asked = choose_images(bed.images, probabilities, none, np.arange(len(none)), N_ANSWERS, 0).positions
    known, unknown = asked[is_known[asked]], asked[~is_known[asked]]
    answered = fit_to_names(bed.images, texts, known=bed.images[known], unknown=bed.images[unknown])
    rest = np.setdiff1d(np.arange(len(none)), asked)
    scores = (probabilities.max(axis=1), (bed.images @ texts.T).max(axis=1), fit_to_names(bed.images, texts))
    found = [roc_auc_score(is_known, values) for values in scores]
    return [100 * float(value) for value in (*found, roc_auc_score(is_known[rest], answered[rest]))]


def rejections(bed: Bed, seed: int) -> list[float]:
    """Return the share of images with a name that each rate rejects, with some and with all names."""
    texts, is_known = draw(bed, seed)
    some, everything = fit_to_names(bed.images, texts)[is_known], fit_to_names(bed.images, bed.texts)
    return [100 * float(np.mean(fits < rate)) for fits in (some, everything) for rate in RATES]


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with beds as .npz files")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    options = parser.parse_args()
    beds, seeds = list(all_beds(options.folder)), range(options.first, options.first + options.draws)
    titles = [f"{'some' if i < len(RATES) else 'all'} names, {rate}" for i, rate in enumerate((*RATES, *RATES))]
    for columns, function in ((COLUMNS, measure), (titles, rejections)):
        print(f"| bed | {' | '.join(columns)} |\n" + "|---" * (1 + len(columns)) + "|")
        means = []
        for bed in beds:
            means.append(np.mean([function(bed, seed) for seed in seeds], axis=0))
            print(f"| {bed.name} | " + " | ".join(f"{number:.1f}" for number in means[-1]) + " |", flush=True)
        print("| mean | " + " | ".join(f"{number:.1f}" for number in np.mean(means, axis=0)) + " |\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
