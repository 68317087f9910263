"""captune predict: classify images with a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from captune.commands._options import add_where
from captune.core.errors import InputError


def add(commands: Any) -> None:  # noqa: ANN401 (argparse keeps this class private)
    """Declare the command."""
    words = commands.add_parser("predict", help="classify images with a run or an ONNX export", allow_abbrev=False)
    words.add_argument("run", metavar="RUN", help="run folder, or an ONNX export (model.onnx)")
    words.add_argument("images", metavar="IMAGES", help="image, folder, .tar shards, manifest, or text file of paths")
    words.add_argument("--top-k", type=int, default=1, metavar="K", help="classes to show for each image")
    words.add_argument("--out", metavar="CSV", help="table to write (default: standard output)")
    words.add_argument("--workers", type=int, help="processes that decode images")
    add_where(words)


def run(options: argparse.Namespace) -> None:
    """Classify images and write a table of paths, labels and probabilities."""
    from captune.commands._images import find_any, score_images
    from captune.core import distributed
    from captune.core.files import table, write_whole
    from captune.results.image_classifier import top_k
    from captune.results.load import load

    if options.top_k < 1:
        raise InputError(f"--top-k is {options.top_k}, expected at least 1.")
    images = find_any(options.images)
    classifier = load(options.run)
    predictions, skipped = score_images(options, classifier, images)
    if distributed.rank() > 0:
        return  # the first process writes for all
    best = top_k(predictions.probabilities, options.top_k)
    header = ["path", "label", "confidence"]
    header += [f"{what}_{rank}" for rank in range(2, best.shape[1] + 1) for what in ("label", "confidence")]

    def rows() -> Iterator[Sequence[object]]:
        for row, position in enumerate(predictions.image_index):
            shown = [(classifier.names[c], f"{predictions.probabilities[row, c]:.6f}") for c in best[row]]
            yield images.name(position), *(word for pair in shown for word in pair)

    if options.out:
        write_whole(Path(options.out), table(header, rows()))
    else:
        sys.stdout.writelines(table(header, rows()))
    for position, reason in skipped.items():
        sys.stderr.write(f"skipped: {images.name(position)}: {reason}\n")
