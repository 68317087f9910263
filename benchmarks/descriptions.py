"""Whether descriptions should be used for all classes at once or class by class, decided without labels.

    python benchmarks/descriptions.py BEDS

`benchmarks/beds.py` says what a bed is; those without descriptions are left out. Each is also cut by one seed, names
and descriptions are exchanged, and a third or two thirds of the names or of the descriptions get those of other
classes. *Auto* is what captune does. *By class* uses the description of a class if its images get more coherent, where
the mean change over all classes counts with the given weight. Accuracy (%) of `transductive` on the images adapted to.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from beds import Bed, make_world, read_bed, variants
from captune.concepts.alignment import coherence_of_texts, descriptions_help
from captune.core.arrays import Bools, Floats
from captune.mixture.gaussian_mixture import fit_gaussian_mixture

WEIGHTS = (0.5, 1.0, 2.0)
FLOOR = 0.1
"""Of the mean coherence, below which a class counts as having that much."""


def exchanged(bed: Bed, described: Floats) -> Iterator[Bed]:
    """Yield a bed whose names and descriptions are exchanged, and some with wrong names or descriptions."""
    yield replace(bed, name=f"{bed.name}, exchanged", texts=described, described=bed.texts)
    generator, n_classes = np.random.default_rng(5), len(bed.texts)
    for words, share in (("a third", 1 / 3), ("two thirds", 2 / 3)):
        wrong = generator.permutation(n_classes)[: round(share * n_classes)]
        names, sentences = bed.texts.copy(), described.copy()
        names[wrong], sentences[wrong] = names[np.roll(wrong, 1)], sentences[np.roll(wrong, 1)]
        yield replace(bed, name=f"{bed.name}, {words} of the descriptions wrong", described=sentences)
        yield replace(bed, name=f"{bed.name}, {words} of the names wrong", texts=names)


def choices(bed: Bed, described: Floats) -> dict[str, Bools]:
    """Return by each rule which classes are described, `(classes,)`."""
    before, after = coherence_of_texts(bed.images, bed.texts, described, bed.logit_scale)
    floor = FLOOR * (before + after).mean(axis=1, keepdims=True) / 2
    own = np.log(np.maximum(after, floor) / np.maximum(before, floor)).mean(axis=0)
    mean = np.log(np.maximum(after.mean(axis=1), 1e-6) / np.maximum(before.mean(axis=1), 1e-6)).mean()
    everyone = np.ones(len(own), dtype=np.bool_)
    helps = descriptions_help(bed.images, bed.texts, described, bed.logit_scale)
    found = {"names": ~everyone, "described": everyone, "auto": everyone if helps else ~everyone}
    return found | {f"by class, {weight:g}": own + weight * mean > 0 for weight in WEIGHTS}


def main() -> int:
    """Print a table with one row per bed, and the mean of every rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with beds as .npz files")
    rows = []
    for bed in (make_world(), *map(read_bed, sorted(parser.parse_args().folder.glob("*.npz")))):
        if bed.described is None:
            continue
        for one in (*variants(bed, 1), *exchanged(bed, bed.described)):
            assert one.described is not None
            chosen = choices(one, one.described)
            if not rows:
                print("| bed | " + " | ".join(chosen) + " |\n" + "|---" * (1 + len(chosen)) + "|")
            texts = [np.where(mask[:, None], one.described, one.texts) for mask in chosen.values()]
            fits = [fit_gaussian_mixture(one.images, each, one.logit_scale) for each in texts]
            rows.append([100 * np.mean(fit.probabilities.argmax(axis=1) == one.labels) for fit in fits])
            print(f"| {one.name} | " + " | ".join(f"{number:.1f}" for number in rows[-1]) + " |", flush=True)
    print("| mean | " + " | ".join(f"{number:.1f}" for number in np.mean(rows, axis=0)) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
