"""Embed a dataset for benchmarks/beds.py, benchmarks/verdict.py and, with --second, benchmarks/second_encoder.py.

    python benchmarks/embed_bed.py IMAGES BACKBONE OUT.npz --descriptions descriptions.yaml

IMAGES has the folders train and test, each with one folder per class.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from captune.backbones.base import load_backbone
from captune.backbones.image import second_id
from captune.core import runtime
from captune.data.images import find_images
from captune.data.vocabulary import read_descriptions
from captune.embeddings.cache import EmbeddingCache, default_folder
from captune.embeddings.embed import embed_images, embed_texts


def main() -> int:
    """Embed images, class names and descriptions, and save them in one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("backbone", help="such as dual:folder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--descriptions", type=Path)
    parser.add_argument("--second", default="", help="a second image encoder, such as hf:facebook/dinov2-small")
    options = parser.parse_args()
    backbone, engine = load_backbone(options.backbone), runtime.start(quiet=True)
    names = sorted(path.name for path in (options.images / "train").iterdir() if path.is_dir())
    arrays = {"names": np.array(names), "logit_scale": np.array(backbone.logit_scale)}
    arrays["texts"] = embed_texts(backbone, [f"a photo of a {name}" for name in names])
    if options.descriptions:
        sentences = read_descriptions(options.descriptions)
        arrays["sentences"] = np.stack([embed_texts(backbone, sentences[name]) for name in names])
    for part in ("train", "test"):
        images = find_images(options.images / part)
        found = embed_images(backbone, images, EmbeddingCache(default_folder()), engine)
        arrays[f"{part}_images"] = found.vectors
        arrays[f"{part}_labels"] = np.array([names.index(images.paths[i].parent.name) for i in found.image_index])
        if options.second and part == "train":
            second = load_backbone(second_id(options.second))
            arrays["second"] = embed_images(second, images, EmbeddingCache(default_folder()), engine).vectors
    np.savez(options.out, **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main())
