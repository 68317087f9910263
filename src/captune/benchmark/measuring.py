"""Measures one cell in a separate process, so that its peak memory is known and a crash costs only one cell."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from captune.benchmark.cells import FORMAT, VERSION, Cell, Results
from captune.benchmark.datasets.base import LoadedDataset
from captune.benchmark.splits import Split, make_split
from captune.concepts.groups import groups_of_predictions
from captune.core import registry, runtime
from captune.core.arrays import Floats, Ints
from captune.core.errors import CaptuneError, RunFolderError
from captune.core.files import write_json
from captune.core.launching import launch
from captune.core.locking import hold
from captune.core.settings import WHERE
from captune.embeddings.cache import EmbeddingCache, default_folder
from captune.pipeline import carry_out
from captune.plan import plan_for_task
from captune.results.classifier import predict_collection
from captune.results.metrics import Metrics, expected_calibration_error, summarize
from captune.results.run import CARD, CHECKPOINTS, AdaptationRun
from captune.training.checkpoint import drop_checkpoints, holds_checkpoints

INTERRUPTED = 130
SECONDS_TO_WAIT = 120.0
"""How long to wait for the process of a killed suite to finish its step."""
LEAKY_REMARK = "The pool contains the test images, as in the published tables: these numbers do not generalize."


@dataclass(frozen=True)
class Job:
    """A cell to measure (as plain values), and its data, settings and output paths on this machine."""

    cell: Mapping[str, Any]
    root: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    leakage: int
    commit: str | None
    result: str
    run_folder: str
    keep_run: bool = False


def measure(job: Job) -> dict[str, Any]:
    """Adapt, evaluate on the test images, write the cell's file and return its content.

    A cell that another process finishes in the meantime is not measured again.
    """
    folder = Path(job.run_folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock_of(folder)
    with hold(lock, f"Another process is measuring this cell into {job.result!r}", SECONDS_TO_WAIT):
        content = _finished_by_another(job)
        if content is None:
            content = _measure_or_restart(job, folder)
            write_json(Path(job.result), content)
        _clear(folder, job.keep_run)
        lock.unlink(missing_ok=True)
    return content


def _finished_by_another(job: Job) -> dict[str, Any] | None:
    cell, results = Cell.from_dict(job.cell), Results(Path(job.result).parents[1])
    return results.read(cell) if results.state(cell, job.inputs) == "finished" else None


def clear_killed(folder: Path, keep_run: bool) -> None:
    """Clean up after a process that was killed between writing its cell's file and removing its run folder."""
    lock = _lock_of(folder)
    if lock.exists():
        with suppress(RunFolderError), hold(lock, ""):  # else it is still running and cleans up itself
            _clear(folder, keep_run)
            lock.unlink(missing_ok=True)


def _lock_of(folder: Path) -> Path:
    """Return the lock file of a run folder, which exists until the cell is measured and cleaned up."""
    return folder.with_name(f".{folder.name}.lock")


def _clear(folder: Path, keep_run: bool) -> None:
    if keep_run:
        drop_checkpoints(folder / CHECKPOINTS)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _measure_or_restart(job: Job, folder: Path) -> dict[str, Any]:
    """Measure in as many processes as the settings ask for, resuming an interrupted run of the same cell."""
    devices = int(job.settings.get("devices", 1))
    resume = holds_checkpoints(folder / CHECKPOINTS)
    if not resume:  # left by a process that was killed before its first checkpoint
        shutil.rmtree(folder, ignore_errors=True)
    (folder / CARD).unlink(missing_ok=True)  # a run that was not evaluated resumes from its last checkpoint
    try:
        return launch(devices, 1, _measure, job, resume)
    except RunFolderError as error:
        if not resume:
            raise
        shutil.rmtree(folder)  # made by other versions or weights
        sys.stderr.write(f"Starting over: {error}\n")
        return launch(devices, 1, _measure, job, False)


def _measure(job: Job, resume: bool) -> dict[str, Any]:
    started = time.monotonic()
    cell = Cell.from_dict(job.cell)
    data: LoadedDataset = registry.load("datasets", cell.dataset)().load(Path(job.root))
    split = make_split(data, cell.setting, cell.split_seed, cell.split, str(cell.settings["template"]))
    plan = plan_for_task(split.task, {"keep_better": False, **job.settings, "seed": cell.seed})
    run = carry_out(plan, out=job.run_folder, resume=resume, report=job.keep_run, keep_checkpoints=True)
    adapted = time.monotonic()
    metrics, groups, n_unreadable = _evaluate(run, split, cell)
    return {
        "format": FORMAT,
        "version": VERSION,
        "cell": cell.as_dict(),
        "inputs": dict(job.inputs),
        "counts": {
            "unlabeled": len(split.task.unlabeled),
            "labeled": len(split.task.labeled),
            "test": len(split.test),
            "classes": len(data.names),
            "skipped": len(run.skipped),
            "test_skipped": n_unreadable,
        },
        "classes": list(data.names),
        "groups": groups,
        "seen_classes": split.truth.seen_classes.tolist(),
        "score": metrics.harmonic_mean if split.truth.is_transductive else metrics.accuracy,
        "metrics": metrics.as_dict(),
        "leakage": job.leakage,
        "remarks": [*([LEAKY_REMARK] if cell.split.leaky else ()), *data.remarks],
        **_findings(run, split),
        "seconds": {
            "adapt": run.environment["seconds"],
            "embedding": run.environment["seconds_of_steps"].get("Embedding images", 0.0),
            "training": run.environment["seconds_of_steps"].get("Training", 0.0),
            "test": round(time.monotonic() - adapted, 3),
            "all": round(time.monotonic() - started, 3),
            "processor": round(sum(os.times()[:4]), 3),
        },
        "peak_memory_mb": _peak_memory(),
        "environment": {**run.environment, "commit": job.commit},
    }


