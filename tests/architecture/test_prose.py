"""Markdown pages are readable: short lines, short table cells, and the vocabulary of the field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
GENERATED = REPOSITORY / "docs" / "bad-input.md"  # a table of messages, written by scripts/bad_input_table.py
PAGES = sorted({*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")} - {GENERATED})
LONGEST_LINE, LONGEST_CELL = 120, 100
USE_INSTEAD = {
    r"surest|how sure|sure of": "most confident",
    r"set[_ -]aside": "skipped",
    r"stood for by|stands? for (a|the|its|every|each) class|beside the names": "represented by",
    r"names? that mislead|mislead on purpose": "misleading class names",
    r"given (labels|images)": "labels, labeled images",
    r"held by (the )?(class )?texts?|texts hold": "anchored at class texts",
    r"(?<!of )(?<!golf )course|feeds?(?= (gives?|hides?))": "training schedule, batch source",
    r"shelf|shelves|parcels?|surroundings": "cache shard, payload, environment",
    r"as they come": "with default settings",
    r"stands? twice": "duplicate",
    r"foretold|mend(ed|s)?|go(es)? on (with|from|in|where)": "estimated, fix, continue",
    r"\w*(neighbour|colour|behaviour|favour|labell(ed|ing)|modell(ed|ing))\w*": "American spelling",
    r"(optimi|normali|utili|initiali|summari|generali)s(e|ed|es|er|ing|ation)": "American spelling",
    r"\w*iztic": "-istic",
}


def text_lines(page: str) -> list[tuple[int, str]]:
    """Return the numbered lines that are read as text or as a table, without code blocks."""
    lines, fenced, after_blank, in_code = [], False, True, False
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            in_code = line.startswith("    ") and (after_blank or in_code)
            if not in_code and line.strip():
                lines.append((number, line))
        after_blank = not line.strip()
    return lines


def problems(page: str) -> list[str]:
    """Return what is wrong with a page, with line numbers."""
    found = []
    for number, line in text_lines(page):
        if line.startswith("|"):
            longest = max(len(cell.strip()) for cell in line.split("|"))
            if longest > LONGEST_CELL:
                found.append(f"{number}: a table cell of {longest} characters")
        elif len(line) > LONGEST_LINE:
            found.append(f"{number}: {len(line)} characters")
        prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)
        for pattern, better in USE_INSTEAD.items():
            if match := re.search(rf"\b(?:{pattern})\b", prose, flags=re.IGNORECASE):
                found.append(f"{number}: {match[0]!r}, better: {better}")
    return found


def test_pages_are_readable() -> None:
    assert len(PAGES) >= 15
    found = {page.name: problems(page.read_text(encoding="utf-8")) for page in PAGES}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_modules_named_in_the_architecture_exist() -> None:
    names = re.findall(r"`([\w/]+/\w+\.py)`", (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert len(names) >= 30
    assert [name for name in names if not (REPOSITORY / "src" / "captune" / name).is_file()] == []


@pytest.mark.parametrize(
    "page",
    [
        "word " * 25,
        f"| {'cell ' * 25}|",
        "- the surest images",
        "Files are set aside.",
        "a training course",
        "its neighbours",
        "an optimiztic estimate",
        "Given labels are fixed.",
        "Text\n    " + "an indented line that continues a paragraph " * 3,
    ],
)
def test_a_problem_is_found(page: str) -> None:
    assert problems(page)


@pytest.mark.parametrize(
    "page",
    [
        "    " + "code " * 40,
        "```sh\n" + "code " * 40 + "\n```",
        "a golf course, of course",
        "`set_aside` and `given_weight`",
    ],
)
def test_code_and_names_are_left_alone(page: str) -> None:
    assert problems(page) == []
