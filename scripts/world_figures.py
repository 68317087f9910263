"""Measure the embedded world and its model: zero-shot by class, linear probes, descriptions, speed.

python scripts/world_figures.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch.nn import functional
from transformers import AutoTokenizer, CLIPModel
from transformers.utils import logging

from captune.core.arrays import Floats, Ints
from captune.world import WORLD_KINDS, Photographs, class_names, descriptions_path, render_world
from captune.world.patterns import MISMATCHED
from pattern_captions import name_shares

TEMPLATE = "a photo of a {}"
FOLDER = Path(__file__).parents[1] / "src/captune/backbones/embedded/patterns"


@dataclass(frozen=True)
class Encoder:
    """The saved model, loaded with transformers."""

    model: CLIPModel
    tokenizer: AutoTokenizer

    @classmethod
    def load(cls, folder: Path) -> Encoder:
        """Load a folder in full precision."""
        model = CLIPModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
        return cls(model, AutoTokenizer.from_pretrained(folder, local_files_only=True))

    @torch.no_grad()
    def images(self, photos: Photographs) -> Floats:
        """Return unit embeddings, `(images, width)`."""
        parts = []
        for start in range(0, len(photos.labels), 240):
            pixels = torch.from_numpy(photos.images[start : start + 240]).permute(0, 3, 1, 2).float()
            pooled = self.model.vision_model((pixels / 255 - 0.5) / 0.25).pooler_output
            parts.append(functional.normalize(self.model.visual_projection(pooled), dim=-1).numpy())
        return np.concatenate(parts)

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Floats:
        """Return unit embeddings, `(texts, width)`."""
        tokens = self.tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        pooled = self.model.text_model(**tokens).pooler_output
        embedded: Floats = functional.normalize(self.model.text_projection(pooled), dim=-1).numpy()
        return embedded


def probe(train: Floats, train_labels: Ints, test: Floats, test_labels: Ints, strength: float) -> float:
    """Return the test accuracy of a logistic regression."""
    scaler = StandardScaler().fit(train)
    linear = LogisticRegression(C=strength, max_iter=300).fit(scaler.transform(train), train_labels)
    return float(linear.score(scaler.transform(test), test_labels))


def top_precision(images: Floats, labels: Ints, text: Floats, class_id: int, k: int = 16) -> float:
    """Return the share of the class among the k images nearest to a text."""
    nearest = np.argsort(-(images @ text), kind="stable")[:k]
    return float((labels[nearest] == class_id).mean())


def print_zero_shot(images: Floats, labels: Ints, texts: Floats) -> None:
    """Print accuracy, predicted count and most frequent answer of every class."""
    names = class_names()
    predicted = (images @ texts.T).argmax(axis=1)
    counts = np.bincount(predicted, minlength=len(names))
    print(f"{'class':14s} {'kind':11s} {'own name in captions':>20s} {'accuracy':>9s} {'predicted':>9s}  mostly called")
    shares = name_shares()
    for class_id, name in enumerate(names):
        answers = predicted[labels == class_id]
        accuracy = (answers == class_id).mean()
        usual = np.bincount(answers, minlength=len(names))
        called = f"{names[usual.argmax()]} ({usual.max() / usual.sum():.0%})"
        share = shares[name].get(name, 0.0)
        print(f"{name:14s} {WORLD_KINDS[name]:11s} {share:20.1%} {accuracy:9.1%} {counts[class_id]:9d}  {called}")
    accuracies = np.array([(predicted[labels == c] == c).mean() for c in range(len(names))])
    print(f"zero-shot accuracy {accuracies.mean():.1%}; classes under 10 %: {(accuracies < 0.1).sum()}")
    for kind in sorted(set(WORLD_KINDS.values())):
        members = [c for c, name in enumerate(names) if WORLD_KINDS[name] == kind]
        print(f"  {kind}: {accuracies[members].mean():.1%} over {len(members)} classes")


def print_descriptions(encoder: Encoder, images: Floats, labels: Ints, texts: Floats) -> None:
    """Print the precision of the top 16 images by name and by description, and what descriptions do to accuracy."""
    described = yaml.safe_load(descriptions_path().read_text())
    names = class_names()
    better = texts.copy()
    print(f"\n{'top-16 precision':14s} {'by name':>8s} {'best description':>17s} {'mean of five':>13s}")
    for class_id, name in enumerate(names):
        if WORLD_KINDS[name] != MISMATCHED:
            continue
        vectors = encoder.texts(described[name])
        each = [top_precision(images, labels, vector, class_id) for vector in vectors]
        by_name = top_precision(images, labels, texts[class_id], class_id)
        better[class_id] = vectors.mean(axis=0) / np.linalg.norm(vectors.mean(axis=0))
        print(f"{name:16s} {by_name:8.2f} {max(each):17.2f} {np.mean(each):13.2f}")
    predicted = (images @ better.T).argmax(axis=1)
    print(f"zero-shot accuracy with the mismatched classes described: {(predicted == labels).mean():.1%}")


def print_probes(encoder: Encoder, train: Photographs, test: Photographs, images: Floats) -> None:
    """Print linear probes on pixels and on embeddings."""
    on_images = probe(encoder.images(train), train.labels, images, test.labels, strength=1.0)
    print(f"\nlinear probe on embeddings {on_images:.1%}, on raw pixels ", end="", flush=True)
    flat = [photos.images.reshape(len(photos.labels), -1).astype(np.float32) / 255 for photos in (train, test)]
    best = max(probe(flat[0], train.labels, flat[1], test.labels, strength) for strength in (1e-5, 1e-4, 1e-3))
    print(f"{best:.1%} (best of three strengths)")


def print_speed(encoder: Encoder) -> None:
    """Print photographs per second on one core and the time of a training step on two."""
    render_world(8, 99)
    started, on_clock = time.process_time(), time.perf_counter()
    render_world(64, 99)
    busy, wall = time.process_time() - started, time.perf_counter() - on_clock
    print(f"\n{64 * 24 / busy:.0f} photographs per second of one core ({64 * 24 / wall:.0f} by the clock)")
    torch.set_num_threads(2)
    pixels = torch.randn(96, 3, 64, 64)
    tokens = encoder.tokenizer([TEMPLATE.format(n) for n in class_names()], padding=True, return_tensors="pt")
    times = []
    started = time.process_time()
    for _ in range(20):
        on_clock = time.perf_counter()
        image = encoder.model.visual_projection(encoder.model.vision_model(pixels).pooler_output)
        text = encoder.model.text_projection(encoder.model.text_model(**tokens).pooler_output)
        (image @ text.T).square().mean().backward()
        times.append(time.perf_counter() - on_clock)
    best, middle, busy = min(times), float(np.median(times)), (time.process_time() - started) / len(times)
    print(f"forward and backward of 96 images and 24 texts: best {best:.3f} s, median {middle:.3f} s", end="")
    print(f" ({busy:.3f} s of processor time)")


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=2, help="not the seed of the pretraining")
    parser.add_argument("--images-per-class", type=int, default=100)
    parser.add_argument("--skip-probes", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    logging.disable_progress_bar()
    encoder = Encoder.load(arguments.model)
    size = sum(path.stat().st_size for path in arguments.model.iterdir()) / 1e6
    print(f"{sum(p.numel() for p in encoder.model.parameters()):,} weights, {size:.1f} MB", end="")
    print(f", logit scale {encoder.model.logit_scale.exp().item():.2f}\n")
    test = render_world(arguments.images_per_class, arguments.seed, "test")
    images = encoder.images(test)
    texts = encoder.texts([TEMPLATE.format(name) for name in class_names()])
    print_zero_shot(images, test.labels, texts)
    print_descriptions(encoder, images, test.labels, texts)
    if not arguments.skip_probes:
        print_probes(encoder, render_world(arguments.images_per_class, arguments.seed), test, images)
    print_speed(encoder)


if __name__ == "__main__":
    main()
