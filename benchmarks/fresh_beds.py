"""The transductive method and its verdict on beds that no setting was chosen on, made from the others by seed.

    python benchmarks/fresh_beds.py BEDS

`benchmarks/beds.py` says what a bed is. From each one, this makes: half and a fifth of its classes, and ten of them; a
long tail of 50:1; texts with noise; and a fifth of the names exchanged. Beds of the same model are also joined. The
exit code says whether what is kept is nowhere more than one point below zero-shot on the images adapted to.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from beds import Bed, make_world, read_bed
from captune.core.arrays import Floats, Ints, softmax_rows, unit_rows
from captune.mixture.gaussian_mixture import fit_gaussian_mixture
from captune.results.health import check_health
from captune.results.metrics import expected_calibration_error

NOISE = 0.7
"""Length of the noise in texts, as a share of their distance from the mean text."""


def some_classes(bed: Bed, classes: Ints) -> Bed:
    """Return a bed with some of the classes, and only their images."""
    number = np.full(len(bed.texts), -1)
    number[classes] = np.arange(len(classes))
    pool, test = number[bed.labels] >= 0, number[bed.test_labels] >= 0
    return replace(
        bed,
        name=f"{bed.name}, {len(classes)} classes",
        images=bed.images[pool],
        labels=number[bed.labels[pool]],
        test_images=bed.test_images[test],
        test_labels=number[bed.test_labels[test]],
        texts=bed.texts[classes],
        described=None if bed.described is None else bed.described[classes],
    )


def changed(bed: Bed, seed: int = 7) -> Iterator[Bed]:
    """Yield what is made from one bed."""
    generator, n_classes = np.random.default_rng(seed), len(bed.texts)
    for n_kept in sorted({n_classes // 2, max(5, n_classes // 5), 10}):
        yield some_classes(bed, np.sort(generator.permutation(n_classes)[:n_kept]))
    rank, sizes = generator.permutation(n_classes), np.bincount(bed.labels, minlength=n_classes)
    wanted = np.maximum(1, np.round(sizes * 50.0 ** (-rank / (n_classes - 1)))).astype(np.int64)
    tail = [generator.permutation(np.flatnonzero(bed.labels == c))[: wanted[c]] for c in range(n_classes)]
    yield bed.subset("long tail 50:1", np.sort(np.concatenate(tail)))
    noise = unit_rows(generator.normal(size=bed.texts.shape).astype(np.float32))
    spread = np.linalg.norm(bed.texts - bed.texts.mean(axis=0), axis=1, keepdims=True)
    yield replace(bed, name=f"{bed.name}, noisy texts", texts=unit_rows(bed.texts + NOISE * spread * noise))
    wrong = generator.permutation(n_classes)[: max(2, n_classes // 5)]
    texts = bed.texts.copy()
    texts[wrong] = texts[np.roll(wrong, 1)]
    yield replace(bed, name=f"{bed.name}, names exchanged", texts=texts)


def joined(beds: Sequence[Bed]) -> Iterator[Bed]:
    """Yield every union of two beds of the same model."""
    for first, second in itertools.combinations(beds, 2):
        if first.texts.shape[1] == second.texts.shape[1] and first.logit_scale == second.logit_scale:
            after = len(first.texts)
            yield Bed(
                f"{first.name} and {second.name}",
                np.concatenate([first.images, second.images]),
                np.concatenate([first.labels, second.labels + after]),
                np.concatenate([first.test_images, second.test_images]),
                np.concatenate([first.test_labels, second.test_labels + after]),
                np.concatenate([first.texts, second.texts]),
                first.logit_scale,
            )


def measure(bed: Bed) -> tuple[str, float, float]:
    """Return a row of the table, and by how much accuracy and calibration error of what is kept change on the pool."""
    rule = np.float32(bed.logit_scale) * bed.texts
    found = fit_gaussian_mixture(bed.images, bed.texts, bed.logit_scale)
    accuracy, error = {}, {}
    pool: dict[str, Floats] = {}
    for name, weights, offsets, temperature in (
        ("before", rule, np.zeros(len(rule), dtype=np.float32), 1.0),
        ("after", rule + found.weights, found.offsets, found.temperature),
    ):
        for part, images, labels in (
            ("pool", bed.images, bed.labels),
            ("test", bed.test_images, bed.test_labels),
        ):
            probabilities = softmax_rows((images @ weights.T + offsets) / np.float32(temperature))
            accuracy[name, part] = 100 * float(np.mean(probabilities.argmax(axis=1) == labels))
            error[name, part] = 100 * expected_calibration_error(probabilities, labels)
            pool.setdefault(name, probabilities)
    verdict = check_health(bed.images, pool["before"], pool["after"], bed.texts, bed.logit_scale).verdict
    row = f"{bed.name:36}" + "".join(
        f" {numbers['before', part]:6.1f} {numbers['after', part]:6.1f}"
        for numbers, part in ((accuracy, "pool"), (accuracy, "test"), (error, "pool"))
    )
    is_kept = verdict == "helpful"
    changes = (numbers["after", "pool"] - numbers["before", "pool"] for numbers in (accuracy, error))
    gain, calibration = (change if is_kept else 0.0 for change in changes)
    return f"{row}  {verdict}", gain, calibration


def main() -> int:
    """Print one row per bed, and what they have in common."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with beds as .npz files")
    options = parser.parse_args()
    beds = [make_world(), *map(read_bed, sorted(options.folder.glob("*.npz")))]
    described = [
        replace(bed, name=f"{bed.name} described", texts=texts) for bed in beds if (texts := bed.described) is not None
    ]
    print(f"{'':36} pool: before, after; test: before, after; pool's ECE: before, after; verdict")
    gains, calibrations = [], []
    for bed in itertools.chain(*map(changed, [*beds, *described]), joined(beds)):
        row, gain, calibration = measure(bed)
        gains.append(gain)
        calibrations.append(calibration)
        print(row, flush=True)
    harmed, worse = (sum(np.array(numbers) > bar) for numbers, bar in ((-np.array(gains), 1), (calibrations, 3)))
    print(
        f"{len(gains)} beds: what is kept gains {np.mean(gains):+.1f} points on average, {min(gains):+.1f} at worst; "
        f"more than 1 point is lost on {harmed}, calibration is more than 3 points worse on {worse}"
    )
    return int(harmed > 0)


if __name__ == "__main__":
    sys.exit(main())
