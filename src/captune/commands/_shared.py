"""Options that several commands share, and how predict and evaluate find and classify images."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from captune.core import launching
from captune.core.errors import InputError
from captune.core.text import printable

if TYPE_CHECKING:
    from captune.core.settings import RunSettings
    from captune.embeddings.predictions import Predictions

IMAGES_HELP = "folder, .tar shards, CSV/Parquet manifest, text file of paths, or embeddings (.npy, .npz:KEY, ...)"
LABELS_HELP = "'folders' (folder names are classes), a table (path, label), or an array (.npy, .npz:KEY)"


def add_run_options(parser: argparse.ArgumentParser, out: str) -> None:
    """Declare the options of adapt and audit."""
    parser.add_argument(
        "--classes",
        metavar="FILE|a,b,c",
        help="text or YAML file, table, comma-separated list, folder with a subfolder per class, or embeddings (.npz)",
    )
    parser.add_argument("--backbone", metavar="ID", help="encoder pair as source:name (see: captune list backbones)")
    parser.add_argument(
        "--second-encoder",
        metavar="ID",
        help="second image encoder, as in hf:facebook/dinov2-small",
    )
    parser.add_argument("--template", help="sentence with {} for the class name, or {column} of a table of classes")
    parser.add_argument(
        "--describer", metavar="ID", help="source of descriptions for misleading names: openai:MODEL, file:YAML, none"
    )
    parser.add_argument("--domain", metavar="PHRASE", help="what the images show, e.g. 'a satellite photo of {}'")
    parser.add_argument("--seed", type=int, help="random seed")
    add_common_options(parser)
    parser.add_argument("--root", help="folder that all image paths must be in")
    parser.add_argument("--config", metavar="YAML", help="file with settings, and with images, classes, labels and out")
    parser.add_argument("--set", action="append", default=[], metavar="key=value", help="one setting; can be repeated")
    parser.add_argument("--out", metavar="FOLDER", help=out)
    parser.add_argument("--overwrite", action="store_true", help="replace existing results in --out")


def add_images_option(parser: argparse.ArgumentParser) -> None:
    """Declare where the images of a run are now."""
    help_text = "images of the run, if they moved, changed or were in memory"
    parser.add_argument("--images", dest="moved_images", metavar="IMAGES", help=help_text)


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Declare the number of worker processes, and how much is shown."""
    parser.add_argument("--workers", type=int, help="number of processes that decode images")
    parser.add_argument("--quiet", action="store_true", help="show results only: no progress, no messages")


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options for devices and precision."""
    parser.add_argument("--accelerator", metavar="auto|cpu|cuda|mps", help="device type (default: auto)")
    parser.add_argument("--devices", type=int, metavar="N", help="number of processes, one per GPU")
    parser.add_argument("--precision", metavar="32-true|bf16-mixed|16-mixed", help="precision of the encoders")


def add_partition_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of jobs that are computed by partitions."""
    parser.add_argument("--partition-size", type=int, metavar="N", help="most images of a partition (default: 10000)")
    parser.add_argument("--engine", metavar="local|slurm|ray", help="where partitions are computed (default: local)")
    parser.add_argument("--processes", type=int, metavar="N", help="number of workers, each with its own model")


def run_partitions(options: argparse.Namespace, task: Literal["embed", "predict"], model: str | None) -> None:
    """Compute the partitions of a job that are not finished, and print what there is."""
    import os

    from captune.core import registry
    from captune.partitions.job import ENGINES, Job, run_job

    engine = options.engine or "local"
    if engine not in ENGINES:
        raise InputError(f"--engine is {engine!r}, expected one of {', '.join(ENGINES)}.")
    names = ("partition_size", "top_k", "accelerator", "precision")
    given = {name: getattr(options, name, None) for name in names} | {"model": model, "decoders": options.workers}
    if task == "embed":
        source, name = registry.split_id("backbones", model or Job.model, Job.model)
        registry.load("backbones", source).check(name)
    job = Job(task, options.images, **{name: value for name, value in given.items() if value is not None})
    workers = options.processes or (1 if "://" in options.out else os.cpu_count() or 1)
    found = run_job(job, options.out, engine, workers, options.quiet)
    sys.stdout.write(", ".join(f"{name}: {value:,}" for name, value in found.items()) + "\n")


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the run settings that were given as flags."""
    from dataclasses import fields

    from captune.core.settings import RunSettings

    flags = {field.name: getattr(options, field.name, None) for field in fields(RunSettings)}
    return {name: value for name, value in flags.items() if value is not None}


def run_again(options: argparse.Namespace) -> int | None:
    """Run predict or evaluate in as many processes as --devices says; None to run in this one, as ONNX does."""
    from captune.results.image_classifier import find_onnx

    return None if find_onnx(Path(options.run)) is not None else launching.run_again(options.words, options.devices)


def device_settings(options: argparse.Namespace) -> RunSettings:
    """Return the settings of devices and workers."""
    from captune.core.settings import RunSettings, build

    return build(RunSettings, given_settings(options), "options")


def print_unused(predictions: Predictions) -> None:
    """Account for the images that were not classified, on standard error."""
    images = predictions.images
    assert images is not None
    for position, reason in predictions.skipped.items():
        sys.stderr.write(printable(f"skipped: {images.name(position)}: {reason}") + "\n")
    if images.unused:
        sys.stderr.write(printable(images.unused) + "\n")
