"""Which misleading names the detection finds, how stable it is, and what describing them is worth.

    CAPTUNE_TESTBED=/path/to/testbed python benchmarks/mismatch_stability.py
    python benchmarks/mismatch_stability.py --images DIR --backbone ID --descriptions FILE [--mismatched A,B]

The test bed is a folder with data/ucmerced (UC Merced Land Use) and models/aerial-dual (DINOv2-S/14 and MiniLM). Other
images need one sub-folder for each class; the folders are the truth, which the detection never sees. A name misleads
when zero-shot finds fewer than 5 % of its class, or when --mismatched says so.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from captune.backbones.base import load_backbone
from captune.concepts.alignment import choose_descriptions
from captune.concepts.mismatch import PAPER_MISMATCH, MismatchSettings, detect_mismatch
from captune.core import runtime
from captune.core.arrays import Floats, Ints, unit_rows
from captune.data.images import find_images
from captune.data.labels import read_labels
from captune.data.vocabulary import Vocabulary, read_class_names, read_descriptions
from captune.embeddings.cache import EmbeddingCache
from captune.embeddings.embed import embed_classes, embed_images, embed_texts
from captune.labeling.selection import Ranking, first_labels

NO_LIMIT = MismatchSettings(rare_below=None)
DETECTIONS: Mapping[str, MismatchSettings] = {
    "paper: t = C/10, R = 1": PAPER_MISMATCH,
    "t = C/10, R = 10": replace(NO_LIMIT, threshold_share=0.1),
    "t = C/4, R = 1": replace(NO_LIMIT, threshold_share=0.25, runs=1, min_frequency=1.0),
    "t = C/4, R = 10": replace(NO_LIMIT, threshold_share=0.25),
    "t = C/3, R = 1": replace(NO_LIMIT, threshold_share=1 / 3, runs=1, min_frequency=1.0),
    "t = C/3, R = 10": replace(NO_LIMIT, threshold_share=1 / 3),
    "t = C/2, R = 1": replace(NO_LIMIT, runs=1, min_frequency=1.0),
    "t = C/2, R = 10": NO_LIMIT,
    "t = C/2, R = 1, rare": MismatchSettings(runs=1, min_frequency=1.0),
    "default: t = C/2, R = 10, rare": MismatchSettings(),
}


@dataclass(frozen=True)
class Scene:
    """Embeddings of images, names and descriptions, and the truth."""

    names: tuple[str, ...]
    images: Floats
    labels: Ints
    texts: Floats
    sentences: dict[int, Floats]
    logit_scale: float

    def precision(self, described: Mapping[int, Floats], ranking: Ranking) -> float:
        """Return the share of right labels among the first pseudo-labels, 16 a class."""
        made = first_labels(self.images, self.texts, self.logit_scale, described, rank_described_by=ranking)
        return float((self.labels[made.image_index] == made.labels).mean())


def read_scene(folder: Path, backbone_id: str, descriptions: Path, template: str) -> Scene:
    """Embed a folder of images with one sub-folder for each class."""
    names = read_class_names(folder)
    images = find_images(folder)
    backbone = load_backbone(backbone_id)
    embedded = embed_images(backbone, images, EmbeddingCache(), runtime.start())
    labels = read_labels("folders", images, names)[embedded.image_index]
    texts = embed_classes(backbone, Vocabulary(names, (template,)))
    known = read_descriptions(descriptions)
    sentences = {c: embed_texts(backbone, known[name]) for c, name in enumerate(names) if name in known}
    return Scene(names, embedded.vectors, labels, texts, sentences, backbone.logit_scale)


def jaccard(sets: Sequence[set[int]]) -> float:
    """Return the mean overlap of all pairs."""
    pairs = itertools.combinations(sets, 2)
    return float(np.mean([len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs]))


def recalls(scene: Scene) -> Floats:
    """Return the share of each class's images that zero-shot finds."""
    predicted = (scene.images @ scene.texts.T).argmax(axis=1)
    hits = [float((predicted[scene.labels == c] == c).mean()) for c in range(len(scene.names))]
    return np.asarray(hits, dtype=np.float32)


