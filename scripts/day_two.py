"""The second day of a project: new photographs, a second person, changed classes; nothing of the first day is lost.

    python scripts/day_two.py FOLDER    # an empty folder

Makes images of the embedded world, adapts to some of them, answers suggestions, renames and merges classes; the next
day adds the other images, a second person answers and undoes, and the labels are exported. Every step is checked.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from PIL import Image

import captune
from captune.cli import main as captune_command
from captune.review.corrections import FILE, Corrections
from captune.world import class_names, render


def command(*words: object) -> None:
    """Run a command of captune."""
    print("captune", *words, flush=True)
    if captune_command([str(word) for word in words]) != 0:
        raise SystemExit(f"captune {words[0]} failed")


def truth(image: str) -> str:
    """Return the folder of an image, which is its class."""
    return Path(image).parent.name


def fill(table: Path, names: dict[str, str]) -> int:
    """Answer every row of a table as a person would; return the number of checks."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["answer"] = names.get(truth(row["path"]), truth(row["path"]))
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return sum(row["kind"] == "check" for row in rows)


def predicted(run: Path) -> dict[str, str]:
    """Return the label of each image."""
    with (run / "predictions.csv").open(newline="", encoding="utf-8") as file:
        return {row["path"]: row["label"] for row in csv.DictReader(file)}


def tell(folder: Path) -> None:
    """Play both days; an assertion fails if something is lost."""
    photos, tomorrow, run = folder / "photos", folder / "tomorrow", folder / "run"
    classes = class_names()[:6]
    for name in classes:
        for number, pixels in enumerate(render(name, range(7), seed=1).images):
            target = (tomorrow if number == 6 else photos) / name / f"{number}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(target)
    (folder / "classes.txt").write_text("\n".join(classes), encoding="utf-8")

    # The first day: adapt, answer, rename, merge.
    command("adapt", photos, "--classes", folder / "classes.txt", "--backbone", "embedded:patterns", "--out", run)
    command("suggest", run, "--count", 20, "--checks", 0.25, "--out", folder / "suggestions.csv")
    n_checks = fill(folder / "suggestions.csv", {})
    command("label", run, "--from", folder / "suggestions.csv", "--person", "anna")
    old, new, (one, two) = classes[0], f"new {classes[0]}", classes[1:3]
    command("label", run, "--rename", f"{old}={new}", "--merge", f"both={one},{two}", "--person", "anna")
    first = captune.open_session(run)
    answers, before = dict(first.answers.used()), predicted(run)
    assert first.names == (new, "both", *classes[3:])
    assert first.estimate().n_checks == n_checks

    # The second day: new photographs join, nothing else changes.
    command("update", run, tomorrow)
    second = captune.open_session(run, person="ben")
    assert second.names == first.names
    assert second.answers.used() == answers
    assert second.estimate().n_checks == n_checks
    assert set(before) < set(predicted(run))
    assert len(predicted(run)) == len(before) + len(classes)

    # A second person answers, thinks again, and both export.
    added = next(image for image in predicted(run) if image not in before and truth(image) == old)
    command("label", run, added, new, "--person", "ben")
    command("label", run, added, "--none", "--person", "ben")
    command("label", run, "--undo", "--person", "ben")
    after = captune.open_session(run)
    assert after.answers.used()[added].label == new
    assert {image: answer for image, answer in after.answers.used().items() if image != added} == answers
    assert predicted(run)[added] == new
    command("label", run, "--export", folder / "labels.csv")
    command("export", run, "--format", "csv", "--out", folder / "all.csv")
    assert len((folder / "labels.csv").read_text(encoding="utf-8").splitlines()) == 1 + len(answers) + 1
    assert {made.person for made in Corrections(run / FILE)} == {"anna", "ben"}


def main() -> int:
    """Play the story in a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    tell(parser.parse_args().folder)
    print("Nothing of the first day was lost.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
