"""How often the health check is right about many good and bad adaptations, in minutes.

    python benchmarks/health_rule.py --world     # the embedded world; needs no files
    python benchmarks/health_rule.py             # UC Merced in CAPTUNE_TESTBED

Instead of full methods, class vectors are trained on cached embeddings with pseudo-labels chosen in the same way.
`names` uses class names only, `texts` names and descriptions; both are compared with zero-shot by names. The table
shows the verdicts of all seeds and the mean accuracy; changes of less than one point are not counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy, normalize

from captune.backbones.base import load_backbone
from captune.benchmark.splits import long_tail
from captune.core import runtime
from captune.core.arrays import Floats, Ints, softmax_rows
from captune.data.descriptions import read_descriptions
from captune.data.images import find_images
from captune.data.labels import read_labels
from captune.data.vocabulary import Vocabulary, read_class_names
from captune.embeddings.cache import EmbeddingCache
from captune.embeddings.embed import embed_classes, embed_images, score
from captune.labeling.gaussian_mixture import fit_gaussian_mixture
from captune.labeling.neighborhood import neighbor_consensus, neighbor_graph
from captune.labeling.pseudo_labels import PseudoLabels
from captune.labeling.selection import top_k_per_class
from captune.results.health import check_health
from captune.world import descriptions_path, write_world

CLEAR = 0.01
STEPS, BATCH = 100, 64


def read_scene(folder: Path, backbone_id: str, descriptions: Path) -> tuple[Floats, Ints, Floats, Floats, float]:
    """Return images, truth, class names and class texts as embeddings, and the logit scale."""
    names, images, backbone = read_class_names(folder), find_images(folder), load_backbone(backbone_id)
    embedded = embed_images(backbone, images, EmbeddingCache(), runtime.start(quiet=True))
    vocabulary, known = Vocabulary(names, ("a photo of a {}",)), read_descriptions(descriptions)
    described = {c: (*vocabulary.texts(c), *known[name]) for c, name in enumerate(names) if name in known}
    texts = [embed_classes(backbone, one) for one in (vocabulary, vocabulary.with_descriptions(described))]
    truth = read_labels("folders", images, names)[embedded.image_index]
    return embedded.vectors, truth, texts[0], texts[1], backbone.logit_scale


def train(images: Floats, labels: PseudoLabels, texts: Floats, scale: float) -> Floats:
    """Train class vectors on pseudo-labels, from the texts on, and return probabilities of all images."""
    vectors = torch.nn.Parameter(torch.from_numpy(texts.copy()))
    optimizer = torch.optim.SGD([vectors], lr=0.05, momentum=0.9)
    inputs, targets = torch.from_numpy(images[labels.image_index]), torch.from_numpy(labels.labels)
    generator = np.random.default_rng(0)
    for _ in range(STEPS):
        drawn = torch.from_numpy(generator.integers(len(labels), size=BATCH))
        loss = cross_entropy(scale * inputs[drawn] @ normalize(vectors, dim=-1).T, targets[drawn])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return score(images, normalize(vectors, dim=-1).detach().numpy(), scale)


def ways(images: Floats, names: Floats, texts: Floats, scale: float, seed: int) -> Iterator[tuple[str, Floats]]:
    """Yield the probabilities of every adaptation, good or bad."""
    graph, n_classes = neighbor_graph(images, 10), len(names)
    before = score(images, names, scale)
    yield "zero-shot, texts", score(images, texts, scale)
    for what, vectors in (("names", names), ("texts", texts)):
        start = score(images, vectors, scale)
        yield f"transductive, {what}", fit_gaussian_mixture(images, vectors, scale).probabilities
        yield f"16 a class, {what}", train(images, top_k_per_class(start, 16), vectors, scale)
        grown = neighbors = start
        for step in range(1, 6):
            k = max(1, len(images) * step // (5 * n_classes))
            grown = train(images, top_k_per_class(grown, k), vectors, scale)
            said = neighbor_consensus(neighbors, graph)
            neighbors = train(images, top_k_per_class(said, max(16, k)), vectors, scale)
        yield f"equal counts growing to all, {what}", grown
        yield f"equal counts growing, with neighbors, {what}", neighbors
    generator = np.random.default_rng(seed)
    noisy = names + 0.06 * generator.standard_normal(names.shape).astype(np.float32)
    yield "noise on the names", score(images, noisy / np.linalg.norm(noisy, axis=1, keepdims=True), scale)
    is_lost = generator.random(len(images)) < 0.3
    guesses = softmax_rows(20 * np.eye(n_classes, dtype=np.float32)[generator.integers(n_classes, size=len(images))])
    yield "3 in 10 at random", np.where(is_lost[:, None], guesses, before)
    yield "all names exchanged", np.roll(before, 1, axis=1)
    counts = np.bincount(before.argmax(axis=1), minlength=n_classes)
    yield "frequent classes favored", softmax_rows(0.2 * np.log(before + 1e-12) + 1.5 * np.log(1.0 + counts))


def report(scene: tuple[Floats, Ints, Floats, Floats, float], imbalance: list[float], n_seeds: int) -> None:
    """Print the table: every way at every imbalance, counted over seeds."""
    images, truth, names, texts, scale = scene
    found: dict[tuple[str, float], list[tuple[float, float, str]]] = {}
    for ratio in imbalance:
        for seed in range(n_seeds if ratio > 1 else 1):
            rows = long_tail(truth, ratio, seed)
            before = score(images[rows], names, scale)
            for way, after in ways(images[rows], names, texts, scale, seed):
                old, new = (float(np.mean(p.argmax(axis=1) == truth[rows])) for p in (before, after))
                verdict = check_health(images[rows], before, after).verdict
                found.setdefault((way, ratio), []).append((old, new, verdict))
    print("| way | " + " | ".join(f"imbalance {ratio:g}" for ratio in imbalance) + " |\n" + "|---" * 4 + "|")
    for way in dict.fromkeys(way for way, _ in found):
        cells = [_cell(found[way, ratio]) for ratio in imbalance]
        print(f"| {way} | " + " | ".join(cells) + " |", flush=True)
    clear = [(n - o, v) for outcomes in found.values() for o, n, v in outcomes if abs(n - o) > CLEAR]
    fell, rose = ([v for change, v in clear if (change < 0) == is_fall] for is_fall in (True, False))
    print(f"\nAccuracy rose in {len(rose)} cases: {_count(rose)}. It fell in {len(fell)}: {_count(fell)}.")


def _cell(outcomes: list[tuple[float, float, str]]) -> str:
    old, new = (np.mean([outcome[i] for outcome in outcomes]) for i in (0, 1))
    return f"{old:.0%} to {new:.0%}, {'/'.join(verdict for _, _, verdict in outcomes)}"


def _count(verdicts: list[str]) -> str:
    return ", ".join(f"{verdicts.count(what)} {what}" for what in ("helpful", "unclear", "harmful"))


def main() -> int:
    """Print the table of one scene."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--testbed", default=os.environ.get("CAPTUNE_TESTBED"), help="default: CAPTUNE_TESTBED")
    parser.add_argument("--world", action="store_true", help="the embedded world instead of UC Merced")
    parser.add_argument("--imbalance", nargs="+", type=float, default=[1, 10, 50])
    parser.add_argument("--seeds", type=int, default=3)
    words = parser.parse_args()
    torch.set_num_threads(1)
    if words.world:
        with tempfile.TemporaryDirectory() as folder:
            write_world(Path(folder), 50, 0, split="train")
            scene = read_scene(Path(folder), "embedded:patterns", descriptions_path())
    elif words.testbed and Path(words.testbed, "models", "aerial-dual").is_dir():
        data, model = Path(words.testbed, "data", "ucmerced"), Path(words.testbed, "models", "aerial-dual")
        scene = read_scene(data / "train", f"dual:{model}", data / "descriptions.yaml")
    else:
        print("skipped: set CAPTUNE_TESTBED to the folder with data/ucmerced and models/aerial-dual, or use --world")
        return 0
    report(scene, words.imbalance, words.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
