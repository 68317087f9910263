"""What CAP's margin is worth: a grid of texts and margins on beds of embeddings.

    python benchmarks/margin.py FOLDER                                 # every *.npz file of benchmarks/embed_bed.py
    python benchmarks/margin.py FOLDER --beds ucmerced --seeds 3 --out margin.jsonl
    python benchmarks/margin.py FOLDER --out margin.jsonl --show       # the tables of what was measured

Finished cells are kept in the file, so the same command continues. `--set KEY=VALUE` changes a setting in every cell.
Labels are looked at only after training. Beds hold one view of every image, so the strong view is the weak one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from captune.backbones.precomputed import Precomputed
from captune.core import runtime
from captune.core.arrays import softmax_rows
from captune.core.settings import build, parse_overrides
from captune.data.precomputed import ClassTexts, Embeddings
from captune.data.task import AdaptationTask
from captune.data.vocabulary import Vocabulary
from captune.describers.base import describer_of
from captune.embeddings.cache import EmbeddingCache
from captune.methods.base import Context
from captune.methods.cap import Cap, CapSettings
from captune.results.metrics import summarize

STUDENT = {"tuner": "feature_adapter", "class_texts": "aligned"}
"""The student of the preset quick; everything else is the paper's."""
TEXTS: dict[str, dict[str, Any]] = {
    "names": {"concept_alignment": False},
    "mismatched described": {"describe": "mismatched"},
    "all described": {"describe": "all"},
}
MARGINS: dict[str, dict[str, Any]] = {
    "none": {"margin": False},
    "paper": {},
    "paper, accepted": {"count_on": "accepted"},
}
COLUMNS = ("texts", "margin", "test", "pool", "lowest five", "first", "last", "mean margin", "on confusions")


