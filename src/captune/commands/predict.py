"""captune predict: classify images with a run or an ONNX export."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from captune.commands._shared import (
    IMAGES_HELP,
    add_common_options,
    add_device_options,
    add_partition_options,
    run_again,
)
from captune.core.errors import InputError
from captune.core.text import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder, or an ONNX export (model.onnx)")
    parser.add_argument("images", metavar="IMAGES", help=f"image, {IMAGES_HELP}")
    parser.add_argument("--top-k", type=int, default=1, metavar="K", help="number of classes per image")
    parser.add_argument(
        "--out", metavar="CSV|FOLDER", help="output table (default: standard output), or folder of partitions"
    )
    add_partition_options(parser)
    add_common_options(parser)
    add_device_options(parser)


def run(options: argparse.Namespace) -> int:
    """Classify images and write a table of paths, labels and probabilities."""
    from captune.commands._shared import run_partitions

    if options.top_k < 1:
        raise InputError(f"--top-k is {options.top_k}, expected at least 1.")
    if _is_partitioned(options):
        if not options.out:
            raise InputError("Predictions by partitions need --out, a folder or an address.")
        run_partitions(options, "predict", options.run)
        return 0
    code = run_again(options)
    return _predict(options) if code is None else code


def _is_partitioned(options: argparse.Namespace) -> bool:
    """Return whether partitions were asked for, or the input or output can only be partitions."""
    from captune.data.partition_folder import is_partition_folder

    asked = (options.partition_size, options.engine, options.processes)
    is_remote = any("://" in place for place in (options.images, options.out or ""))
    return any(value is not None for value in asked) or is_remote or is_partition_folder(options.images)


def _predict(options: argparse.Namespace) -> int:
    from captune.commands._shared import device_settings, print_unused
    from captune.core import distributed
    from captune.core.files import table, write_whole
    from captune.data.inputs import collect_images
    from captune.results.image_classifier import load, top_k

    images = collect_images(options.images)
    classifier = load(options.run)
    predictions = classifier.predictions(images, settings=device_settings(options), quiet=options.quiet)
    if distributed.rank() > 0:
        return 0  # only the first process writes
    best = top_k(predictions.probabilities, options.top_k)
    header = ["path", "label", "confidence"]
    header += [f"{what}_{rank}" for rank in range(2, best.shape[1] + 1) for what in ("label", "confidence")]

    def rows() -> Iterator[Sequence[object]]:
        for row, position in enumerate(predictions.image_index):
            pairs = [(classifier.names[c], f"{predictions.probabilities[row, c]:.6f}") for c in best[row]]
            yield images.name(position), *(cell for pair in pairs for cell in pair)

    if options.out:
        write_whole(Path(options.out), table(header, rows()))
    else:
        is_screen = sys.stdout.isatty()
        sys.stdout.writelines(printable(text) if is_screen else text for text in table(header, rows()))
    print_unused(predictions)
    return 0
