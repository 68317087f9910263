"""captune export: write the model (onnx, hf) or the labels of a run for other tools."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "captune list exports describes the formats."
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("--format", required=True, metavar="NAME", help="see captune list exports")
    parser.add_argument("--out", metavar="PATH", help="output file or folder (default: in RUN/exports)")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    labels = parser.add_argument_group("labels")
    labels.add_argument(
        "--min-confidence", type=float, metavar="P", help="only export images with at least this confidence"
    )
    labels.add_argument("--precision", type=float, metavar="P", help="only labels that captune accept certifies")
    labels.add_argument(
        "--source",
        choices=("predictions", "pseudo-labels"),
        help="labels of all images (default), or those used for training",
    )
    labels.add_argument("--prefix", help="prefix of all image names, such as s3://bucket/")
    data = parser.add_argument_group("data sets (imagefolder, yolo-cls, timm, hf-dataset)")
    data.add_argument("--splits", metavar="A,B,C", help="shares of training, validation and test (default: 80,10,10)")
    data.add_argument("--link", action="store_true", default=None, help="link to the images instead of copying them")
    model = parser.add_argument_group("models")
    model.add_argument("--int8", action="store_true", default=None, help="onnx: also write name.int8.onnx")
    model.add_argument("--images", metavar="IMAGES", help="images to verify a model with, or the folder of the images")
    model.add_argument("--labels", metavar="folders|CSV", help="onnx: measure accuracy; cleanlab: use these labels")
    model.add_argument(
        "--check", dest="n_checked", type=int, metavar="N", help="number of images to verify with (default: 64)"
    )


def run(options: argparse.Namespace) -> None:
    """Export, and print what was written and where."""
    from dataclasses import fields

    from captune.commands._screen import Screen
    from captune.exports.base import ExportSettings, export

    names = [field.name for field in fields(ExportSettings)]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    made = export(options.run, options.format, options.out, options.overwrite, **given)
    screen = Screen(highlight=False, soft_wrap=True)
    for remark in made.remarks:
        screen.print(remark, markup=False)
    screen.print(f"Written: {made.path}", markup=False)