def run_cell(path: Path, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train CAP on a bed and return its measures."""
    content = np.load(path)
    names, scale = [str(name) for name in content["names"]], float(content["logit_scale"])
    sentences: dict[str, list[str]] = {}
    vectors = content["texts"]
    if "sentences" in content:
        n = content["sentences"].shape[1]
        sentences = {name: [f"{name}, description {i}" for i in range(n)] for name in names}
        vectors = np.concatenate([vectors, content["sentences"].reshape(-1, vectors.shape[1])])
    texts = ClassTexts((*names, *(s for own in sentences.values() for s in own)), vectors, scale)
    backbone = Precomputed(texts)
    task = AdaptationTask(Vocabulary(tuple(names), ("{}",)), Embeddings(content["train_images"]))
    method = Cap(build(CapSettings, {**STUDENT, **settings}, "settings"))
    with tempfile.TemporaryDirectory() as folder:
        engine = runtime.start(seed=seed, workers=0, quiet=True)
        context = Context(engine, EmbeddingCache(Path(folder)), describer=describer_of(sentences) or Context.describer)
        tuner = method.adapt(task, backbone, context)
    epochs = [facts for facts in context.rounds if facts["step"] == "epoch"]
    history = [labels.precision(content["train_labels"]) for _, labels in context.history]
    found = {
        "margins": [facts["mean_margin"] for facts in epochs],
        "first": history[0],
        "last": history[-1],
        "last_size": len(context.history[-1][1]),
    }
    with torch.inference_mode():
        classes = tuner.class_embeddings()
        for part in ("train", "test"):
            images = tuner.refine(torch.from_numpy(Embeddings(content[f"{part}_images"]).vectors))
            probabilities = softmax_rows(tuner.logits(images, classes).numpy())
            metrics = summarize(probabilities, content[f"{part}_labels"], n_classes=len(names))
            found |= {f"{part}_{name}": getattr(metrics, name) for name in ("accuracy", "lowest_five", "ece")}
            if part == "train" and "margin" in context.arrays:
                found |= look_at_margin(context.arrays, probabilities.argmax(axis=1), content["train_labels"])
    return found


def look_at_margin(arrays: Mapping[str, Any], predicted: Any, truth: Any) -> dict[str, float]:  # noqa: ANN401 (arrays)
    """Return the share of negative similarities, how uneven they are, and whether margins lie where confusions are.

    `uneven` is the standard deviation of the similarity over its mean; `on_confusions` is the mean margin between a
    label and the true classes of its wrong images, over the mean margin of all pairs.
    """
    margin, similarity = arrays["margin"], arrays["similarity"]
    pairs = ~np.eye(len(margin), dtype=bool)
    confused = np.zeros(margin.shape)
    np.add.at(confused, (predicted, truth), predicted != truth)
    mean = float(margin[pairs].mean())
    on_confusions = float((margin * confused).sum() / max(1.0, confused.sum()) / mean) if mean > 1e-9 else float("nan")
    uneven = float(similarity[pairs].std() / similarity[pairs].mean())
    return {"negative": float(np.mean(similarity[pairs] < 0)), "uneven": uneven, "on_confusions": on_confusions}


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table for every bed: means over seeds, and the mean margin in four epochs from the second to the last."""
    for bed in dict.fromkeys(row["bed"] for row in rows):
        print(f"\n{bed}\n\n| {' | '.join(COLUMNS)} |")
        print("|---" * len(COLUMNS) + "|")
        own = [row for row in rows if row["bed"] == bed]
        for key in dict.fromkeys((row["texts"], row["margin"]) for row in own):
            cells = [row for row in own if (row["texts"], row["margin"]) == key]
            test = [100 * row["test_accuracy"] for row in cells]
            spread = f" ± {np.std(test, ddof=1):.1f}" if len(test) > 1 else ""
            rest = [100 * float(np.mean([row[n] for row in cells])) for n in ("train_accuracy", "test_lowest_five")]
            rest += [100 * float(np.mean([row[n] for row in cells])) for n in ("first", "last")]
            margins = np.mean([row["margins"] for row in cells], axis=0)
            fade = " ".join(f"{margins[i]:.2f}" for i in (1, len(margins) // 4, len(margins) // 2, -1))
            numbers = " | ".join(f"{value:.1f}" for value in rest)
            place = float(np.mean([row.get("on_confusions", np.nan) for row in cells]))
            print(f"| {' | '.join(key)} | {np.mean(test):.1f}{spread} | {numbers} | {fade} | {place:.2f} |")


def main() -> int:
    """Measure the cells that are missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with beds as .npz files")
    parser.add_argument("--beds", nargs="+", help="names of the files, without .npz; default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=list(TEXTS))
    parser.add_argument("--margins", nargs="+", choices=MARGINS, default=list(MARGINS))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--out", type=Path, default=Path("margin.jsonl"), help="file of the finished cells")
    parser.add_argument("--show", action="store_true", help="print what was measured")
    options = parser.parse_args()
    lines = options.out.read_text(encoding="utf-8").splitlines() if options.out.is_file() else []
    rows = [json.loads(line) for line in lines]
    files = {path.stem: path for path in sorted(options.folder.glob("*.npz"))}
    unknown = sorted(set(options.beds or ()) - set(files))
    if unknown:
        parser.error(f"no bed {unknown[0]!r} in {options.folder}; there are: {', '.join(files) or 'none'}")
    axes = (range(options.seeds), options.beds or files, options.texts, options.margins)
    for seed, bed, texts, margin in [] if options.show else product(*axes):
        place = {"bed": bed, "texts": texts, "margin": margin, "seed": seed, "set": options.set}
        is_known = any(all(row[name] == value for name, value in place.items()) for row in rows)
        if is_known or (texts != "names" and "sentences" not in np.load(files[bed])):
            continue
        chosen = {**TEXTS[texts], **MARGINS[margin], **parse_overrides(options.set)}
        row = {**place, **run_cell(files[bed], chosen, seed)}
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        rows.append(json.loads(json.dumps(row)))
    show([row for row in rows if row["set"] == options.set and (not options.beds or row["bed"] in options.beds)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
