"""What each command of the command line does, with the Python API."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from captune import registry
from captune.errors import InputError

if TYPE_CHECKING:
    from captune.data.images import ImageCollection
    from captune.results.classifier import Classifier
    from captune.results.metrics import Metrics
    from captune.results.run import AdaptationRun
    from captune.scoring import Predictions

FLAGS = ("method", "preset", "backbone", "template", "describer", "domain", "seed", "workers", "root")


class _Screen(Console):
    """Standard output; a reader that went away is left to the command line, which ends quietly."""

    def on_broken_pipe(self) -> None:
        """Let the error through, where rich would end with code 1."""
        raise BrokenPipeError


def run_adapt(options: argparse.Namespace) -> None:
    """Adapt, save the run and say in a few lines what came out."""
    from captune import settings

    values = _values(options)
    from captune.pipeline import adapt

    out = options.out or f"captune-{values.get('method', settings.RunSettings.method)}"
    run = adapt(
        options.images,
        options.classes,
        labels=options.labels,
        out=out,
        overwrite=options.overwrite,
        resume=options.resume,
        **values,
    )
    _print_summary(run, Path(out))


def run_audit(options: argparse.Namespace) -> None:
    """Audit, save what was found and show it."""
    from captune import _audit_screen
    from captune.auditing import audit

    out = options.out or "captune-audit"
    found = audit(
        options.images, options.classes, labels=options.labels, out=out, overwrite=options.overwrite, **_values(options)
    )
    _audit_screen.show(found.facts, Path(out))


def run_demo(options: argparse.Namespace) -> None:
    """Run the demo and show before and after."""
    from captune.demo import run_demo as run_story

    found = run_story(Path(options.out), options.seed)
    shown = Table(f"on {found.after.n_images} new images", "zero-shot", "CAP", box=None, pad_edge=False)
    for label, before, after in (
        ("accuracy", f"{found.before.accuracy:.1%}", f"{found.after.accuracy:.1%}"),
        ("balanced accuracy", f"{found.before.balanced_accuracy:.1%}", f"{found.after.balanced_accuracy:.1%}"),
        ("mean of the lowest five classes", f"{found.before.lowest_five:.1%}", f"{found.after.lowest_five:.1%}"),
        ("classes never predicted", str(len(found.before.never_predicted)), str(len(found.after.never_predicted))),
    ):
        shown.add_row(label, before, after)
    console = _Screen(highlight=False, markup=False)
    console.print(shown)
    console.print(f"Done in {found.seconds:.0f} s. Report: {found.run_folder / 'report.html'}", soft_wrap=True)


def run_predict(options: argparse.Namespace) -> None:
    """Classify images and write a table of paths, labels and probabilities."""
    from captune.files import write_whole
    from captune.results.classifier import top_k
    from captune.results.run import load, table

    if options.top_k < 1:
        raise InputError(f"--top-k is {options.top_k}, expected at least 1.")
    images = _find_any(options.images)
    classifier = load(options.run)
    predictions, set_aside = _score(options, classifier, images)
    best = top_k(predictions.probabilities, options.top_k)
    header = ["path", "label", "confidence"]
    header += [f"{what}_{rank}" for rank in range(2, best.shape[1] + 1) for what in ("label", "confidence")]
    rows = []
    for row, position in enumerate(predictions.image_index.tolist()):
        shown = [(classifier.names[c], f"{predictions.probabilities[row, c]:.6f}") for c in best[row]]
        rows.append([images.name(position), *(word for pair in shown for word in pair)])
    if options.out:
        write_whole(Path(options.out), table(header, rows))
    else:
        sys.stdout.write(table(header, rows))
    for position, reason in set_aside.items():
        sys.stderr.write(f"set aside: {images.name(position)}: {reason}\n")


def run_evaluate(options: argparse.Namespace) -> None:
    """Measure a run on labeled images and print the numbers."""
    import numpy as np

    from captune.data.images import read_labels
    from captune.results.metrics import summarize
    from captune.results.run import load

    images = _find_any(options.images)
    classifier = load(options.run)
    labels = read_labels(options.labels, images, classifier.names)
    if not np.any(labels >= 0):
        raise InputError(f"None of the {len(images)} images in {options.images!r} has a label in {options.labels!r}.")
    predictions, set_aside = _score(options, classifier, images)
    names = classifier.names
    known = labels[predictions.image_index] >= 0
    metrics = summarize(predictions.probabilities[known], labels[predictions.image_index][known], n_classes=len(names))
    if options.json:
        content = {"n_set_aside": len(set_aside), "classes": list(names), **metrics.as_dict()}
        sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    else:
        _print_metrics(metrics, names)


def run_report(options: argparse.Namespace) -> None:
    """Write the report of a run, or a comparison of several, and say where it is."""
    from captune.report.page import write_report

    page = write_report(options.runs, options.out, options.labels)
    _Screen(highlight=False, soft_wrap=True).print(f"Report: {page}", markup=False)


def run_list(options: argparse.Namespace) -> None:
    """Show the plug-ins of a role with their first sentence."""
    shown = Table("name", "what it is", box=None, pad_edge=False)
    for name in registry.names(options.what):
        shown.add_row(name, Text(registry.summary(options.what, name)))
    _Screen(highlight=False).print(shown)


def settings_help(method: str) -> str:
    """Return a method's settings and those of every run, with defaults and sentences."""
    from captune.settings import RunSettings, explain

    own = registry.load("methods", method).Settings
    lines = []
    for title, cls in ((f"Settings of {method}", own), ("Settings of every run", RunSettings)):
        sentences = explain(cls)
        fields = dataclasses.fields(cls)
        lines.append(f"{title}:" if fields else f"{title}: none")
        lines += [f"  {field.name} = {field.default!r}\n      {sentences.get(field.name, '')}" for field in fields]
    return "\n".join(lines) + "\n"


