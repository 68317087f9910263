"""Seconds for a change in a session: one more label, a renamed class, a suggestion.

    python benchmarks/session.py                 # 10,000 x 100 and 100,000 x 200, width 512
    python benchmarks/session.py 10000x100       # one size

The exit code says whether a change takes at most 1 second with 10,000 images and 10 seconds with 100,000.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

import captune

WIDTH = 512
SIZES = {"10000x100": 1.0, "100000x200": 10.0}


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds by the clock and of the processor that a call takes."""
    clock, processor = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - clock, time.process_time() - processor


def measure(n_images: int, n_classes: int) -> Iterator[tuple[str, float, float]]:
    """Yield the name of each change, its seconds by the clock, and those of the processor."""
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(n_classes, WIDTH)).astype(np.float32)
    labels = generator.integers(n_classes, size=n_images)
    images = captune.Embeddings(centers[labels] + 2 * generator.normal(size=(n_images, WIDTH)).astype(np.float32))
    names = tuple(f"class {c}" for c in range(n_classes))
    texts = captune.ClassTexts(names, centers + generator.normal(size=centers.shape), 50.0)
    clock, processor = time.perf_counter(), time.process_time()
    session = captune.open_session(images, texts)
    yield "open", time.perf_counter() - clock, time.process_time() - processor
    session.label({s.position: names[labels[s.position]] for s in session.suggest(20)})
    changes: dict[str, Callable[[], object]] = {
        "label": lambda: session.label(0, names[labels[0]]),
        "rename": lambda: session.rename(session.names[3], "renamed"),
        "merge": lambda: session.merge(session.names[:2], "merged"),
        "undo": session.undo,
        "suggest": lambda: session.suggest(20),
        "groups": session.groups,
        "estimate": session.estimate,
    }
    for name, call in changes.items():
        yield (name, *timed(call))


def main() -> int:
    """Print one row per size and change."""
    is_slow = False
    for size in sys.argv[1:] or SIZES:
        for name, seconds, processor in measure(*map(int, size.split("x"))):
            print(f"{size}: {name:9} {seconds:6.2f} s by the clock, {processor:6.2f} s of the processor", flush=True)
            is_slow |= name in ("label", "rename", "merge", "undo") and seconds > SIZES.get(size, 10.0)
    return int(is_slow)


if __name__ == "__main__":
    sys.exit(main())
