"""captune embed: embed any number of images, by partitions."""

from __future__ import annotations

import argparse

from captune.commands._shared import add_common_options, add_partition_options, run_partitions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "images", metavar="INPUT", help="folder, .tar shards, Parquet tables, manifest; also s3://, gs://, ..."
    )
    parser.add_argument("--backbone", metavar="ID", help="encoder as source:name (see: captune list backbones)")
    parser.add_argument("--out", metavar="FOLDER", required=True, help="folder or address of the partitions")
    add_partition_options(parser)
    add_common_options(parser)
    parser.add_argument("--accelerator", metavar="auto|cpu|cuda|mps", help="device type (default: auto)")
    parser.add_argument("--precision", metavar="32-true|bf16-mixed|16-mixed", help="precision of the encoder")


def run(options: argparse.Namespace) -> None:
    """Embed what is not finished yet."""
    run_partitions(options, "embed", options.backbone)
