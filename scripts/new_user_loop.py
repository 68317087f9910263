"""The loop of a new user: from a folder of images to a classifier, with a few answers.

    python scripts/new_user_loop.py UCMERCED BACKBONE --aim 70 --most 42

UCMERCED has the folders train and test, each with one folder per class; the names of the class folders play the
person who answers. The exit code says whether the aim was reached on the test images, with no more answers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import captune


def main() -> int:
    """Answer batch by batch until the aim is reached, and print accuracy and time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("backbone", help="such as dual:folder")
    parser.add_argument("--aim", type=float, default=70.0, help="accuracy in percent")
    parser.add_argument("--most", type=int, default=42, help="number of answers")
    parser.add_argument("--batch", type=int, default=14, help="answers between two adaptations")
    options = parser.parse_args()
    clock = time.perf_counter()
    session = captune.open_session(options.folder / "train", options.folder / "train", backbone=options.backbone)
    opened = time.perf_counter() - clock
    print(f"{len(session.images)} images embedded and classified in {opened:.0f} s. {session.verification()}")
    given, accuracy, spent = 0, 0.0, 0.0
    while True:
        accuracy = 100 * session.classifier.evaluate(options.folder / "test", "folders").accuracy
        print(f"{given:3} answers: {accuracy:.1f} % on test images, {spent:.1f} s of adapting", flush=True)
        if accuracy >= options.aim or given >= options.most:
            break
        clock = time.perf_counter()
        suggestions = session.suggest(min(options.batch, options.most - given))
        answers = {one.position: Path(one.image).parts[0] for one in suggestions}
        change = session.label(answers, suggestion={one.position: one.kind for one in suggestions})
        spent += time.perf_counter() - clock
        given += len(suggestions)
        print(change.sentence)
    print(session.verification())
    with tempfile.TemporaryDirectory() as folder:
        session.save(Path(folder) / "run")
        print(f"Saved with {len(session.corrections)} corrections.")
    return int(accuracy < options.aim)


if __name__ == "__main__":
    sys.exit(main())
