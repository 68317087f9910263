"""The methods side by side on beds of embeddings: accuracy, agreement with the mixture of `transductive`, and time.

    python benchmarks/agreement.py FOLDER                                  # every *.npz file of benchmarks/embed_bed.py
    python benchmarks/agreement.py FOLDER --methods cap --set describe=mismatched

Beds with descriptions are measured twice: with class names only, and with a describer. The classifier is measured as
the method returns it, whatever the health check would keep. `changed` is the share of the images adapted to whose label
differs from that of `transductive`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from captune.backbones.precomputed import Precomputed
from captune.core import registry, runtime
from captune.core.arrays import Ints
from captune.core.settings import build, parse_overrides
from captune.data.precomputed import ClassTexts, Embeddings
from captune.data.task import AdaptationTask
from captune.data.vocabulary import Vocabulary
from captune.describers.base import Describer, describer_of
from captune.describers.none import NoDescriber
from captune.embeddings.cache import EmbeddingCache
from captune.methods.base import Context

METHODS = ("zero_shot", "transductive", "auto", "cap")
PEERS = ("zero_shot", "transclip", "zlap")
"""Methods that get the descriptions of all classes; the others decide themselves."""


def open_bed(path: Path, described: bool) -> tuple[Precomputed, AdaptationTask, Describer]:
    """Return a bed as a backbone of texts, a task of its images, and a describer of its sentences."""
    content = np.load(path)
    names, vectors = [str(name) for name in content["names"]], content["texts"]
    sentences: dict[str, list[str]] = {}
    if described:
        n = content["sentences"].shape[1]
        sentences = {name: [f"{name}, description {i}" for i in range(n)] for name in names}
        vectors = np.concatenate([vectors, content["sentences"].reshape(-1, vectors.shape[1])])
    texts = ClassTexts(
        (*names, *(s for own in sentences.values() for s in own)), vectors, float(content["logit_scale"])
    )
    task = AdaptationTask(Vocabulary(tuple(names), ("{}",)), Embeddings(content["train_images"]))
    return Precomputed(texts), task, describer_of(sentences) if described else NoDescriber()  # type: ignore[return-value]


def run(path: Path, described: bool, name: str, changes: dict[str, Any], seed: int) -> tuple[dict[str, Ints], float]:
    """Adapt with a method's preset `quick` and return the predicted classes of both parts, and the seconds it took."""
    backbone, task, describer = open_bed(path, described)
    method_class = registry.load("methods", name)
    settings = {**method_class.presets.get("quick", {}), **(changes if name == "cap" else {})}
    if described and name in PEERS:
        settings["describe"] = "all"
    method = method_class(build(method_class.Settings, settings, "settings"))
    with tempfile.TemporaryDirectory() as folder:
        engine = runtime.start(seed=seed, workers=0, quiet=True)
        context = Context(engine, EmbeddingCache(Path(folder)), describer=describer)
        started = time.perf_counter()
        tuner = method.adapt(task, backbone, context)
        seconds = time.perf_counter() - started
    found = {}
    with torch.inference_mode():
        for part in ("train", "test"):
            images = tuner.refine(torch.from_numpy(Embeddings(np.load(path)[f"{part}_images"]).vectors))
            found[part] = tuner.logits(images, tuner.class_embeddings()).argmax(dim=1).numpy()
    return found, seconds


def main() -> int:
    """Print a row for every bed and method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with beds as .npz files")
    parser.add_argument("--beds", nargs="+", help="names of the files, without .npz; default: all")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE", help="of CAP")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    changes = parse_overrides(options.changes)
    print("| bed | method | images adapted to | new images | changed | seconds |\n|---|---|---|---|---|---|")
    for path in sorted(options.folder.glob("*.npz")):
        if options.beds and path.stem not in options.beds:
            continue
        content = np.load(path)
        for described in (False, True) if "sentences" in content else (False,):
            mixture, _ = run(path, described, "transductive", {}, options.seed)
            for name in options.methods:
                found, seconds = run(path, described, name, changes, options.seed)
                right = [100 * float(np.mean(found[part] == content[f"{part}_labels"])) for part in ("train", "test")]
                changed = 100 * float(np.mean(found["train"] != mixture["train"]))
                bed = f"{path.stem}{', described' if described else ''}"
                print(
                    f"| {bed} | {name} | {right[0]:.1f} | {right[1]:.1f} | {changed:.1f} % | {seconds:.1f} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
