"""Draw a contact sheet of the embedded world: one row of photographs per class, with its name."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from captune.world import class_names, render

MARGIN = 96


def main() -> None:
    """Write the sheet and print how many photographs per second were drawn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--zoom", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    names = arguments.only or class_names()
    cell = 64 * arguments.zoom + 4
    sheet = Image.new("RGB", (MARGIN + cell * arguments.columns, cell * len(names)), "white")
    pen = ImageDraw.Draw(sheet)
    started = time.process_time()
    for row, name in enumerate(names):
        pen.text((4, row * cell + cell // 2 - 6), name, fill="black")
        for column, pixels in enumerate(render(name, np.arange(arguments.columns), arguments.seed).images):
            photo = Image.fromarray(pixels)
            photo = photo.resize((cell - 4, cell - 4), Image.Resampling.NEAREST)
            sheet.paste(photo, (MARGIN + column * cell, row * cell + 2))
    print(f"{len(names) * arguments.columns / (time.process_time() - started):.0f} photographs/s with the sheet")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    sheet.quantize(256).save(arguments.out, optimize=True)  # grain does not compress: a third of the size


if __name__ == "__main__":
    main()
