"""Figures as inline SVG in the colors of a page, and as PNG, SVG and CSV files."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from captune.core.files import table, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: safe for color blindness, on light and on dark backgrounds.
BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7"
GREY = "#8a929c"
BEFORE, AFTER = GREY, BLUE
SERIES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
INK = "#1d2a36"
"""Text color in files; in a page it is replaced by the color of the surrounding text."""

LONGEST_NAME = 26


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure with its caption, a text alternative, and its numbers as a table."""

    name: str
    caption: str
    alt: str
    figure: Figure
    header: Sequence[str]
    rows: Sequence[Sequence[object]]

    @cached_property
    def svg(self) -> bytes:
        """Return the figure as SVG."""
        content = self._render("svg")
        self.figure.set_layout_engine("none")  # the layout is final, and computing it again is slow
        return content

    def inline(self) -> Markup:
        """Return the figure as SVG for use in a page: without prologue and URLs, with unique ids."""
        text = self.svg.decode("utf-8")
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text)
        text = text.replace("xlink:href", "href").replace(INK, "currentColor")
        text = re.sub(r'\bid="([^"]*)"', rf'id="{self.name}-\1"', text)
        text = re.sub(r'href="#([^"]*)"', rf'href="#{self.name}-\1"', text)
        text = re.sub(r"url\(#([^)]*)\)", rf"url(#{self.name}-\1)", text)
        return Markup(text.replace("<svg", f'<svg role="img" aria-label="{escape(self.alt)}"', 1))

    def write(self, folder: Path) -> None:
        """Write the figure as PNG and SVG and its numbers as CSV."""
        write_whole(folder / f"{self.name}.svg", self.svg)
        write_whole(folder / f"{self.name}.png", self._render("png"))
        write_whole(folder / f"{self.name}.csv", table(self.header, self.rows))

    def _render(self, kind: str) -> bytes:
        target = io.BytesIO()
        facts = {"Date": None} if kind == "svg" else {"Software": None}
        with style(self.name), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # characters missing in the font are shown as boxes
            self.figure.savefig(target, format=kind, dpi=110, transparent=kind == "svg", metadata=facts)
        return target.getvalue()


@contextmanager
def style(salt: str = "captune") -> Iterator[None]:
    """Use captune's style, which gives the same bytes every time."""
    import matplotlib as mpl

    ink = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    rules: Any = {
        "text.parse_math": False,  # a class called $x$ is a name, not a formula
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "font.family": "sans-serif",
        "font.size": 9.0,
        "axes.titlesize": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "figure.facecolor": "white",
        **ink,
    }
    with mpl.rc_context(rules):
        yield


def new_figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure (without pyplot's global state) and its axes, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def shown(name: str) -> str:
    """Return a class name shortened and printable, for use in a figure."""
    short = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
    return "".join(letter if letter.isprintable() else " " for letter in short)
