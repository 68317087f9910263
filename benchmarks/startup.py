"""Startup time of the command line: median of five `captune --help`, compared with a bare Python."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

TARGET_SECONDS = 0.5
REPEATS = 5


def seconds(words: list[str]) -> float:
    """Return how long one command takes."""
    started = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> int:
    """Measure both commands in turn, so that other load affects both, and print the medians."""
    bare, full = [sys.executable, "-c", "pass"], [sys.executable, "-m", "captune.cli", "--help"]
    seconds(full)  # the first call may still write byte code
    pairs = [(seconds(bare), seconds(full)) for _ in range(REPEATS)]
    python, helped = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"python -c pass   {python:.3f} s")
    print(f"captune --help   {helped:.3f} s   {helped / python:.1f} times a bare Python, target < {TARGET_SECONDS} s")
    return 0 if helped < TARGET_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
