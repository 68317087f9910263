"""Measure the time and size of reports of large runs, on made data.

    python benchmarks/report_size.py [--out FOLDER]

Runs with 10,000 classes or 100,000 images are written with random embeddings and 400 pictures of noise, the hardest
case for JPEG, under many names. Each report is written by a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from PIL import Image

from captune.core.arrays import unit_rows
from captune.data.images import ImageCollection
from captune.embeddings.embed import score
from captune.results.finishing import MOST_EMBEDDINGS, MOST_PROBABILITIES, Evidence
from captune.results.run import Run

WIDTH = 512
N_PICTURES = 400
CASES = ((1_000, 100_000), (10_000, 10_000), (10_000, 100_000))
"""Numbers of classes and images."""


class Names:
    """What a run folder needs of a classifier."""

    def __init__(self, names: list[str]) -> None:
        self.names = tuple(names)

    def save(self, folder: Path) -> None:
        """Write nothing: reports do not read the classifier."""
        folder.mkdir(parents=True, exist_ok=True)


def write_pictures(folder: Path, n_images: int) -> list[Path]:
    """Write pictures of noise, and return a path for each image; many paths link to the same picture."""
    paths = [folder / f"{i:06d}.jpg" for i in range(n_images)]
    if folder.is_dir():
        return paths
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for i in range(N_PICTURES):
        pixels = generator.integers(0, 256, (40, 40, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).resize((480, 360), Image.Resampling.BICUBIC)
        image.save(folder / f"picture {i}.jpg", quality=90)
    for i, path in enumerate(paths):
        path.hardlink_to(folder / f"picture {i % N_PICTURES}.jpg")
    return paths


def write_run(folder: Path, n_classes: int, n_images: int, seed: int) -> tuple[Path, Path]:
    """Write a run folder and a table of its labels."""
    generator = np.random.default_rng(seed)
    names = [f"species number {i} <i>" for i in range(n_classes)]
    truth = np.random.default_rng(0).permutation(np.arange(n_images) % n_classes)
    before, after = (
        np.where(generator.random(n_images) < share, truth, (truth + 7) % n_classes) for share in (0.6, 0.8)
    )
    centers = unit_rows(generator.normal(size=(n_classes, WIDTH)).astype(np.float32))
    texts = unit_rows(centers + 0.03 * generator.normal(size=centers.shape).astype(np.float32))
    rows = np.linspace(0, n_images - 1, min(n_images, MOST_PROBABILITIES // n_classes)).astype(np.int32)
    sample = np.linspace(0, n_images - 1, min(n_images, MOST_EMBEDDINGS)).astype(np.int32)
    noise = generator.normal(size=(len(sample), WIDTH)).astype(np.float32)
    images = folder / "images"
    collection = ImageCollection(tuple(write_pictures(images, n_images)), images)
    arrays = {
        "before_labels": before.astype(np.int32),
        "rows": rows,
        "before": score(centers[before[rows]], texts, 10.0),
        "after": score(centers[after[rows]], centers, 10.0),
        "embedded_rows": sample,
        "vectors": unit_rows(centers[truth[sample]] + 0.03 * noise).astype(np.float16),
        "class_vectors": texts,
        "logit_scale": np.asarray([10.0], dtype=np.float32),
    }
    # Labels and confidences are all that is saved of predictions: probabilities would take gigabytes.
    confidence = generator.random(n_images).astype(np.float32)
    predictions = SimpleNamespace(image_index=np.arange(n_images), labels=after, confidence=confidence, fits=None)
    run = Run(
        settings={"method": "transductive", "backbone": "made"},
        images=collection,
        skipped={},
        made=(Names(names), predictions),  # type: ignore[arg-type]
        environment={"versions": {}, "data_fingerprint": "made", "seconds": 1.0},
        evidence=Evidence(arrays),
    )
    table = folder / "labels.csv"
    lines = (f"{path.name},{names[c]}\n" for path, c in zip(collection.paths, truth.tolist(), strict=True))
    table.write_text("path,label\n" + "".join(lines), encoding="utf-8")
    return run.write(folder / f"run-{seed}"), table


def processor_seconds() -> float:
    """Return the processor time of finished child processes."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def main() -> None:
    """Print a table of times and sizes."""
    words = argparse.ArgumentParser(description="Measure the time and size of large reports.")
    words.add_argument("--out", type=Path, help="folder to keep the pages in")
    options = words.parse_args()
    print("| classes | images | page | seconds | of processor time | MB |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for n_classes, n_images in CASES:
            folder = Path(scratch) / f"{n_classes}-{n_images}"
            run, labels = write_run(folder, n_classes, n_images, seed=0)
            other, _ = write_run(folder, n_classes, n_images, seed=1)
            pages = {"report": [run], "report with labels": [run, "--labels", labels], "comparison": [run, other]}
            for name, given in pages.items():
                page = (options.out or folder) / f"{name} {n_classes} {n_images}.html"
                command = [sys.executable, "-m", "captune", "report", *map(str, given), "--out", str(page)]
                start, used = time.perf_counter(), processor_seconds()
                subprocess.run(command, check=True, capture_output=True)
                seconds, used = time.perf_counter() - start, processor_seconds() - used
                size = page.stat().st_size / 1e6
                print(
                    f"| {n_classes:,} | {n_images:,} | {name} | {seconds:.0f} | {used:.0f} | {size:.1f} |", flush=True
                )


if __name__ == "__main__":
    main()