def _evaluate(run: AdaptationRun, split: Split, cell: Cell) -> tuple[Metrics, list[dict[str, Any]], int]:
    """Return metrics and confused groups on the test images, over all classes, and the number of unreadable ones."""
    workers = int(run.settings["workers"])
    where = {name: run.settings[name] for name in WHERE}
    engine = runtime.start(seed=cell.seed, workers=None if workers < 0 else workers, **where)
    cache = EmbeddingCache(Path(str(run.settings["cache"]) or default_folder()))
    batch_size = int(run.settings["batch_size"])
    with engine.together():
        found, skipped = predict_collection(run.classifier, split.test, cache, engine, batch_size)
    truth = split.truth
    seen = truth.seen_classes if truth.is_transductive else None
    labels = truth.test_labels[found.image_index]
    metrics = summarize(found.probabilities, labels, len(run.classifier.names), seen)
    return metrics, _group_numbers(run, found.probabilities, labels), len(skipped)


def _group_numbers(run: AdaptationRun, probabilities: Floats, labels: Ints) -> list[dict[str, Any]]:
    """Return the classes that zero-shot confuses in the pool, and calibration and accuracy of their test images."""
    arrays = run.evidence.arrays if run.evidence else {}
    if "before" not in arrays:
        return []
    predicted = np.asarray(arrays["before_labels"][arrays["embedded_rows"]], dtype=np.int64)
    vectors = np.asarray(arrays["vectors"], dtype=np.float32)
    found = []
    for group in groups_of_predictions(vectors, predicted, arrays["class_vectors"], arrays["before"]):
        inside = np.isin(labels, group.classes)
        if inside.any():
            own, truth = probabilities[inside], labels[inside]
            numbers = {
                "images": len(truth),
                "accuracy": float(np.mean(own.argmax(axis=1) == truth)),
                "ece": expected_calibration_error(own, truth),
            }
            found.append({"classes": list(group.classes), **numbers})
    return found


def _findings(run: AdaptationRun, split: Split) -> dict[str, Any]:
    """Return misleading names, health, and the precision of the pseudo-labels by epoch."""
    mismatched = next((r["mismatched"] for r in run.rounds if r.get("step") == "concept_alignment"), None)
    evidence = run.evidence
    if evidence is None:
        return {"mismatched": mismatched, "health": None, "pseudo_labels": []}
    label_of = dict(zip(split.task.unlabeled.paths, split.truth.unlabeled_labels.tolist(), strict=True))
    truth = np.asarray([label_of[path] for path in evidence.labeled.paths], dtype=np.int64)
    steps = [
        {"epoch": epoch, "images": len(labels), "precision": labels.precision(truth) if len(labels) else None}
        for epoch, labels in evidence.history
    ]
    health = evidence.health.as_dict() if evidence.health is not None else None
    return {"mismatched": mismatched, "health": health, "pseudo_labels": steps}


def _peak_memory() -> dict[str, float]:
    """Return the highest memory of this process and of one of its workers, and on the GPU, in megabytes.

    Linux hands the parent's peak down in getrusage, so the process's own high-water mark is read where it is kept.
    """
    own, worker = _peak_usage()
    status = Path("/proc/self/status")
    if status.is_file():
        lines = dict(line.split(":", 1) for line in status.read_text(encoding="ascii").splitlines() if ":" in line)
        own = int(lines["VmHWM"].split()[0]) * 2**10 if "VmHWM" in lines else own
    import torch

    on_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return {name: round(b / 2**20, 1) for name, b in (("process", own), ("largest_worker", worker), ("gpu", on_gpu))}


def _peak_usage() -> tuple[int, int]:
    """Return the peak memory of this process and of its largest child in bytes; zeros on Windows, which has neither."""
    try:
        import resource
    except ImportError:
        return 0, 0
    unit = 1 if sys.platform == "darwin" else 2**10  # getrusage counts bytes there, kilobytes elsewhere
    own, child = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_maxrss * unit, child.ru_maxrss * unit


def _end_with_parent() -> None:
    """Interrupt this process when standard input closes, because the suite that started it has ended.

    Training treats SIGTERM like Ctrl-C; SIGINT would be ignored if a shell started the suite in the background.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """Measure the cell whose job is the first line of standard input."""
    job = Job(**json.loads(sys.stdin.readline()))
    _end_with_parent()
    try:
        measure(job)
    except CaptuneError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
