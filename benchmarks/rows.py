"""Time and memory by number of images: scan a manifest, look up cached embeddings, pseudo-label.

Each size runs in its own process. Images are never decoded: the reader returns an image's name as its content, and the
cache holds an embedding for each, so everything except decoding and encoding is the real code. Seconds are the smallest
CPU time of several rounds; memory is the peak of anonymous memory above that at the start, because pages of mapped
files can be dropped at any time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

SIZES = (10_000, 100_000, 1_000_000)
STEPS = ("scan", "index", "label")
MOST_EXPONENT, MOST_MEGABYTES = 1.05, 2048
PER_FOLDER = 1000
N_LABELS = 16
T = TypeVar("T")


def anonymous_megabytes() -> float:
    """Return the anonymous memory of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


class Meter:
    """Measures CPU time, wall time and peak anonymous memory of steps."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, float]] = {}
        self._base = self._peak = anonymous_megabytes()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self._peak = max(self._peak, anonymous_megabytes())
            time.sleep(0.05)

    def measure(self, name: str, step: Callable[[], T]) -> T:
        """Run a step, record its cost and return its result."""
        self._peak = anonymous_megabytes()
        clock, cpu = time.perf_counter(), time.process_time()
        found = step()
        self.rows[name] = {
            "cpu": time.process_time() - cpu,
            "clock": time.perf_counter() - clock,
            "megabytes": max(self._peak, anonymous_megabytes()) - self._base,
        }
        return found


def write_manifest(path: Path, n_images: int) -> None:
    """Write a CSV file of paths, 1000 per folder."""
    with path.open("w", encoding="utf-8") as file:
        file.write("path\n")
        file.writelines(f"part-{i // PER_FOLDER:05d}/image-{i:08d}.jpg\n" for i in range(n_images))


def measure(n_images: int, n_classes: int, width: int, folder: Path) -> dict[str, dict[str, float]]:
    """Run all steps for one size and return their costs."""
    import numpy as np

    from captune.core import runtime
    from captune.core.arrays import Floats, unit_rows
    from captune.core.files import table, write_whole
    from captune.data.decoding import EncodedImage
    from captune.data.images import ImageCollection, find_images
    from captune.data.keys import content_key
    from captune.data.views import Preprocessing
    from captune.embeddings.cache import ROWS_PER_PART, EmbeddingCache
    from captune.embeddings.embed import embed_images, score
    from captune.embeddings.predictions import Predictions
    from captune.labeling.selection import first_labels, top_k_per_class

    engine, cache = runtime.start(workers=0, quiet=True), EmbeddingCache(folder / "cache")
    preprocessing = Preprocessing(224, 224, "bilinear", (0.5,) * 3, (0.5,) * 3)
    backbone: Any = SimpleNamespace(embed_dim=width, preprocessing=preprocessing, fingerprint=lambda: "benchmark")
    # The content of an image is its name.
    ImageCollection.read = lambda images, i: EncodedImage(bytes(images.paths[i]))  # type: ignore[method-assign]
    write_manifest(folder / "manifest.csv", n_images)
    generator = np.random.default_rng(0)
    texts = unit_rows(generator.normal(size=(n_classes, width)).astype(np.float32))

    def fill_cache(images: ImageCollection) -> None:
        from captune.data.views import WeakView

        with cache.open(backbone.fingerprint(), repr(WeakView(preprocessing)), width) as shard:
            for start in range(0, n_images, ROWS_PER_PART):
                rows = range(start, min(start + ROWS_PER_PART, n_images))
                keys = np.stack([content_key(bytes(images.paths[i])) for i in rows])
                near = texts[generator.integers(n_classes, size=len(rows))]
                noise = generator.normal(scale=3 / math.sqrt(width), size=near.shape)
                shard.add(keys, unit_rows((near + noise).astype(np.float32)))

    def label(vectors: Floats) -> None:
        first = first_labels(vectors, texts, 100.0, k=N_LABELS)
        predictions = Predictions(np.arange(n_images), score(vectors, texts, 100.0))
        grown = top_k_per_class(predictions.probabilities, N_LABELS, predicted_only=True)
        assert len(first) == N_LABELS * n_classes >= len(grown) > 0
        labels, sure = predictions.labels, predictions.confidence
        rows = ((images.name(i), labels[i], f"{sure[i]:.6f}") for i in range(n_images))
        write_whole(folder / "predictions.csv", table(("path", "label", "confidence"), rows))

    meter = Meter()
    images = meter.measure("scan", lambda: find_images(folder / "manifest.csv"))
    fill_cache(images)
    embedded = meter.measure("index", lambda: embed_images(backbone, images, cache, engine))
    assert len(embedded.vectors) == n_images
    meter.measure("label", lambda: label(embedded.vectors))
    return meter.rows


def run_apart(n_images: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure one size in a fresh process."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        words = [sys.executable, __file__, "--one", str(n_images), "--folder", folder]
        words += ["--classes", str(options.classes), "--width", str(options.width)]
        environment = {**os.environ, "CAPTUNE_CACHE": str(Path(folder) / "cache")}
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def exponent(points: list[tuple[int, float]]) -> float:
    """Return the slope of log seconds over log rows, by least squares."""
    rows, seconds = ([math.log(point[i]) for point in points] for i in (0, 1))
    middle, level = sum(rows) / len(rows), sum(seconds) / len(seconds)
    spread = sum((x - middle) ** 2 for x in rows)
    return sum((x - middle) * (y - level) for x, y in zip(rows, seconds, strict=True)) / spread


def main() -> int:
    """Measure all sizes and print the table; growth is the slope of log seconds over log rows, fitted to all sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="folder for temporary files (default: the system's)")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.classes, options.width, Path(options.folder))))
        return 0
    print(f"{options.classes} classes, embeddings of width {options.width}")
    print(f"{'step':6} {'rows':>11} {'CPU s':>9} {'us a row':>9} {'MB':>7} {'embeddings, MB':>15}")
    seconds: dict[str, list[tuple[int, float]]] = {step: [] for step in STEPS}
    is_good = True
    for n_images in options.sizes:
        rounds = [run_apart(n_images, options) for _ in range(options.rounds)]
        for step in STEPS:
            cpu = min(found[step]["cpu"] for found in rounds)
            megabytes = max(found[step]["megabytes"] for found in rounds)
            seconds[step].append((n_images, cpu))
            is_good &= megabytes <= MOST_MEGABYTES
            mapped = n_images * options.width * 4 / 1e6
            times = f"{cpu:9.2f} {1e6 * cpu / n_images:9.1f}"
            print(f"{step:6} {n_images:11,} {times} {megabytes:7.0f} {mapped:15,.0f}", flush=True)
    if len(options.sizes) > 1:
        growth = {step: exponent(points) for step, points in seconds.items()}
        is_good &= max(growth.values()) <= MOST_EXPONENT
        print("exponent of the growth: " + ", ".join(f"{step} {value:.2f}" for step, value in growth.items()))
    print(f"exponent at most {MOST_EXPONENT}, memory at most {MOST_MEGABYTES} MB: {'yes' if is_good else 'NO'}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
