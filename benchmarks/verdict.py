"""How often the health check is right: many adaptations of many beds, good and bad, judged without labels.

    python benchmarks/verdict.py CLIP_FOLDER            # the embedded world and every *.npz in a folder
    python benchmarks/verdict.py CLIP_FOLDER --csv out.csv
    python benchmarks/verdict.py CLIP_FOLDER --methods cap upl grip cpl --cache predictions
    python benchmarks/verdict.py CLIP_FOLDER --fresh    # beds that no threshold was chosen on

Methods that train are run with their preset `quick` on the beds and, with --method-seeds, on their variants. With
--cache, their predictions are kept in a folder and not made again.

`benchmarks/beds.py` says what a bed is. Each one is also cut to a long tail of 10:1, to four images per class, and to
images of two thirds of its classes, by seed. A verdict counts if accuracy changed by at least two points. The runs are
shown in two halves that are drawn by seed 0.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression

import captune
from beds import Bed, make_world, read_bed, variants
from captune.concepts.alignment import descriptions_help
from captune.core.arrays import Floats, softmax_rows
from captune.core.registry import load
from captune.embeddings.embed import score
from captune.labeling.selection import top_k_per_class
from captune.methods.transclip import solve_transclip
from captune.mixture.gaussian_mixture import MixtureSettings, fit_gaussian_mixture
from captune.results.health import check_health
from fresh_beds import changed

CLEAR = 0.02


def adaptations(bed: Bed, generator: np.random.Generator) -> Iterator[tuple[str, Floats]]:
    """Yield the predictions of adaptations, good and bad, and of some that are bad on purpose."""
    images, texts, scale, n_classes = bed.images, bed.texts, bed.logit_scale, len(bed.texts)
    zero_shot = score(images, texts, scale)

    def mixture(**changes: float) -> Floats:
        return fit_gaussian_mixture(images, texts, scale, MixtureSettings(**changes)).probabilities

    yield "transductive", mixture()
    yield "transductive, texts drowned out", mixture(image_weight=100.0)
    yield "transductive, no anchor", mixture(alpha=0.1)
    yield "transductive, nearly diagonal", mixture(shrinkage=0.99)
    yield "TransCLIP", solve_transclip(images, texts, scale).probabilities
    yield (
        "TransCLIP, without its density weight",
        solve_transclip(images, texts, scale, density_weight=1.0).probabilities,
    )
    clusters = KMeans(min(n_classes, len(images) // 3), n_init=1, random_state=0).fit_predict(images)
    named = np.array([zero_shot[clusters == c].sum(axis=0).argmax() for c in range(clusters.max() + 1)])
    yield "k-means, majority names", np.eye(n_classes, dtype=np.float32)[named[clusters]]
    for k in (4, 16):
        chosen = top_k_per_class(zero_shot, min(k, max(1, len(images) // n_classes)))
        probe = LogisticRegression(C=10.0, max_iter=200).fit(images[chosen.image_index], chosen.labels)
        found = np.zeros_like(zero_shot)
        found[:, probe.classes_] = probe.predict_proba(images)
        yield f"pseudo-labels, {k} a class", found
    if bed.described is not None:
        yield "descriptions", score(images, bed.described, scale)
        yield "descriptions, transductive", fit_gaussian_mixture(images, bed.described, scale).probabilities
    for share in (0.1, 0.3):
        spoiled = zero_shot.copy()
        rows = generator.random(len(images)) < share
        spoiled[rows] = spoiled[rows][:, generator.permutation(n_classes)]
        yield f"{share:.0%} of the labels at random", spoiled
        swapped = generator.permutation(n_classes)[: max(2, int(share * n_classes))]
        renamed = texts.copy()
        renamed[swapped] = renamed[np.roll(swapped, 1)]
        yield f"{share:.0%} of the names exchanged", score(images, renamed, scale)
    lost = np.zeros(n_classes, dtype=np.float32)
    lost[generator.permutation(n_classes)[: n_classes // 2]] = -8.0
    yield "half of the classes lost", softmax_rows(np.log(zero_shot + 1e-12) + lost)


def trained(bed: Bed, methods: Sequence[str], cache: Path | None) -> Iterator[tuple[str, Floats]]:
    """Yield the predictions of real runs of methods, from the cache if they are there."""
    texts = captune.ClassTexts([f"class {i}" for i in range(len(bed.texts))], bed.texts, logit_scale=bed.logit_scale)
    for method in methods:
        file = None if cache is None else cache / f"{method}, {bed.name}.npy"
        if file is None or not file.exists():
            presets = {"preset": "quick"} if load("methods", method).presets else {}
            run = captune.adapt(
                captune.Embeddings(bed.images),
                texts,
                method=method,
                quiet=True,
                keep_better=False,
                workers=0,
                **presets,
            )
            found = run.predictions.probabilities
            if file is None:
                yield method, found
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, found.astype(np.float16))
        yield method, np.load(file).astype(np.float32)


def judge(bed: Bed, methods: Sequence[str], cache: Path | None) -> Iterator[dict[str, object]]:
    """Yield the verdict and the true change of every adaptation of a bed."""
    before = score(bed.images, bed.texts, bed.logit_scale)
    right = np.mean(before.argmax(axis=1) == bed.labels)
    made = adaptations(bed, np.random.default_rng(0))
    for name, after in chain(trained(bed, methods, cache), made):
        texts = bed.texts
        if name.startswith("descriptions"):
            assert bed.described is not None
            if descriptions_help(bed.images, bed.texts, bed.described, bed.logit_scale):
                texts = bed.described
        found = check_health(bed.images, before, after, texts, bed.logit_scale)
        change = float(np.mean(after.argmax(axis=1) == bed.labels) - right)
        yield {
            "bed": bed.name,
            "adaptation": name,
            "change": round(change, 4),
            "expected": round(found.expected_change, 4),
            "standard_error": round(found.standard_error, 4),
            "changed": round(found.changed, 4),
            "confidence": round(found.confidence_before, 4),
            "verdict": found.verdict,
        }


def report(rows: list[dict[str, object]], title: str) -> None:
    """Print how often verdicts were right."""
    change = np.array([row["change"] for row in rows], dtype=float)
    verdict = np.array([row["verdict"] for row in rows])
    is_clear, is_told = np.abs(change) >= CLEAR, verdict != "unclear"
    is_right = ((change > 0) & (verdict == "helpful")) | ((change < 0) & (verdict == "harmful"))
    counted = is_clear & is_told
    unsafe = [row for row in rows if row["verdict"] == "helpful" and float(str(row["change"])) < -CLEAR]
    print(
        f"{title}: {len(rows)} runs, cannot tell in {np.mean(~is_told):.0%}; of {counted.sum()} with a verdict and a "
        f"change of two points, right in {np.mean(is_right[counted]):.1%}; of all {is_clear.sum()} with such a change, "
        f"right in {np.mean(is_right[is_clear]):.1%}; called helpful where accuracy fell by two points: {len(unsafe)}"
    )
    for row in unsafe:
        print("   unsafe:", row)


def main() -> int:
    """Judge all adaptations and print both halves of the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with beds as .npz files")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of the variants of each bed")
    parser.add_argument("--fresh", action="store_true", help="judge the beds of fresh_beds.py instead of these")
    parser.add_argument("--methods", nargs="*", default=[], help="methods to run as well, such as cap or grip")
    parser.add_argument("--method-seeds", type=int, default=0, help="seeds of the variants that methods are run on")
    parser.add_argument("--cache", type=Path, help="folder that keeps the predictions of these methods")
    parser.add_argument("--csv", type=Path, help="table of all runs to write")
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.npz"))
    if not files:
        print(f"No .npz files in {options.folder}: only the embedded world is judged.")
    rows: list[dict[str, object]] = []
    readers: list[Callable[[], Bed]] = [make_world, *(lambda path=path: read_bed(path) for path in files)]
    for read in readers:
        bed = read()
        with_methods = {one.name for one in variants(bed, options.method_seeds)}
        for one in changed(bed) if options.fresh else variants(bed, options.seeds):
            rows += judge(one, options.methods if one.name in with_methods else (), options.cache)
        print(f"{len(rows)} runs after {bed.name}", file=sys.stderr)
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    order = np.random.default_rng(0).permutation(len(rows))
    report([rows[i] for i in order[::2]], "chosen on")
    report([rows[i] for i in order[1::2]], "held out")
    if options.methods:
        report([row for row in rows if row["adaptation"] in options.methods], "trained methods")
    report(
        [row for row in rows if "%" not in str(row["adaptation"]) and "half" not in str(row["adaptation"])], "real only"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
