"""captune evaluate: measure a run on labeled images."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from captune.commands._shared import IMAGES_HELP, LABELS_HELP, add_common_options, add_device_options, run_again
from captune.core.errors import InputError

if TYPE_CHECKING:
    from captune.results.metrics import Metrics


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder, or an ONNX export (model.onnx)")
    parser.add_argument("images", metavar="IMAGES", help=IMAGES_HELP)
    parser.add_argument("--labels", required=True, metavar="folders|CSV", help=LABELS_HELP)
    parser.add_argument(
        "--rename",
        dest="renames",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="class of the run that a name in --labels means; or a CSV file with the columns old and new",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_common_options(parser)
    add_device_options(parser)


def run(options: argparse.Namespace) -> int:
    """Measure a run on labeled images and print the metrics."""
    if (code := run_again(options)) is not None:
        return code
    import numpy as np

    from captune.commands._shared import device_settings, print_unused
    from captune.core import distributed
    from captune.core.text import printable
    from captune.data.inputs import collect_images
    from captune.data.labels import parse_renames, read_labels
    from captune.results.image_classifier import load
    from captune.results.metrics import summarize

    images = collect_images(options.images)
    classifier = load(options.run)
    unknown: list[str] = []
    labels = read_labels(options.labels, images, classifier.names, parse_renames(options.renames), unknown)
    if not np.any(labels >= 0):
        raise InputError(f"None of the {len(images)} images in {options.images!r} has a label in {options.labels!r}.")
    predictions = classifier.predictions(images, settings=device_settings(options), quiet=options.quiet)
    if distributed.rank() > 0:
        return 0  # only the first process prints
    names = classifier.names
    known = labels[predictions.image_index] >= 0
    metrics = summarize(predictions.probabilities[known], labels[predictions.image_index][known], n_classes=len(names))
    if options.json:
        content = {"n_skipped": len(predictions.skipped), "classes": list(names), **metrics.as_dict()}
        sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    else:
        _print_metrics(metrics, names)
    for problem in unknown:
        sys.stderr.write(printable(f"left out: {problem} To evaluate these images: --rename OLD=NEW") + "\n")
    print_unused(predictions)
    return 0


def _print_metrics(metrics: Metrics, names: tuple[str, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    from captune.commands._screen import Screen

    console = Screen(highlight=False)
    numbers = Table(show_header=False, box=None, pad_edge=False)
    for label, value in (
        ("images", f"{metrics.n_images}"),
        ("accuracy", f"{metrics.accuracy:.4f}"),
        ("balanced accuracy", f"{metrics.balanced_accuracy:.4f}"),
        ("mean of the lowest five", f"{metrics.lowest_five:.4f}"),
        ("never predicted", f"{len(metrics.never_predicted)} classes"),
        ("predicted imbalance", f"{metrics.predicted_imbalance:.2f}"),
        ("calibration error (ECE)", f"{metrics.ece:.4f}"),
    ):
        numbers.add_row(label, value)
    console.print(numbers)
    classes = Table("class", "accuracy", "predicted", box=None, pad_edge=False)
    for name, accuracy, count in zip(names, metrics.per_class_accuracy, metrics.predicted_counts, strict=True):
        classes.add_row(Text(name), "-" if accuracy is None else f"{accuracy:.4f}", str(count))
    console.print(classes)
