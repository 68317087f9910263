"""Shards of small images, a stand-in for Slurm, and what a folder of partitions holds."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

MODEL = "embedded:patterns"
SBATCH = """#!/bin/sh
# Runs a script at once, as often as its array asks for; dependencies hold because every job has ended.
for script; do :; done
tasks=$(sed -n 's/^#SBATCH --array=0-//p' "$script")
for task in $(seq 0 "${tasks:-0}"); do SLURM_ARRAY_TASK_ID=$task sh "$script" 1>&2; done
echo 12345
"""


def image_files(n: int, seed: int = 0) -> dict[str, bytes]:
    pixels = np.random.default_rng(seed).integers(0, 255, (n, 16, 16, 3), dtype=np.uint8)
    found = {}
    for i, image in enumerate(pixels):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        found[f"{i:04d}.png"] = file.getvalue()
    return found


def write_shards(folder: Path, files: dict[str, bytes], n_shards: int = 3) -> Path:
    folder.mkdir(parents=True)
    for number, names in enumerate(np.array_split(sorted(files), n_shards)):
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            for name in names:
                entry = tarfile.TarInfo(str(name))
                entry.size = len(files[str(name)])
                tar.addfile(entry, io.BytesIO(files[str(name)]))
    return folder


def install_sbatch(folder: Path) -> str:
    """Write the stand-in and return a PATH that finds it first."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sbatch").write_text(SBATCH, encoding="utf-8")
    (folder / "sbatch").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


def n_finished(folder: Path) -> int:
    return len(list(folder.glob("_part-*.json")))
