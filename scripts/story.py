"""Draw the picture of the front page from a real run: what names alone say, what captune asks, what answers change.

    python scripts/story.py docs/images/story.svg    # and story-narrow.svg, for phones

Adapts to 480 photographs of the embedded world by names alone, names the 20 groups with the most unclear images as a
person would, and measures on 240 other photographs.
"""

from __future__ import annotations

import argparse
import base64
import tempfile
from html import escape
from pathlib import Path

import numpy as np

import captune
from captune.data.labels import read_labels
from captune.world import class_names, write_world

N_ANSWERS, N_PICTURES = 20, 6
INK, SOFT, WRONG, RIGHT = "#1f2330", "#6b7180", "#c2410c", "#15803d"
WIDTH, HEIGHT, SIDE, GAP = 380, 420, 108, 20


def text(
    x: float, y: float, words: str, size: int = 17, color: str = INK, weight: int = 400, anchor: str = "start"
) -> str:
    """Return a line of text."""
    style = f'font-size="{size}" fill="{color}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {style}>{escape(words)}</text>'


def define(picture: Path) -> str:
    """Return a picture as something that can be used several times."""
    data, name = base64.b64encode(picture.read_bytes()).decode(), f"{picture.stem}-{picture.parent.name}"
    return f'<image id="{name}" width="{SIDE}" height="{SIDE}" href="data:image/png;base64,{data}"/>'


def panel(title: str, pictures: list[Path], labels: list[str], color: str, below: list[str]) -> str:
    """Return one of the three parts: a title, six pictures with their labels, and what is said below."""
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" rx="14" fill="#fff" stroke="#d7dae2"/>']
    parts.append(text(24, 40, title, 21, weight=600))
    for number, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        x, y = 16 + (number % 3) * (SIDE + 12), 62 + (number // 3) * (SIDE + 34)
        parts.append(f'<use href="#{picture.stem}-{picture.parent.name}" x="{x}" y="{y}"/>')
        parts.append(text(x + SIDE / 2, y + SIDE + 20, label, 15, color, 600, "middle"))
    parts += [text(24, 376 + 24 * number, line, 17, SOFT) for number, line in enumerate(below)]
    return "\n".join(parts)


def drawing(pictures: list[Path], panels: list[str], what: str, n_columns: int) -> str:
    """Return the panels beside each other, or below each other for a narrow screen."""
    width, height = n_columns * (WIDTH + GAP) + GAP, -(-len(panels) // n_columns) * (HEIGHT + GAP) + GAP
    font = "system-ui, -apple-system, Segoe UI, Roboto, sans-serif"
    head = f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(what)}" font-family="{font}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {head}>']
    parts.append(f'<rect width="{width}" height="{height}" rx="18" fill="#eef0f6"/>')
    parts += ["<defs>", *(define(picture) for picture in pictures), "</defs>"]
    for number, part in enumerate(panels):
        x, y = (GAP + (number % n_columns) * (WIDTH + GAP), GAP + number // n_columns * (HEIGHT + GAP))
        parts.append(f'<g transform="translate({x} {y})">{part}</g>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    """Make the run, answer, measure and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as scratch:
        photos, others = Path(scratch) / "photos", Path(scratch) / "others"
        write_world(photos, 20, seed=0)
        write_world(others, 10, seed=0, split="test")
        names, common = list(class_names()), {"backbone": "embedded:patterns", "cache": f"{scratch}/cache"}
        by_names = captune.adapt(photos, names, method="zero_shot", out=f"{scratch}/run", **common)
        guesses = by_names.classifier.predict(photos)
        before = by_names.classifier.evaluate(others, "folders").accuracy
        session = captune.open_session(photos, names, **common)
        truth = read_labels("folders", session.images, session.names)
        groups = sorted(session.groups(), key=lambda group: -len(group) * (1.0 - group.confidence))[:N_ANSWERS]
        answers = {group.number: int(np.bincount(truth[group.images]).argmax()) for group in groups}
        shown = max(groups, key=lambda group: sum(guesses[i] != names[truth[i]] for i in group.images[:N_PICTURES]))
        for group in groups:
            session.name_group(group.number, names[answers[group.number]])
        after = session.classifier.evaluate(others, "folders").accuracy
        labels = session.classifier.predict(photos)
        positions = [int(i) for i in shown.images[:N_PICTURES]]
        pictures = [photos / session.images.name(i) for i in positions]
        answer = names[answers[shown.number]]
        question = [f"{len(shown)} images look alike. What are they?", f"A person answers: {answer}"]
        first, last = [f"{before:.0%} of new images right"], [f"{after:.0%} of new images right"]
        last.append(f"after {N_ANSWERS} such answers")
        panels = [
            panel("CLIP, by names alone", pictures, [guesses[i] for i in positions], WRONG, first),
            panel("captune asks", pictures, [""] * N_PICTURES, INK, question),
            panel("The answer, for all images", pictures, [labels[i] for i in positions], RIGHT, last),
        ]
        for target, n_columns in ((out, 3), (out.with_stem(f"{out.stem}-narrow"), 1)):
            target.write_text(drawing(pictures, panels, question[0], n_columns), encoding="utf-8")
    print(f"{out}: {before:.1%} by names, {after:.1%} after {N_ANSWERS} answers; {question}")


if __name__ == "__main__":
    main()
