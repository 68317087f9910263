"""What the parts of CAP do to its pseudo-labels: their precision, the confident predictions, the margins.

    python benchmarks/inside.py                 # UC Merced in CAPTUNE_TESTBED, with its descriptions
    python benchmarks/inside.py --seeds 3

Labels are looked at afterwards only. The arms are those of the ablation: neither part, concept alignment (CA), the
confusion-aware margin (CACM), both; "accepted" counts confident predictions on accepted unlabeled images. "Margin on
confusions" is the mean margin between a label and the classes that its images are truly taken for, over the mean margin
of all pairs: above 1, margins lie where confusions are.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from captune.data.images import find_images
from captune.data.labels import read_labels
from captune.data.task import AdaptationTask
from captune.data.vocabulary import Vocabulary, read_class_names
from captune.pipeline import carry_out
from captune.plan import plan_for_task

ARMS: dict[str, dict[str, Any]] = {
    "neither": {"concept_alignment": False, "margin": False},
    "CA": {"margin": False},
    "CACM": {"concept_alignment": False},
    "CA + CACM": {},
    "CACM, accepted": {"concept_alignment": False, "count_on": "accepted"},
    "CA + CACM, accepted": {"count_on": "accepted"},
}
PAPER: dict[str, Any] = {
    "start_from": "zero_shot",
    "count_on": "pseudo_labeled",
    "epochs": 50,
    "grow_every": 5,
    "learning_rate": 0.01,
    "gradient_clip": 0.0,
}
"""As in suites/ucmerced-ablations.yaml: the paper's training on cached embeddings."""
COLUMNS = (
    "accuracy",
    "first labels right",
    "halfway",
    "last",
    "confident",
    "of these right",
    "classes under 20 %",
    "mean margin",
    "margin on confusions",
)


def look_inside(testbed: Path, arm: str, seed: int) -> list[float]:
    """Run one arm on UC Merced's pool and return the numbers of its columns."""
    data = testbed / "data" / "ucmerced"
    names, images = read_class_names(data / "train"), find_images(data / "train")
    truth, n_classes = read_labels("folders", images, names), len(names)
    settings = {
        "method": "cap",
        "preset": "quick",
        "backbone": f"dual:{testbed / 'models' / 'aerial-dual'}",
        "describer": f"file:{data / 'descriptions.yaml'}",
        "seed": seed,
        **PAPER,
        **ARMS[arm],
    }
    task = AdaptationTask(Vocabulary(names, ("a photo of a {}",)), images)
    run = carry_out(plan_for_task(task, settings), quiet=True)
    assert run.evidence is not None
    history = run.evidence.history
    right = [float(np.mean(labels.labels == truth[labels.image_index])) for _, labels in history]
    found, confidence = run.predictions.labels, run.predictions.confidence
    truth = truth[run.predictions.image_index]
    confident = confidence >= run.settings["tau"]
    by_class = [float(np.mean(found[truth == c] == c)) for c in range(n_classes)]
    margin = run.evidence.arrays.get("margin", np.zeros((n_classes, n_classes)))
    confused = np.zeros((n_classes, n_classes))
    np.add.at(confused, (found, truth), found != truth)  # predicted as the row, truly the column
    pairs = ~np.eye(n_classes, dtype=bool)
    mean = float(margin[pairs].mean())
    on_confusions = float((margin * confused).sum() / confused.sum() / mean) if mean else float("nan")
    return [
        100 * float(np.mean(found == truth)),
        *(100 * right[i] for i in (0, len(right) // 2, -1)),
        100 * float(confident.mean()),
        100 * float(np.mean(found[confident] == truth[confident])),
        float(np.sum(np.array(by_class) < 0.2)),
        mean,
        on_confusions,
    ]


def main() -> int:
    """Print a row for every arm, means over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--testbed", default=os.environ.get("CAPTUNE_TESTBED"), help="default: CAPTUNE_TESTBED")
    parser.add_argument("--seeds", type=int, default=1)
    words = parser.parse_args()
    if not (words.testbed and Path(words.testbed, "models", "aerial-dual").is_dir()):
        print("skipped: set CAPTUNE_TESTBED to the folder with data/ucmerced and models/aerial-dual")
        return 0
    print("| arm | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|", flush=True)
    for arm in ARMS:
        found = [look_inside(Path(words.testbed), arm, seed) for seed in range(words.seeds)]
        means = np.mean(found, axis=0)
        print(f"| {arm} | " + " | ".join(f"{mean:.1f}" for mean in means[:-2]), end=" | ")
        print(" | ".join(f"{mean:.2f}" for mean in means[-2:]) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
