"""A second image encoder on every bed: accuracy of the mixture with each weight, and with the weight that is chosen.

    python benchmarks/second_encoder.py FOLDER

A bed is a file as in benchmarks/beds.py. With an array `second` (see benchmarks/embed_bed.py --second), this encoder is
joined to the first space as it is and degraded: noise, or fewer dimensions. Without it, the second encoder is the first
space (beside a degraded first one), a noisy copy of it, pure noise, or clusters that have nothing to do with the
classes. The weight is chosen with class names, also where classes are described. The exit code says whether the chosen
weight costs nowhere more than half a point.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from beds import Bed, read_bed
from captune.core.arrays import Floats, Ints, unit_rows
from captune.embeddings.similarity import nearest_neighbors
from captune.mixture.gaussian_mixture import fit_gaussian_mixture
from captune.mixture.second_encoder import WEIGHTS, choose_weight

NOISE, MUCH_NOISE, FEW_DIMENSIONS, N_CAMERAS = 1.5, 2.5, 16, 20


class Case(NamedTuple):
    """A bed with a second encoder; `names` and `texts` differ where classes are described."""

    name: str
    bed: Bed
    second: Floats
    names: Floats
    texts: Floats


def noisy(vectors: Floats, level: float) -> Floats:
    """Return vectors with Gaussian noise, whose length is `level` times theirs."""
    noise = np.random.default_rng(0).normal(size=vectors.shape)
    return unit_rows(np.asarray(vectors + level * noise / np.sqrt(vectors.shape[1]), dtype=np.float32))


def degraded(bed: Bed, texts: Floats) -> Iterator[tuple[str, Floats, Floats, Floats]]:
    """Yield degraded image embeddings, with names and texts in the same space."""
    for level in (NOISE, MUCH_NOISE):
        yield f"noise {level}", noisy(bed.images, level), bed.texts, texts
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(bed.images.shape[1], FEW_DIMENSIONS)))[0]
    fewer = [unit_rows(np.asarray(part @ basis, dtype=np.float32)) for part in (bed.images, bed.texts, texts)]
    yield f"{FEW_DIMENSIONS} dimensions", *fewer


def cases(bed: Bed, second: Floats | None) -> Iterator[Case]:
    """Yield the bed and its degraded versions, each with suitable second encoders."""
    generator = np.random.default_rng(1)
    cameras = unit_rows(generator.normal(size=(N_CAMERAS, 64)))[generator.integers(N_CAMERAS, size=len(bed.images))]
    unrelated = {
        "pure noise": generator.normal(size=(len(bed.images), 256)),
        "other clusters": cameras + 0.3 * generator.normal(size=cameras.shape) / 8,
    }
    useless = {name: unit_rows(np.asarray(vectors, dtype=np.float32)) for name, vectors in unrelated.items()}
    useless |= {"noisy copy": noisy(bed.images, NOISE)} if second is None else {"second": second}
    for kind, texts in (("names", bed.texts), ("described", bed.described)):
        if texts is None:
            continue
        for name, vectors in useless.items():
            yield Case(f"{bed.name}, {kind} + {name}", bed, vectors, bed.texts, texts)
        for name, images, names, own in degraded(bed, texts):
            other = bed.images if second is None else second
            yield Case(f"{bed.name}, {kind}, {name} + good", replace(bed, images=images), other, names, own)


def accuracy(case: Case, weight: float) -> float:
    """Return the percentage of right labels with this weight."""
    bed, length = case.bed, float(np.sqrt(1 + weight**2))
    images = np.hstack([bed.images, np.float32(weight) * case.second]) / np.float32(length)
    texts = np.pad(case.texts, ((0, 0), (0, case.second.shape[1])))
    found = fit_gaussian_mixture(images, texts, bed.logit_scale * length)
    return 100 * float(np.mean(found.probabilities.argmax(axis=1) == bed.labels))


def right_neighbors(vectors: Floats, labels: Ints) -> float:
    """Return the share of images whose nearest neighbor has the same class."""
    nearest = nearest_neighbors(vectors, np.arange(len(vectors)), 1)[:, 0]
    return float(np.mean(labels[nearest] == labels))


def main() -> int:
    """Print one row per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with beds as .npz files")
    worst = 0.0
    print(f"{'':48} neighbors right: first, second; accuracy with weights 0, {WEIGHTS}; chosen weight, gain")
    for path in sorted(parser.parse_args().folder.glob("*.npz")):
        content = np.load(path)
        second = None
        if "second" in content:  # in the order of `read_bed`
            order = np.random.default_rng(0).permutation(len(content["second"]))
            second = unit_rows(content["second"].astype(np.float32))[order]
        for case in cases(read_bed(path), second):
            bed = case.bed
            weight = choose_weight(bed.images, case.second, case.names, bed.logit_scale)
            tried = {one: accuracy(case, one) for one in (0.0, *WEIGHTS)}
            gain = tried[weight] - tried[0.0]
            worst = min(worst, gain)
            neighbors = " ".join(f"{right_neighbors(one, bed.labels):.2f}" for one in (bed.images, case.second))
            numbers = " ".join(f"{value:5.1f}" for value in tried.values())
            print(f"{case.name:48} {neighbors}  {numbers}  {weight:g} {gain:+.1f}", flush=True)
    print(f"Largest loss: {worst:.1f}")
    return int(worst < -0.5)


if __name__ == "__main__":
    sys.exit(main())
