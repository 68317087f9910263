"""How much slower a computation becomes when other processes keep all cores busy: a ratio within one run.

    python benchmarks/busy.py                 # 1,568 embeddings of 98 classes: the mixture, K-means and CAP's quick
    python benchmarks/busy.py --rounds 3

Rounds without and with a load alternate, and the fastest of each counts. The exit code says whether CAP takes at most
2.5 times as long beside as many busy processes as there are cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from captune.backbones.precomputed import Precomputed
from captune.concepts.mismatch import detect_mismatch
from captune.core import runtime
from captune.core.arrays import unit_rows
from captune.core.settings import build
from captune.data.precomputed import ClassTexts, Embeddings
from captune.data.task import AdaptationTask
from captune.data.vocabulary import Vocabulary
from captune.embeddings.cache import EmbeddingCache
from captune.methods.base import Context
from captune.methods.cap import Cap, CapSettings
from captune.mixture.gaussian_mixture import fit_gaussian_mixture

N_IMAGES, N_CLASSES, WIDTH = 1568, 98, 512
MOST = 2.5


def keep_busy() -> None:
    """Compute until the process is ended."""
    rows = np.random.default_rng(0).normal(size=(300, 300))
    while True:
        rows = np.tanh(rows @ rows.T / 300)


def works() -> dict[str, Callable[[], object]]:
    """Return the computations that are timed, on the same random embeddings."""
    generator = np.random.default_rng(0)
    texts = unit_rows(generator.normal(size=(N_CLASSES, WIDTH)).astype(np.float32))
    noise = generator.normal(size=(N_IMAGES, WIDTH)).astype(np.float32)
    images = unit_rows(texts[np.arange(N_IMAGES) % N_CLASSES] + 0.1 * noise)
    backbone = Precomputed(ClassTexts(tuple(f"class {i}" for i in range(N_CLASSES)), texts, 100.0))
    task = AdaptationTask(Vocabulary(backbone.texts.names, ("{}",)), Embeddings(images))

    def cap() -> None:
        with tempfile.TemporaryDirectory() as folder:
            context = Context(runtime.start(workers=0, quiet=True), EmbeddingCache(Path(folder)))
            Cap(build(CapSettings, Cap.presets["quick"], "settings")).adapt(task, backbone, context)

    return {
        "mixture": lambda: fit_gaussian_mixture(images, texts),
        "misleading names": lambda: detect_mismatch(images, texts),
        "CAP quick": cap,
    }


def seconds(work: Callable[[], object]) -> float:
    """Return the wall-clock seconds of a call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> int:
    """Print a row for every computation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    ratio = 0.0
    print("| computation | alone, s | beside a load, s | ratio |\n|---|---|---|---|")
    for name, work in works().items():
        work()  # imports
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(options.rounds):
            for is_busy in (False, True):
                load = [multiprocessing.Process(target=keep_busy, daemon=True) for _ in range(os.cpu_count() or 1)]
                for process in load if is_busy else ():
                    process.start()
                times[is_busy].append(seconds(work))
                for process in load if is_busy else ():
                    process.terminate()
                    process.join()
        alone, beside = min(times[False]), min(times[True])
        ratio = beside / alone
        print(f"| {name} | {alone:.2f} | {beside:.2f} | {ratio:.2f} |", flush=True)
    return 0 if ratio <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