def _values(options: argparse.Namespace) -> dict[str, Any]:
    """Return settings from the file, then the flags, then --set: the later ones win."""
    from captune import settings

    values: dict[str, Any] = settings.read_yaml(options.config) if options.config else {}
    values |= {flag: getattr(options, flag) for flag in FLAGS if getattr(options, flag, None) is not None}
    return values | settings.parse_overrides(options.set)


def _score(
    options: argparse.Namespace, classifier: Classifier, images: ImageCollection
) -> tuple[Predictions, dict[int, str]]:
    from captune import runtime
    from captune.embedding_cache import EmbeddingCache
    from captune.results.prediction import predict_collection

    engine = runtime.start(workers=options.workers)
    return predict_collection(classifier, images, EmbeddingCache(), engine)


def _find_any(source: str) -> ImageCollection:
    from captune.data.images import SUFFIXES, ImageCollection, find_images
    from captune.files import is_file
    from captune.results.prediction import no_usable_image

    path = Path(source)
    if path.suffix.lower() in SUFFIXES and is_file(path):
        return ImageCollection((path,), path.parent)
    images = find_images(path)
    if len(images) == 0:
        raise InputError(no_usable_image(images, {}))
    return images


def _print_summary(run: AdaptationRun, out: Path) -> None:
    import numpy as np

    counts = np.bincount(run.predictions.labels, minlength=len(run.classifier.names))
    order = np.argsort(-counts, kind="stable")
    console = _Screen(highlight=False)
    n_images, method = len(run.predictions.image_index), run.settings["method"]
    console.print(f"{n_images} images, {len(counts)} classes, method {method}.", markup=False)
    most = ", ".join(f"{run.classifier.names[c]} {counts[c]}" for c in order[:3])
    never = int((counts == 0).sum())
    console.print(f"Most often predicted: {most}. Never predicted: {never} classes.", markup=False)
    if run.set_aside:
        console.print(f"{len(run.set_aside)} unreadable images are listed in {out / 'set_aside.csv'}", markup=False)
    console.print(f"Run folder: {out}", markup=False)


def _print_metrics(metrics: Metrics, names: tuple[str, ...]) -> None:
    console = _Screen(highlight=False)
    numbers = Table(show_header=False, box=None, pad_edge=False)
    for label, value in (
        ("images", f"{metrics.n_images}"),
        ("accuracy", f"{metrics.accuracy:.4f}"),
        ("balanced accuracy", f"{metrics.balanced_accuracy:.4f}"),
        ("mean of the lowest five", f"{metrics.lowest_five:.4f}"),
        ("never predicted", f"{len(metrics.never_predicted)} classes"),
        ("predicted imbalance", f"{metrics.predicted_imbalance:.2f}"),
        ("calibration error (ECE)", f"{metrics.ece:.4f}"),
    ):
        numbers.add_row(label, value)
    console.print(numbers)
    classes = Table("class", "accuracy", "predicted", box=None, pad_edge=False)
    for name, accuracy, count in zip(names, metrics.per_class_accuracy, metrics.predicted_counts, strict=True):
        classes.add_row(Text(name), "-" if accuracy is None else f"{accuracy:.4f}", str(count))
    console.print(classes)
