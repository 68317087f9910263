"""Run folders with made-up evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from captune.core.arrays import softmax_rows, unit_rows
from captune.data.images import ImageCollection
from captune.embeddings.embed import score
from captune.embeddings.predictions import Predictions
from captune.labeling.pseudo_labels import PseudoLabels
from captune.results.finishing import Evidence, changes_of
from captune.results.health import check_health
from captune.results.run import Run

WIDTH = 16


class NoClassifier:
    """A stand-in for a classifier; a report only needs its names."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)


def make_run(
    folder: Path,
    images_folder: Path,
    names: Sequence[str],
    per_class: int = 12,
    adapted: bool = True,
    skipped: int = 2,
    method: str = "cap",
    seed: int = 0,
) -> Path:
    """Write a run folder; the images of class c lie in the folder `class c`, and the table labels.csv tells it."""
    generator = np.random.default_rng(seed)
    n_classes = len(names)
    truth = np.repeat(np.arange(n_classes), per_class)
    centers = unit_rows(generator.normal(size=(n_classes, WIDTH)).astype(np.float32))
    noise = generator.normal(size=(len(truth), WIDTH)).astype(np.float32)
    vectors = unit_rows(centers[truth] + 0.15 * noise)
    texts = unit_rows(centers + 0.25 * generator.normal(size=centers.shape).astype(np.float32))
    texts[0] = texts[1]  # the first name points at the images of the second class
    before = score(vectors, texts, 10.0)
    after = softmax_rows(12.0 * vectors @ centers.T) if adapted else before
    images = write_pictures(images_folder, truth.tolist(), skipped)
    (images_folder / "labels.csv").write_text(
        "path,label\n" + "".join(f'{images.name(i)},"{quoted(names[c])}"\n' for i, c in enumerate(truth)),
        encoding="utf-8",
    )
    made = history_of(after, n_classes) if adapted else []
    run = Run(
        settings={"method": method if adapted else "zero_shot", "backbone": "toy:<b>", "tau": 0.85, "margin": True},
        images=images,
        skipped={len(truth) + i: 'damaged "image" <i>' for i in range(skipped)},
        made=(NoClassifier(names), Predictions(np.arange(len(truth)), after)),  # type: ignore[arg-type]
        environment={"versions": {"captune": "0"}, "seed": seed, "data_fingerprint": "f", "seconds": 1.5},
        rounds=rounds_of(names) if adapted else [],
        evidence=Evidence(
            arrays={
                "before_labels": before.argmax(axis=1).astype(np.int32),
                "rows": np.arange(len(truth), dtype=np.int32),
                "before": before,
                "after": after,
                "embedded_rows": np.arange(len(truth), dtype=np.int32),
                "vectors": vectors.astype(np.float16),
                "class_vectors": texts,
                "history": changes_of(made, len(truth)).astype(np.int32),
            },
            history=made,
            health=check_health(vectors, before, after, texts, 20.0) if adapted else None,
        ),
        sources={"images": str(images_folder), "classes": ",".join(names)},
    )
    return run.write(folder)


def write_pictures(folder: Path, truth: Sequence[int], skipped: int) -> ImageCollection:
    """Write one small picture for each image, with awkward file names."""
    paths = [folder / f"class {c}" / f"{i:05d} 'it' & <b>.png" for i, c in enumerate(truth)]
    for i, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            pixels = np.random.default_rng(i).integers(0, 256, (80, 96, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path, compress_level=1)
    broken = [folder / f'broken "{i}" <img src=x>.png' for i in range(skipped)]
    return ImageCollection((*paths, *broken), folder)


def rounds_of(names: Sequence[str]) -> list[dict[str, Any]]:
    n = len(names)
    epochs = [
        {
            "step": "epoch",
            "epoch": e,
            "loss": 2.0 / e,
            "accepted_share": 0.2 * e,
            "accepted": [e] * n,
            "pseudo_labeled": [4] * n,
        }
        for e in range(1, 4)
    ]
    alignment = {
        "step": "concept_alignment",
        "mismatched": [names[0]],
        "frequency": {name: 0.9 if i == 0 else 0.0 for i, name in enumerate(names)},
        "concentration": dict.fromkeys(names, 0.75),
        "descriptions": {names[0]: ["<b>bold</b> lines", "another one"]},
        "problems": {names[-1]: "the answer was <empty>"},
    }
    return [alignment, *epochs]


def history_of(probabilities: Any, n_classes: int) -> list[tuple[int, PseudoLabels]]:
    labels, sure = probabilities.argmax(axis=1), probabilities.max(axis=1)
    chosen = (np.arange(0, len(labels), 3), np.arange(0, len(labels), 2))
    return [
        (epoch, PseudoLabels.create(index, labels[index], sure[index], n_classes, round_number=epoch))
        for epoch, index in zip((1, 3), chosen, strict=True)
    ]


def quoted(name: str) -> str:
    return name.replace('"', '""')
