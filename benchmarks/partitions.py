"""Embedding by partitions: images a second against the model's bare forward, and memory by number of images.

    python benchmarks/partitions.py --sizes 10000 100000 1000000
    python benchmarks/partitions.py --sizes 20000 --engines local ray --workers 2

Images of 32 pixels are in tar shards of 10,000. Each size runs in a process of its own, which embeds them with one
worker (processor seconds, so that other programs do not count) and then times the forward alone. With `--engines`, the
engines are compared by the clock instead. Fails if memory grows by more than 50 MB, or time by 1.05 of linear.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

MODEL, PER_SHARD, BATCH = "embedded:patterns", 10_000, 32


def write_shards(folder: Path, n: int) -> Path:
    """Write n images, 500 different ones again and again."""
    folder.mkdir(parents=True)
    contents = []
    for pixels in np.random.default_rng(0).integers(0, 255, (500, 8, 8, 3), dtype=np.uint8):
        file = io.BytesIO()
        Image.fromarray(pixels).resize((32, 32)).save(file, "JPEG")
        contents.append(file.getvalue())
    for first in range(0, n, PER_SHARD):
        with tarfile.open(folder / f"{first // PER_SHARD:05d}.tar", "w") as tar:
            for i in range(first, min(first + PER_SHARD, n)):
                entry = tarfile.TarInfo(f"{i:08d}.jpg")
                entry.size = len(contents[i % 500])
                tar.addfile(entry, io.BytesIO(contents[i % 500]))
    return folder


def measure(shards: str, out: str, model: str) -> dict[str, Any]:
    """Embed all shards in this process, then time the forward of some of the same images."""
    import torch

    from captune.backbones.base import load_backbone
    from captune.data.images import find_images
    from captune.data.views import weak_view
    from captune.embeddings.embed import encode_pixels
    from captune.partitions.job import Job, run_job

    job = Job("embed", shards, model, partition_size=1000, batch_size=BATCH, accelerator="cpu")
    started = time.process_time()
    found = run_job(job, out, quiet=True)
    seconds = time.process_time() - started
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    torch.set_num_threads(1)
    backbone = load_backbone(model)
    images = find_images(sorted(Path(shards).iterdir())[0])
    views = np.stack(
        [weak_view(images.read(i).decode(), backbone.preprocessing) for i in range(min(1024, len(images)))]
    )
    rates = []
    for _ in range(3):
        begun = time.process_time()
        for first in range(0, len(views), BATCH):
            encode_pixels(backbone, views[first : first + BATCH])
        rates.append((time.process_time() - begun) / len(views))
    n = found["images"]
    return {"images": n, "seconds": seconds, "forward": min(rates), "peak_mb": peak / 1000}


def compare(shards: str, folder: Path, engines: list[str], workers: int) -> None:
    """Print images a second of each engine by the clock, without the start of its workers."""
    from captune.partitions.job import Job, run_job

    for engine in engines:
        job = Job("embed", shards, MODEL, partition_size=1000, batch_size=BATCH, accelerator="cpu")
        found = run_job(job, str(folder / engine), engine, workers)
        print(f"{engine}: {found['images'] / found['worker_seconds'] * workers:,.0f} images/s on {workers} workers")


def main() -> int:
    """Measure all sizes and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--engines", nargs="+", default=[])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--backbone", default=MODEL)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options.backbone)))
        return 0
    rows = []
    with tempfile.TemporaryDirectory(prefix="captune-partitions-") as name:
        folder = Path(name)
        if options.engines:
            compare(str(write_shards(folder / "shards", options.sizes[0])), folder, options.engines, options.workers)
            return 0
        for size in options.sizes:
            shards = write_shards(folder / f"shards-{size}", size)
            command = [sys.executable, __file__, "--one", str(shards), str(folder / f"out-{size}")]
            command += ["--backbone", options.backbone]
            done = subprocess.run(
                command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, check=True
            )
            rows.append(json.loads(done.stdout))
            seconds, forward, peak = (rows[-1][name] for name in ("seconds", "forward", "peak_mb"))
            rate, share = size / seconds, forward * size / seconds
            print(f"| {size:,} | {seconds:.1f} | {rate:,.0f} | {share:.2f} | {peak:.0f} |", flush=True)
    first, last = rows[0], rows[-1]
    growth = last["seconds"] / first["seconds"] * first["images"] / last["images"]
    if last["images"] > first["images"]:  # without the start, which takes the same time for any number
        each = (last["seconds"] - first["seconds"]) / (last["images"] - first["images"])
        print(f"share of the forward in the time of one more image: {last['forward'] / each:.2f}")
    print(f"time relative to linear: {growth:.3f}; memory: {last['peak_mb'] - first['peak_mb']:+.0f} MB")
    return 0 if growth <= 1.05 and last["peak_mb"] - first["peak_mb"] <= 50 else 1


if __name__ == "__main__":
    sys.exit(main())
