"""Measures one cell: a run of the pipeline, evaluated with the labels that the method never saw."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from captune.backbones.base import Backbone, load_backbone
from captune.benchmark.cells import FORMAT, VERSION, Cell, Environment, Results
from captune.benchmark.datasets.base import LoadedDataset
from captune.benchmark.splits import Split, make_split, shared_images
from captune.concepts.confusion import groups_of_predictions
from captune.core import distributed, runtime
from captune.core.errors import RunFolderError
from captune.core.files import add_digest, locked, write_json
from captune.data.precomputed import Embeddings
from captune.embeddings.cache import EmbeddingCache
from captune.embeddings.embed import embed_images
from captune.pipeline import carry_out
from captune.plan import plan_for_task
from captune.report.measures import group_numbers
from captune.results.classifier import Classifier
from captune.results.metrics import summarize
from captune.results.run import Run
from captune.results.run_folder import CARD, CHECKPOINTS
from captune.training.checkpoint import drop_checkpoints, holds_checkpoints

SECONDS_TO_WAIT = 120.0
"""How long to wait for the process of a killed suite to finish its step."""
LEAKY_REMARK = "The pool contains the test images, as in the published tables: these numbers do not generalize."


def measure(
    cell: Cell, results: Results, environment: Environment, commit: str | None = None, keep_run: bool = False
) -> dict[str, Any]:
    """Adapt, evaluate on the test images, write the cell's file and return its content.

    A cell that another process finishes in the meantime is not measured again.
    """
    folder, lock = results.run_folder(cell), results.lock_file(cell)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock, f"Another process is measuring {folder.name}", SECONDS_TO_WAIT):
        inputs = environment.inputs(cell)
        content = results.read(cell) if results.state(cell, inputs) == "finished" else None
        if content is None:
            found = _measure_or_restart(cell, environment, folder, keep_run)
            found["environment"]["commit"] = commit
            card = {"format": FORMAT, "version": VERSION, "cell": dataclasses.asdict(cell), "inputs": inputs}
            content = add_digest({**card, **found})
            write_json(results.cell_file(cell), content)
        if keep_run:
            drop_checkpoints(folder / CHECKPOINTS)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)
    return content


def _measure_or_restart(cell: Cell, environment: Environment, folder: Path, report: bool) -> dict[str, Any]:
    """Measure, resuming an interrupted run of the same cell."""
    if holds_checkpoints(folder / CHECKPOINTS):
        (folder / CARD).unlink(missing_ok=True)  # a run that was not evaluated resumes from its last checkpoint
        try:
            return _measure(cell, environment, folder, report, resume=True)
        except RunFolderError as error:  # made by other versions or weights
            sys.stderr.write(f"Starting over: {error}\n")
    shutil.rmtree(folder, ignore_errors=True)
    return _measure(cell, environment, folder, report, resume=False)


def _measure(cell: Cell, environment: Environment, folder: Path, report: bool, resume: bool) -> dict[str, Any]:
    started, settings = time.monotonic(), environment.settings_of(cell)
    data = environment.load(cell.dataset)
    backbone = load_backbone(str(settings["backbone"])) if data.texts is None else None
    if cell.split.embedded and backbone is not None:
        data = _embed(data, backbone, settings)
    split = make_split(data, cell.setting, cell.split_seed, cell.split, str(cell.settings["template"]))
    pool = [images for images in (split.task.unlabeled, split.task.labeled.images) if len(images)]
    leaked = {number for images in pool for _, number in shared_images(images, split.test)}
    plan = dataclasses.replace(plan_for_task(split.task, settings, data.texts), backbone=backbone)
    run = carry_out(plan, out=folder, resume=resume, report=report, keep_checkpoints=True)
    ended, steps = time.monotonic(), run.environment["seconds_of_steps"]
    kept = evaluate(run, run.classifier, split)
    adapted = evaluate(run, run.discarded, split) if run.discarded else kept
    return {
        "counts": {
            "unlabeled": len(split.task.unlabeled),
            "labeled": len(split.task.labeled),
            "test": len(split.test),
            "classes": len(data.names),
            "skipped": len(run.skipped),
            "test_skipped": len(split.test) - adapted["metrics"]["n_images"],
        },
        "classes": list(data.names),
        "seen_classes": split.truth.seen_classes.tolist(),
        "score": adapted["metrics"]["harmonic_mean" if split.truth.is_transductive else "accuracy"],
        **adapted,
        "kept": {"classifier": run.kept, "metrics": kept["metrics"], "pool": kept["pool"]},
        "leakage": len(leaked),
        "remarks": [*([LEAKY_REMARK] if cell.split.leaky else ()), *data.remarks],
        **_findings(run, split),
        "seconds": {
            "adapt": run.environment["seconds"],
            "embedding": steps.get("Embedding images", 0.0),
            "training": steps.get("Training", 0.0),
            "test": round(time.monotonic() - ended, 3),
            "all": round(time.monotonic() - started, 3),
            "processor": round(sum(os.times()[:4]), 3),
        },
        "peak_memory_mb": _peak_memory(),
        "environment": dict(run.environment),
    }


def _embed(data: LoadedDataset, backbone: Backbone, settings: Mapping[str, Any]) -> LoadedDataset:
    """Return the dataset with embeddings instead of its readable images."""
    engine, cache = runtime.start(settings), EmbeddingCache.of(settings.get("cache", ""))
    parts: list[Any] = []
    with distributed.together():
        backbone.to(engine.device)
        for images, labels in ((data.pool, data.pool_labels), (data.test, data.test_labels)):
            found = embed_images(backbone, images, cache, engine, int(settings["batch_size"]))
            parts += [Embeddings(found.vectors, map(images.name, found.image_index)), labels[found.image_index]]
    return dataclasses.replace(data, pool=parts[0], pool_labels=parts[1], test=parts[2], test_labels=parts[3])


def evaluate(run: Run, classifier: Classifier, split: Split) -> dict[str, Any]:
    """Return metrics of a classifier on the unlabeled images (pool) and the test images, predicted over all classes.

    Groups are classes that zero-shot confuses in the pool, with calibration and accuracy of their test images.
    """
    engine, cache = runtime.start(run.settings), EmbeddingCache.of(run.settings.get("cache", ""))
    size, truth, n_classes, arrays = int(run.settings["batch_size"]), split.truth, len(classifier.names), run.arrays
    with distributed.together():
        pool = classifier.compute(split.task.unlabeled, cache, engine, size)
        test = classifier.compute(split.test, cache, engine, size)
    labels, groups = truth.test_labels[test.image_index], list[dict[str, Any]]()
    if "before" in arrays:
        predicted = np.asarray(arrays["before_labels"][arrays["embedded_rows"]], dtype=np.int64)
        vectors = np.asarray(arrays["vectors"], dtype=np.float32)
        for group in groups_of_predictions(vectors, predicted, arrays["class_vectors"], arrays["before"]):
            numbers = {"classes": list(group.classes), **group_numbers(group, test.probabilities, labels)}
            groups += [numbers] if numbers["images"] else []
    seen = truth.seen_classes if truth.is_transductive else None
    return {
        "metrics": summarize(test.probabilities, labels, n_classes, seen).as_dict(),
        "pool": summarize(pool.probabilities, truth.unlabeled_labels[pool.image_index], n_classes).as_dict(),
        "groups": groups,
    }


def _findings(run: Run, split: Split) -> dict[str, Any]:
    """Return misleading names, health, and the precision of the pseudo-labels by epoch."""
    mismatched = next((r["mismatched"] for r in run.rounds if r.get("step") == "concept_alignment"), None)
    label_of = dict(zip(split.task.unlabeled.paths, split.truth.unlabeled_labels.tolist(), strict=True))
    truth = np.asarray([label_of.get(path, -1) for path in run.readable.paths], dtype=np.int64)
    steps = [
        {"epoch": epoch, "images": len(labels), "precision": labels.precision(truth) if len(labels) else None}
        for epoch, labels in run.history
    ]
    return {"mismatched": mismatched, "health": run.health, "pseudo_labels": steps}


def _peak_memory() -> dict[str, float]:
    """Return the highest memory of this process, where Linux tells it, and on the GPU, in megabytes."""
    import torch

    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii").splitlines() if status.is_file() else []
    own = next((int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM:")), 0.0)
    on_gpu = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0
    return {"process": round(own, 1), "gpu": round(on_gpu, 1)}