def describe_row(scene: Scene, label: str, settings: MismatchSettings, truth: set[int], n_seeds: int) -> None:
    """Print one row: what is found, how stable it is, and the precision of the first labels that follow."""
    found, best, mean = [], [], []
    for seed in range(n_seeds):
        findings = detect_mismatch(scene.images, scene.texts, scene.logit_scale, replace(settings, seed=seed))
        found.append(set(findings.mismatched.tolist()))
        own = {c: scene.sentences[c] for c in found[-1] if c in scene.sentences}
        chosen = choose_descriptions(scene.images[findings.remaining], own, scene.logit_scale, seed=seed)
        best.append(scene.precision({c: own[c][index] for c, index in chosen.items()}, "cosine"))
        mean.append(scene.precision({c: unit_rows(texts.sum(axis=0)) for c, texts in own.items()}, "probability"))
    right = np.mean([len(f & truth) / len(f) if f else 1.0 for f in found])
    recall = np.mean([len(f & truth) / max(1, len(truth)) for f in found])
    size = np.mean([len(f) for f in found])
    print(
        f"| {label} | {size:.1f} | {right:.2f} | {recall:.2f} | {jaccard(found):.2f} "
        f"| {np.mean(best):.3f} ± {np.std(best):.3f} | {np.mean(mean):.3f} ± {np.std(mean):.3f} |",
        flush=True,
    )


def read_words() -> argparse.Namespace:
    """Read the command line; without images, the test bed is used."""
    parser = argparse.ArgumentParser(description="Stability and worth of mismatch detection.")
    parser.add_argument("--images", type=Path)
    parser.add_argument("--backbone")
    parser.add_argument("--descriptions", type=Path)
    parser.add_argument("--template", default="a photo of a {}")
    parser.add_argument("--mismatched", help="the misleading class names, separated by commas")
    parser.add_argument("--seeds", type=int, default=5)
    words = parser.parse_args()
    if words.images is None:
        testbed = os.environ.get("CAPTUNE_TESTBED")
        if not testbed:
            sys.exit("Set CAPTUNE_TESTBED, or give --images, --backbone and --descriptions.")
        words.images = Path(testbed, "data", "ucmerced", "train")
        words.backbone = f"dual:{Path(testbed, 'models', 'aerial-dual')}"
        words.descriptions = Path(testbed, "data", "ucmerced", "descriptions.yaml")
    return words


def main() -> None:
    """Print the table."""
    words = read_words()
    scene = read_scene(words.images, words.backbone, words.descriptions, words.template)
    share = recalls(scene)
    truth = set(np.flatnonzero(share < 0.05).tolist())
    if words.mismatched:
        truth = {scene.names.index(name.strip()) for name in words.mismatched.split(",")}
    print(f"{len(scene.images)} images, {len(scene.names)} classes; misleading names according to the true labels:")
    print("  " + ", ".join(f"{scene.names[c]} (recall {share[c]:.2f})" for c in sorted(truth)) + "\n")
    print("| detection | named | right | recall | Jaccard | D_PL, best of n | D_PL, mean of n |")
    print("|---" * 7 + "|")
    alone = scene.precision({}, "probability")
    print(f"| none: names alone | 0 | - | 0.00 | - | {alone:.3f} | {alone:.3f} |")
    for label, settings in DETECTIONS.items():
        describe_row(scene, label, settings, truth, words.seeds)
    everything = {c: unit_rows(texts.sum(axis=0) + scene.texts[c]) for c, texts in scene.sentences.items()}
    print(
        f"| all classes described, mean with the name | {len(everything)} | - | - | - | - | "
        f"{scene.precision(everything, 'probability'):.3f} |"
    )


if __name__ == "__main__":
    main()
