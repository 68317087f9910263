"""Descriptions of confused pairs beside those of misleading names and of all classes.

    python benchmarks/confused.py patterns
    python benchmarks/confused.py beds/ucmerced.npz --backbone dual:MODEL --descriptions descriptions.yaml

`benchmarks/beds.py` says what a bed is. Sentences about pairs are read from `benchmarks/pairs/`; they were written once
from general knowledge, before any measurement. Accuracy (%) on the images adapted to.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from beds import make_world, read_bed
from captune.backbones.base import load_backbone
from captune.concepts.alignment import Scope, align_concepts
from captune.data.vocabulary import Vocabulary
from captune.describers.base import open_describer
from captune.embeddings.embed import embed_classes
from captune.mixture.gaussian_mixture import fit_gaussian_mixture
from captune.world import class_names, descriptions_path

SCOPES: tuple[Scope, ...] = ("none", "mismatched", "all", "auto", "confused")


def main() -> int:
    """Print one row for each choice of classes to describe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bed", help="patterns, or an .npz file")
    parser.add_argument("--backbone", default="embedded:patterns")
    parser.add_argument("--descriptions", default=str(descriptions_path()))
    parser.add_argument("--template", default="a photo of a {}")
    options = parser.parse_args()
    name = Path(options.bed).stem
    bed = make_world() if name == "patterns" else read_bed(Path(options.bed))
    names = class_names() if name == "patterns" else tuple(map(str, np.load(options.bed)["names"]))
    pairs = Path(__file__).with_name("pairs") / f"{name}.yaml"
    backbone, vocabulary = load_backbone(options.backbone), Vocabulary(names, (options.template,))
    print("| describe | zero-shot | transductive | described |\n|---|---|---|---|")
    for scope in SCOPES:
        describer = open_describer(f"file:{pairs if scope == 'confused' else options.descriptions}")
        found = align_concepts(bed.images, vocabulary, backbone, describer, describe=scope)
        texts = embed_classes(backbone, found.vocabulary)
        fit = fit_gaussian_mixture(bed.images, texts, bed.logit_scale)
        guesses = ((bed.images @ texts.T).argmax(axis=1), fit.probabilities.argmax(axis=1))
        accuracies = " | ".join(f"{100 * np.mean(labels == bed.labels):.1f}" for labels in guesses)
        print(f"| {scope} | {accuracies} | {len(found.described)} of {len(names)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
