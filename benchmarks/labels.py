"""What a person's answers are worth: accuracy on new images against the number of answers.

    python benchmarks/labels.py BEDS --seeds 5 --out docs/images/labels     # table and figure
    python benchmarks/labels.py BEDS --wrong 0.1 --seeds 20                 # what it costs if one in ten is wrong
    python benchmarks/labels.py BEDS --harm 20                              # 20 random corrections, 20 draws
    python benchmarks/labels.py BEDS --verdict                              # is the verdict right after answers?
    python benchmarks/labels.py BEDS --first-seed 20                        # other seeds than those of the settings

BEDS has beds as .npz files (see benchmarks/beds.py). Answers are given in a session, batch by batch: images that
`suggest` chooses, images drawn at random, or whole groups. A person names a group by the class of most of its five most
typical images and says which of these do not belong, or skips a group without such a class.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

import captune
from beds import Bed, read_bed
from captune.core.arrays import Bools, Ints
from captune.embeddings.embed import score
from captune.results.health import check_health
from captune.results.metrics import summarize
from captune.review.session import Session

BUDGETS = (10, 21, 42, 84, 168)
KINDS = ("suggested", "random", "groups")
SHOWN_OF_GROUP = 5
SMALLEST_RANGE = 10.0
"""Of the accuracies in a panel of the figure, in points, so that differences of a tenth do not look like a change."""
Row: TypeAlias = tuple[str, str, int, int, float, float]
"""Bed, kind of answers, seed, number of answers, accuracy and calibration error in percent."""


def read_all(folder: Path) -> Iterator[Bed]:
    """Yield every bed by its names and, if there are descriptions, described."""
    for path in sorted(folder.glob("*.npz")):
        bed = read_bed(path)
        if bed.described is not None:
            yield replace(bed, name=f"{bed.name}, described", texts=bed.described)
        yield bed


def open_bed(bed: Bed, seed: int) -> Session:
    """Open a session on the images of a bed."""
    names = tuple(str(i) for i in range(len(bed.texts)))
    texts = captune.ClassTexts(names, bed.texts, bed.logit_scale)
    return captune.open_session(captune.Embeddings(bed.images), texts, seed=seed)


def measure(session: Session, bed: Bed, was_right: Bools | None = None) -> tuple[float, float]:
    """Return accuracy and calibration error on new images, in %.

    If a bed has none, its images without a label are measured. These are harder or easier than all: the change on them
    is added to the accuracy that all images had before (`was_right`).
    """
    harder = 0.0
    if np.array_equal(bed.images, bed.test_images):
        rest = np.setdiff1d(np.arange(len(bed.labels)), list(session.labels))
        probabilities, truth = session.engine.probabilities[rest], bed.labels[rest]
        harder = 0.0 if was_right is None else float(was_right.mean() - was_right[rest].mean())
    else:
        probabilities, truth = session.classifier.score_embeddings(bed.test_images), bed.test_labels
    found = summarize(probabilities, truth, n_classes=len(bed.texts))
    return 100 * (found.accuracy + harder), 100 * found.ece


def answer(bed: Bed, positions: Ints, wrong: float, generator: np.random.Generator) -> dict[int, str]:
    """Return the answers of a person, some of which are wrong."""
    labels = bed.labels[positions]
    is_wrong = generator.random(len(labels)) < wrong
    others = (labels + generator.integers(1, len(bed.texts), len(labels))) % len(bed.texts)
    return {int(p): str(c) for p, c in zip(positions, np.where(is_wrong, others, labels), strict=True)}


def curve(
    bed: Bed, kind: str, seed: int, wrong: float = 0.0, budgets: Sequence[int] = BUDGETS
) -> Iterator[tuple[int, float, float]]:
    """Yield the number of answers, and accuracy and calibration error after them."""
    session, generator = open_bed(bed, seed), np.random.default_rng(seed)
    was_right = session.predictions.labels == bed.labels
    yield 0, *measure(session, bed)
    order, given = generator.permutation(len(bed.labels)), 0
    for budget in budgets:
        if budget > len(bed.labels) // 2 or (kind == "groups" and budget > len(session.groups())):
            return
        if kind == "groups":
            name_groups(session, bed, budget - given)
        elif kind == "random":
            session.label(answer(bed, order[given:budget], wrong, generator))
        else:
            chosen = np.array([s.position for s in session.suggest(budget - given, checks=0.0)])
            session.label(answer(bed, chosen, wrong, generator))
        given = budget
        yield budget, *measure(session, bed, was_right)


def name_groups(session: Session, bed: Bed, count: int) -> None:
    """Name the groups with the most unclear images, as a person would who looks at their typical images."""
    named = {said.group for said in session.corrections if said.group >= 0}
    groups = [group for group in session.groups() if group.number not in named]
    groups.sort(key=lambda group: -len(group) * (1 - group.confidence))
    for group in groups[:count]:
        seen = bed.labels[group.images[:SHOWN_OF_GROUP]]
        counts = np.bincount(seen)
        most = int(counts.argmax())
        if counts[most] <= len(seen) / 2:  # nobody would give such a group one name
            shown = [session.images.name(int(i)) for i in group.images[:SHOWN_OF_GROUP]]
            session.corrections.add("skip", images=shown, group=group.number)
            continue
        odd = [int(i) for i in group.images[:SHOWN_OF_GROUP] if bed.labels[i] != most]
        images = tuple(session.images.name(int(i)) for i in group.images if int(i) not in odd)
        if odd:
            session.corrections.add("not", str(most), images=[session.images.name(i) for i in odd], group=group.number)
        session.corrections.add("label", str(most), images=images, group=group.number)
    session.adapt()


def print_table(rows: list[Row], column: int, title: str) -> None:
    """Print the mean of a column over seeds."""
    beds = list(dict.fromkeys(row[0] for row in rows))
    print(f"{title:34}" + "".join(f"{n:>7}" for n in (0, *BUDGETS)))
    for bed in beds:
        for kind in dict.fromkeys(row[1] for row in rows):
            cells = []
            for budget in (0, *BUDGETS):
                values = [row[column] for row in rows if row[:2] == (bed, kind) and row[3] == budget]
                cells.append(f"{np.mean(values):7.1f}" if values else f"{'':7}")
            print(f"{bed:24}{kind:10}" + "".join(cells), flush=True)


def draw(rows: list[Row], out: Path) -> None:
    """Draw one panel per bed."""
    from matplotlib.figure import Figure

    beds = list(dict.fromkeys(row[0] for row in rows))
    columns = min(4, len(beds))
    figure = Figure(figsize=(3.2 * columns, 2.8 * -(-len(beds) // columns)), layout="constrained")
    for place, bed in enumerate(beds, 1):
        axes = figure.add_subplot(-(-len(beds) // columns), columns, place, title=bed)
        for kind, style in zip(KINDS, ("o-", "s--", "^:"), strict=True):
            own = [row for row in rows if row[:2] == (bed, kind)]
            budgets = sorted({row[3] for row in own})
            means = [float(np.mean([row[4] for row in own if row[3] == budget])) for budget in budgets]
            axes.plot([max(5, budget) for budget in budgets], means, style, label=kind, markersize=4)
        axes.set_xscale("log")
        axes.set_xticks([5, *BUDGETS], labels=["0", *map(str, BUDGETS)])
        axes.minorticks_off()
        axes.set_xlabel("answers")
        axes.set_ylabel("accuracy on new images (%)")
        axes.grid(alpha=0.3)
        low, high = axes.get_ylim()
        missing = max(0.0, SMALLEST_RANGE - (high - low)) / 2
        axes.set_ylim(low - missing, min(100.0, high + missing))
    figure.axes[0].legend()
    for kind in ("png", "svg"):
        figure.savefig(out.with_suffix(f".{kind}"), dpi=120)


def measure_harm(bed: Bed, n_labels: int, draws: range) -> bool:
    """Print what random corrections do to the other images; return whether they never cost more than one point."""
    session = open_bed(bed, 0)
    before = session.predictions.labels == bed.labels
    changes = []
    for draw_number in draws:
        chosen = np.random.default_rng(draw_number).choice(len(bed.labels), n_labels, replace=False)
        session.label({int(i): str(bed.labels[i]) for i in chosen})
        rest = np.setdiff1d(np.arange(len(bed.labels)), chosen)
        after = session.predictions.labels[rest] == bed.labels[rest]
        changes.append(100 * float(after.mean() - before[rest].mean()))
        for _ in chosen:
            said = session.corrections.last()
            assert said is not None
            session.corrections.add("undo", undoes=said.id)
    print(f"{bed.name:24} mean {np.mean(changes):+6.2f}  worst {min(changes):+6.2f}", flush=True)
    return min(changes) >= -1.0


def measure_wrong(bed: Bed, wrong: float, seeds: range, budgets: Sequence[int]) -> bool:
    """Print what wrong answers to suggestions cost; return whether it is at most three points on average.

    A wrong answer also changes what is suggested next, so single seeds differ by many points.
    """
    right, spoiled = (
        np.array([[point[1] for point in curve(bed, "suggested", seed, share, budgets)] for seed in seeds])
        for share in (0.0, wrong)
    )
    change = spoiled - right
    error = change.std(axis=0, ddof=1) / np.sqrt(len(seeds))
    for i, budget in enumerate((0, *budgets)[: right.shape[1]]):
        print(
            f"{bed.name:24}{budget:4} answers: {right[:, i].mean():5.1f} {spoiled[:, i].mean():5.1f}  "
            f"change {change[:, i].mean():+5.1f} (standard error {error[i]:.1f}), worst {change[:, i].min():+5.1f}",
            flush=True,
        )
    return bool(change.mean(axis=0).min() >= -3.0)


def measure_verdict(bed: Bed, seeds: range, budgets: Sequence[int]) -> Iterator[tuple[str, float]]:
    """Print and yield verdicts after answers about random images, and the true change of accuracy on the others.

    Every change is judged in both directions: a classifier that goes back to zero-shot from what labels made is harmful
    as far as labels helped.
    """
    zero_shot = score(bed.images, bed.texts, bed.logit_scale)
    for seed in seeds:
        session, generator = open_bed(bed, seed), np.random.default_rng(seed)
        order, given = generator.permutation(len(bed.labels)), 0
        for budget in budgets:
            session.label(answer(bed, order[given:budget], 0.0, generator))
            given, rest, known = budget, order[budget:], order[:budget]
            adapted = session.engine.probabilities
            for before, after in ((zero_shot, adapted), (adapted, zero_shot)):
                found = check_health(
                    *(bed.images[rest], before[rest], after[rest], bed.texts, bed.logit_scale),
                    labeled=bed.images[known],
                    labels=bed.labels[known],
                )
                right = [np.mean(rows[rest].argmax(axis=1) == bed.labels[rest]) for rows in (before, after)]
                change = 100 * float(right[1] - right[0])
                print(
                    f"{bed.name:24}{budget:4} answers: {found.verdict:8} {100 * found.expected_change:+6.1f}, "
                    f"true change {change:+6.1f}",
                    flush=True,
                )
                yield found.verdict, change


def main() -> int:
    """Print a table, and write it with a figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with beds as .npz files")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0, help="first of the seeds, and of the draws of --harm")
    parser.add_argument("--wrong", type=float, default=0.0, help="measure this share of wrong answers instead")
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS, help="numbers of answers")
    parser.add_argument("--harm", type=int, default=0, metavar="N", help="measure N random corrections instead")
    parser.add_argument("--draws", type=int, default=20, help="draws of --harm")
    parser.add_argument("--verdict", action="store_true", help="measure the verdict after random answers instead")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--only", default="", help="beds whose name starts like this")
    parser.add_argument("--out", type=Path, help="name of the figure and table, without extension")
    options = parser.parse_args()
    beds = [bed for bed in read_all(options.folder) if bed.name.startswith(options.only)]
    if options.harm:
        draws = range(options.first_seed, options.first_seed + options.draws)
        is_safe = [measure_harm(bed, options.harm, draws) for bed in beds]
        return int(not all(is_safe))
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if options.verdict:
        found = [pair for bed in beds for pair in measure_verdict(bed, seeds, options.budgets)]
        clear = [(verdict == "helpful") == (change > 0) for verdict, change in found if verdict != "unclear"]
        print(f"{sum(clear)} of {len(clear)} clear verdicts are right; {len(found) - len(clear)} cannot tell")
        return int(not all(clear))
    if options.wrong:
        is_robust = [measure_wrong(bed, options.wrong, seeds, options.budgets) for bed in beds]
        return int(not all(is_robust))
    rows = []
    for bed in beds:
        for kind in options.kinds:
            for seed in seeds:
                rows += [(bed.name, kind, seed, *point) for point in curve(bed, kind, seed, budgets=options.budgets)]
        for column, title in ((4, "accuracy (%)"), (5, "calibration error (%)")):
            print_table([row for row in rows if row[0] == bed.name], column, title)
    if options.out:
        draw(rows, options.out)
        with options.out.with_suffix(".csv").open("w", newline="") as file:
            csv.writer(file).writerows(
                [("bed", "answers_by", "seed", "answers", "accuracy", "calibration_error"), *rows]
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
