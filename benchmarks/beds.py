"""Transductive methods on every bed: accuracy on the images adapted to and on new images.

    python benchmarks/beds.py CLIP_FOLDER              # the embedded world and every *.npz file in a folder
    python benchmarks/beds.py CLIP_FOLDER --seeds 3    # also long tails, four images per class, and absent classes

A bed is an .npz file with train_images, train_labels, test_images, test_labels, texts and logit_scale, and optionally
sentences (classes, n, width): embeddings of descriptions. The exit code says whether `transductive` is nowhere more
than one point below zero-shot.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from captune.concepts.alignment import descriptions_help
from captune.core.arrays import Floats, Ints, softmax_rows, unit_rows
from captune.data.images import find_images
from captune.data.vocabulary import read_descriptions
from captune.methods.transclip import solve_transclip
from captune.mixture.gaussian_mixture import fit_gaussian_mixture
from captune.results.metrics import expected_calibration_error


@dataclass(frozen=True)
class Bed:
    """Embeddings with their true labels; `described` are texts with descriptions, if there are any."""

    name: str
    images: Floats
    labels: Ints
    test_images: Floats
    test_labels: Ints
    texts: Floats
    logit_scale: float
    described: Floats | None = None

    def shuffled(self) -> Bed:
        """Return the images in a random order: files are stored class by class, which no method may know."""
        pool, test = (np.random.default_rng(0).permutation(len(part)) for part in (self.labels, self.test_labels))
        return replace(
            self,
            images=self.images[pool],
            labels=self.labels[pool],
            test_images=self.test_images[test],
            test_labels=self.test_labels[test],
        )

    def subset(self, name: str, rows: Ints) -> Bed:
        """Return some of the images."""
        return replace(self, name=f"{self.name}, {name}", images=self.images[rows], labels=self.labels[rows])


def read_bed(path: Path) -> Bed:
    """Read a bed from its file."""
    content = np.load(path)
    texts = unit_rows(content["texts"].astype(np.float32))
    described = None
    if "sentences" in content:
        described = unit_rows(np.concatenate([texts[:, None], content["sentences"]], axis=1).mean(axis=1))
    images, test_images = (unit_rows(content[f"{part}_images"].astype(np.float32)) for part in ("train", "test"))
    labels, scale = (content["train_labels"], content["test_labels"]), float(content["logit_scale"])
    return Bed(path.stem, images, labels[0], test_images, labels[1], texts, scale, described).shuffled()


def make_world() -> Bed:
    """Return the embedded world with its descriptions."""
    from captune.backbones.base import load_backbone
    from captune.core import runtime
    from captune.embeddings.cache import EmbeddingCache
    from captune.embeddings.embed import embed_images, embed_texts
    from captune.world import class_names, descriptions_path, write_world

    backbone, names = load_backbone("embedded:patterns"), list(class_names())
    engine, parts = runtime.start(quiet=True, workers=0), []
    with tempfile.TemporaryDirectory() as folder:
        for split, n_images in (("train", 50), ("test", 25)):
            write_world(Path(folder) / split, n_images, 0, split=split)
            images = find_images(Path(folder) / split)
            parts.append(embed_images(backbone, images, EmbeddingCache(Path(folder) / "cache"), engine).vectors)
            parts.append(np.array([names.index(path.parent.name) for path in images.paths]))
    texts = embed_texts(backbone, [f"a photo of a {name}" for name in names])
    sentences = read_descriptions(descriptions_path())
    described = [
        np.vstack([text, embed_texts(backbone, sentences[name])]).mean(axis=0)
        for text, name in zip(texts, names, strict=True)
    ]
    return Bed("patterns", *parts, texts, backbone.logit_scale, unit_rows(np.stack(described))).shuffled()


def variants(bed: Bed, seeds: int) -> Iterator[Bed]:
    """Yield a bed, and by seed its long tail, four images per class, and two thirds of its classes."""
    yield bed
    n_classes, sizes = len(bed.texts), np.bincount(bed.labels, minlength=len(bed.texts))
    for seed in range(seeds):
        generator = np.random.default_rng(seed)
        order = generator.permutation(n_classes)
        shuffled = generator.permutation(len(bed.labels))
        place = np.empty(len(shuffled), dtype=np.int64)  # the how-manieth of its class each image is
        for class_id in range(n_classes):
            own = shuffled[bed.labels[shuffled] == class_id]
            place[own] = np.arange(len(own))
        rank = np.argsort(order)
        tail = np.maximum(1, np.round(sizes * 10.0 ** (-rank / max(1, n_classes - 1))))
        yield bed.subset(f"long tail {seed}", np.flatnonzero(place < tail[bed.labels]))
        if sizes.mean() > 5:
            yield bed.subset(f"four a class {seed}", np.flatnonzero(place < 4))
        present = rank >= n_classes // 3
        absent = bed.subset(f"a third absent {seed}", np.flatnonzero(present[bed.labels]))
        kept = present[bed.test_labels]
        yield replace(absent, test_images=bed.test_images[kept], test_labels=bed.test_labels[kept])


def measure(bed: Bed) -> tuple[str, bool]:
    """Return a row of the table, and whether the transductive method does no harm."""
    rule = np.float32(bed.logit_scale) * bed.texts
    found = fit_gaussian_mixture(bed.images, bed.texts, bed.logit_scale)
    peer = solve_transclip(bed.images, bed.texts, bed.logit_scale)
    adapted = (rule + found.weights, found.offsets, found.temperature)
    zero_shot = (rule, np.zeros(len(rule), dtype=np.float32), 1.0)
    parts = ((bed.images, bed.labels), (bed.test_images, bed.test_labels))
    numbers = []
    for weights, offsets, temperature in (zero_shot, adapted):
        for images, labels in parts:
            probabilities = softmax_rows((images @ weights.T + offsets) / np.float32(temperature))
            numbers.append(100 * float(np.mean(probabilities.argmax(axis=1) == labels)))
            numbers.append(100 * expected_calibration_error(probabilities, labels))
    pool, pool_error, test, _, new_pool, new_error, new_test, _ = numbers
    transclip = 100 * float(np.mean(peer.probabilities.argmax(axis=1) == bed.labels))
    row = f"{bed.name:36} {pool:6.1f} {transclip:6.1f} {new_pool:6.1f} {test:6.1f} {new_test:6.1f} "
    return row + f"{pool_error:6.1f} {new_error:6.1f}", min(new_pool - pool, new_test - test) >= -1.0


def main() -> int:
    """Print one row per bed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with beds as .npz files")
    parser.add_argument("--seeds", type=int, default=0, help="seeds of the variants of each bed; 0 for none")
    options = parser.parse_args()
    print(f"{'':36} pool: 0-shot, TransCLIP, transductive; test: 0-shot, transductive; ECE: 0-shot, transductive")
    harmed = []
    for bed in (make_world(), *map(read_bed, sorted(options.folder.glob("*.npz")))):
        for one in variants(bed, options.seeds):
            kinds = [one]
            if one.described is not None:
                helps = descriptions_help(one.images, one.texts, one.described, one.logit_scale)
                note = "used" if helps else "not used"
                kinds.append(replace(one, name=f"{one.name}, described ({note})", texts=one.described))
            for kind in kinds:
                row, is_safe = measure(kind)
                print(row + ("" if is_safe else "  HARMED"), flush=True)
                harmed += [] if is_safe else [kind.name]
    print(f"More than one point below zero-shot: {', '.join(harmed) or 'none'}")
    return int(bool(harmed))


if __name__ == "__main__":
    sys.exit(main())
