"""Classifying and embedding images: predict, evaluate and embed."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from captune.commands import _shared
from captune.commands._shared import argument, command, out, print_table, say, several, write_lines
from captune.commands.adapt import given_settings
from captune.core import distributed
from captune.core.errors import InputError
from captune.core.text import printable

if TYPE_CHECKING:
    from captune.data.images import ImageCollection
    from captune.embeddings.predictions import Predictions
    from captune.results.image_classifier import ImageClassifier

PARTITIONS = (
    argument("--partition-size", type=int, metavar="N", help="most images of a partition (default: 10000)"),
    argument("--engine", choices=("local", "slurm", "ray"), help="where partitions are computed (default: local)"),
    argument("--processes", type=int, metavar="N", help="number of workers, each with its own model"),
)


@command(
    argument("images", metavar="INPUT", help="folder, .tar shards, Parquet tables, manifest; also s3://, gs://, ..."),
    _shared.BACKBONE,
    out(help="folder or address of the partitions", required=True),
    *PARTITIONS,
    _shared.WORKERS,
    _shared.QUIET,
    *_shared.DEVICE_OPTIONS,
)
def embed(options: argparse.Namespace) -> None:
    """Embed any number of images, by partitions."""
    _run_partitions(options, "embed", options.backbone)


@command(
    _shared.ANY_RUN,
    argument("images", metavar="IMAGES", help=f"image, {_shared.IMAGES_HELP}"),
    argument("--top-k", type=int, default=1, metavar="K", help="number of classes per image"),
    out(help="output table (default: standard output), or folder of partitions", metavar="CSV|FOLDER"),
    *PARTITIONS,
    _shared.WORKERS,
    _shared.QUIET,
    *_shared.DEVICE_OPTIONS,
    _shared.DEVICES,
)
def predict(options: argparse.Namespace) -> int:
    """Classify images with a run or an ONNX export."""
    if options.top_k < 1:
        raise InputError(f"--top-k is {options.top_k}, expected at least 1.")
    if _is_partitioned(options):
        if not options.out:
            raise InputError("Predictions by partitions need --out, a folder or an address.")
        _run_partitions(options, "predict", options.run)
        return 0
    if (code := _run_again(options)) is not None:
        return code
    from captune.core.files import table
    from captune.data.inputs import collect_images
    from captune.results.image_classifier import load, top_k

    images = collect_images(options.images)
    classifier = load(options.run)
    predictions = _classify(options, classifier, images)
    if distributed.rank() > 0:
        return 0  # only the first process writes
    best = top_k(predictions.probabilities, options.top_k)
    header = ["path", "label", "confidence"]
    header += [f"{what}_{rank}" for rank in range(2, best.shape[1] + 1) for what in ("label", "confidence")]
    rows = (
        [images.name(position), *(cell for c in chosen for cell in (classifier.names[c], f"{row[c]:.6f}"))]
        for position, row, chosen in zip(predictions.image_index, predictions.probabilities, best, strict=True)
    )
    write_lines(table(header, rows), options.out)
    _print_unused(predictions)
    return 0


@command(
    _shared.ANY_RUN,
    argument("images", metavar="IMAGES", help=_shared.IMAGES_HELP),
    argument("--labels", required=True, metavar="folders|CSV", help=_shared.LABELS_HELP),
    several("--rename", dest="renames", metavar="OLD=NEW", help=f"rename a class of --labels; {_shared.RENAME_HELP}"),
    _shared.JSON,
    _shared.WORKERS,
    _shared.QUIET,
    *_shared.DEVICE_OPTIONS,
    _shared.DEVICES,
)
def evaluate(options: argparse.Namespace) -> int:
    """Measure a run on labeled images."""
    if (code := _run_again(options)) is not None:
        return code
    import numpy as np

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
    predictions = _classify(options, classifier, images)
    if distributed.rank() > 0:
        return 0  # only the first process prints
    names, truth = classifier.names, labels[predictions.image_index]
    metrics = summarize(predictions.probabilities[truth >= 0], truth[truth >= 0], n_classes=len(names))
    if options.json:
        content = {"n_skipped": len(predictions.skipped), "classes": list(names), **metrics.as_dict()}
        say(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        print_table((name.replace("_", " "), value) for name, value in metrics.summary().items())
        shares = ("-" if share is None else f"{share:.4f}" for share in metrics.per_class_accuracy)
        print_table(zip(names, shares, metrics.predicted_counts, strict=True), "class", "accuracy", "predicted")
    for problem in unknown:
        sys.stderr.write(printable(f"left out: {problem} To evaluate these images: --rename OLD=NEW") + "\n")
    _print_unused(predictions)
    return 0


def _is_partitioned(options: argparse.Namespace) -> bool:
    """Return whether partitions were asked for, or the input or output can only be partitions."""
    from captune.data.partition_folder import is_partition_folder

    asked = (options.partition_size, options.engine, options.processes)
    is_remote = any("://" in place for place in (options.images, options.out or ""))
    return any(value is not None for value in asked) or is_remote or is_partition_folder(options.images)


def _run_partitions(options: argparse.Namespace, task: Literal["embed", "predict"], model: str | None) -> None:
    """Compute the partitions of a job that are not finished, and print what there is."""
    from captune.core import registry
    from captune.core.settings import full_id
    from captune.partitions.job import Job, run_job

    names = ("partition_size", "top_k", "accelerator", "precision")
    given = {name: getattr(options, name, None) for name in names} | {"decoders": options.workers}
    if task == "embed":
        model = full_id(model or Job.model)
        source, name = registry.split_id("backbones", model, Job.model)
        registry.load("backbones", source).check(name)
    given["model"] = model
    job = Job(task, options.images, **{name: value for name, value in given.items() if value is not None})
    workers = options.processes or (1 if "://" in options.out else os.cpu_count() or 1)
    found = run_job(job, options.out, options.engine or "local", workers, options.quiet)
    say(", ".join(f"{name}: {value:,}" for name, value in found.items()))


def _run_again(options: argparse.Namespace) -> int | None:
    """Run the command in as many processes as --devices says; None to run in this one, as ONNX does."""
    from captune.results.image_classifier import find_onnx

    return None if find_onnx(Path(options.run)) is not None else distributed.run_again(options.words, options.devices)


def _classify(options: argparse.Namespace, classifier: ImageClassifier, images: ImageCollection) -> Predictions:
    from captune.core.settings import RunSettings, build

    settings = build(RunSettings, given_settings(options), "options")
    return classifier.predictions(images, settings=settings, quiet=options.quiet)


def _print_unused(predictions: Predictions) -> None:
    """Account for the images that were not classified, on standard error."""
    images = predictions.images
    assert images is not None
    for position, reason in predictions.skipped.items():
        sys.stderr.write(printable(f"skipped: {images.name(position)}: {reason}") + "\n")
    if images.unused:
        sys.stderr.write(printable(images.unused) + "\n")
