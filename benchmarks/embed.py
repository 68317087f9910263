"""Embedding speed on real photographs: from JPEG files, on tensors in memory, and one image at a time.

The three are measured in turn, so that other load affects all of them, and compared by medians.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from captune.backbones.base import load_backbone
from captune.core import runtime
from captune.data.decoding import decode, read_bytes
from captune.data.images import ImageCollection, find_images
from captune.data.views import weak_view
from captune.embeddings.cache import EmbeddingCache
from captune.embeddings.embed import embed_images, encode_pixels

TARGET_BARE, TARGET_SINGLE = 0.90, 1.5


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the worker processes that have ended."""
    return sum(
        resource.getrusage(who)[part] for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN) for part in (0, 1)
    )


def main() -> int:
    """Measure and print the rates and both ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--testbed", default=os.environ.get("CAPTUNE_TESTBED"), help="default: CAPTUNE_TESTBED")
    parser.add_argument("--images", type=int, default=640, help="images in each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args()
    if not options.testbed or not Path(options.testbed, "models", "aerial-dual").is_dir():
        print("skipped: set CAPTUNE_TESTBED to the folder with data/ucmerced and models/aerial-dual")
        return 0

    found = find_images(Path(options.testbed, "data", "ucmerced", "train"))
    images = found.subset(np.linspace(0, len(found) - 1, min(options.images, len(found))).astype(int))
    engine = runtime.start(workers=options.workers, quiet=True)
    backbone = load_backbone(f"dual:{options.testbed}/models/aerial-dual").to(engine.device)
    size, few = options.batch_size, images.subset(range(max(len(images) // 8, 1)))
    views = np.stack([weak_view(decode(read_bytes(path)), backbone.preprocessing) for path in images.paths])
    ready = [backbone.preprocessing.normalize(views[i : i + size]) for i in range(0, len(views), size)]

    cpu = {"bare": [], "files": []}  # CPU seconds an image of all processes: other load on the machine does not count

    def bare() -> float:
        started, busy = time.perf_counter(), cpu_seconds()
        with torch.inference_mode():
            for batch in ready:
                backbone.encode_image(batch)
        cpu["bare"].append((cpu_seconds() - busy) / len(images))
        return len(images) / (time.perf_counter() - started)

    def from_files() -> float:
        with tempfile.TemporaryDirectory() as cold:
            started, busy = time.perf_counter(), cpu_seconds()
            embed_images(backbone, images, EmbeddingCache(Path(cold)), engine, size)
            cpu["files"].append((cpu_seconds() - busy) / len(images))
            return len(images) / (time.perf_counter() - started)

    def one_at_a_time(collection: ImageCollection = few) -> float:
        started = time.perf_counter()
        for path in collection.paths:
            encode_pixels(backbone, np.stack([weak_view(decode(read_bytes(path)), backbone.preprocessing)]))
        return len(collection) / (time.perf_counter() - started)

    bare()  # warm-up
    rates = {"bare": [bare()], "files": [], "single": []}  # the bare forward comes before and after the others
    for _ in range(options.rounds):
        rates["files"].append(from_files())
        rates["single"].append(one_at_a_time())
        rates["bare"].append(bare())
    around = [(before + after) / 2 for before, after in zip(rates["bare"], rates["bare"][1:], strict=False)]
    to_bare = statistics.median(files / forward for files, forward in zip(rates["files"], around, strict=True))
    to_single = statistics.median(a / b for a, b in zip(rates["files"], rates["single"], strict=True))
    for name, what in (("bare", "bare forward on ready tensors"), ("files", "end to end from JPEG files")):
        print(f"{what:32} {statistics.median(rates[name]):7.1f} images/s")
    print(f"{'one image at a time':32} {statistics.median(rates['single']):7.1f} images/s")
    print(f"files / bare   {to_bare:.2f}   target >= {TARGET_BARE:.2f}   ({engine.workers} workers, batch {size})")
    bare_cpu, files_cpu = (1000 * statistics.median(cpu[name]) for name in ("bare", "files"))
    print(f"CPU time an image: bare {bare_cpu:.1f} ms, files {files_cpu:.1f} ms, ratio {bare_cpu / files_cpu:.2f}")
    print(f"files / single {to_single:.2f}   target >= {TARGET_SINGLE:.2f}")
    return 0 if to_bare >= TARGET_BARE and to_single >= TARGET_SINGLE else 1


if __name__ == "__main__":
    sys.exit(main())
