"""Measuring one cell in a process of its own, so that its peak memory is its own and a crash costs one cell only."""

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from captune.benchmark.cells import Cell
from captune.benchmark.datasets.base import LoadedDataset
from captune.benchmark.results import FORMAT, VERSION, Results
from captune.benchmark.splits import Split, make_split
from captune.core import distributed, registry, runtime
from captune.core.errors import CaptuneError, RunFolderError, ToldElsewhereError
from captune.core.files import write_json
from captune.core.locking import hold
from captune.core.settings import WHERE
from captune.embeddings.cache import EmbeddingCache, default_folder
from captune.pipeline import carry_out
from captune.plan import plan_for_task
from captune.results.metrics import Metrics, summarize
from captune.results.predict import predict_collection
from captune.results.run import CARD, CHECKPOINTS, AdaptationRun
from captune.training.checkpoint import drop_checkpoints, holds_checkpoints

INTERRUPTED = 130
ORDER = "CAPTUNE_CELL"
"""Where the processes that a cell's first process starts find its order."""
SECONDS_TO_WAIT = 120.0
"""How long to wait for a cell's process that a killed suite left behind, and that ends its step."""


@dataclass(frozen=True)
class Order:
    """What a process is asked to measure, and where things are on this machine.

    Attributes:
        cell: The cell's facts.
        root: Folder of the datasets.
        settings: The cell's settings with all paths filled in.
        inputs: Fingerprints of data, descriptions and weights.
        leakage: Test images whose content is also in the pool.
        commit: The commit of captune, if it runs from a checkout.
        result: The file to write.
        run_folder: Where the run keeps its checkpoints.
        keep_run: Whether the run folder stays, with its report.
    """

    cell: Mapping[str, Any]
    root: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    leakage: int
    commit: str | None
    result: str
    run_folder: str
    keep_run: bool = False

    def dumps(self) -> str:
        """Return the order as JSON."""
        return json.dumps(asdict(self))


def split_of(cell: Cell, data: LoadedDataset) -> Split:
    """Return what the method of a cell may see, and the truth apart."""
    return make_split(
        data,
        cell.setting,
        cell.split_seed,
        cell.split.n_labels,
        cell.split.seen_share,
        template=str(cell.settings["template"]),
        unlabeled_share=cell.split.unlabeled_share,
        imbalance=cell.split.imbalance,
    )


def measure(order: Order) -> dict[str, Any]:
    """Adapt, measure on the test images, write the cell's file and return what it says.

    What another process has measured while this one waited for it is not measured again. Where several processes
    measure a cell together, the first of them holds it for all.
    """
    if not _is_first():
        return _measure(order)
    folder = Path(order.run_folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock_of(folder)
    with hold(lock, f"Another captune is measuring this cell into {order.result!r}", SECONDS_TO_WAIT):
        content = _finished_meanwhile(order) or _measure(order)
        _clear(folder, order.keep_run)
        lock.unlink(missing_ok=True)
    return content


def _finished_meanwhile(order: Order) -> dict[str, Any] | None:
    cell, results = Cell.from_facts(order.cell), Results(Path(order.result).parents[1])
    return results.read(cell) if results.state(cell, order.inputs) == "finished" else None


def clear_killed(folder: Path, keep_run: bool) -> None:
    """Remove what the process of a finished cell could not, because it was killed after it wrote the cell's file."""
    lock = _lock_of(folder)
    if lock.exists():
        with suppress(RunFolderError), hold(lock, ""):  # else it is alive and does it itself
            _clear(folder, keep_run)
            lock.unlink(missing_ok=True)


def _lock_of(folder: Path) -> Path:
    """Return the lock of a run folder: there from the first moment of measuring until everything is done."""
    return folder.with_name(f".{folder.name}.lock")


def _clear(folder: Path, keep_run: bool) -> None:
    if keep_run:
        drop_checkpoints(folder / CHECKPOINTS)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(order: Order) -> dict[str, Any]:
    started = time.monotonic()
    cell = Cell.from_facts(order.cell)
    data: LoadedDataset = registry.load("datasets", cell.dataset)().load(Path(order.root))
    split = split_of(cell, data)
    run = _adapt(order, cell, split)
    adapted = time.monotonic()
    metrics, n_unreadable = _test(run, split, cell)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "cell": cell.facts(),
        "inputs": dict(order.inputs),
        "counts": {
            "unlabeled": len(split.task.unlabeled),
            "labeled": len(split.task.labeled),
            "test": len(split.test),
            "classes": len(data.names),
            "skipped": len(run.skipped),
            "test_skipped": n_unreadable,
        },
        "seen_classes": split.truth.seen_classes.tolist(),
        "score": metrics.harmonic_mean if split.truth.is_transductive else metrics.accuracy,
        "metrics": metrics.as_dict(),
        "leakage": order.leakage,
        "remarks": list(data.remarks),
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
        "environment": {**run.environment, "commit": order.commit},
    }
    if _is_first():
        write_json(Path(order.result), content)
    return content


def _is_first() -> bool:
    """Return whether this process is the only or the first one; the others are started by it, under a number."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _adapt(order: Order, cell: Cell, split: Split) -> AdaptationRun:
    """Run the method, going on where an interrupted run of the same cell stopped."""
    plan = plan_for_task(split.task, {**order.settings, "seed": cell.seed})
    folder = Path(order.run_folder)
    resume = holds_checkpoints(folder / CHECKPOINTS)
    if _is_first():
        if not resume:  # whatever a kill before the first checkpoint left behind
            shutil.rmtree(folder, ignore_errors=True)
        (folder / CARD).unlink(missing_ok=True)  # a run that was not measured goes on from its last checkpoint
    try:
        return carry_out(plan, out=folder, resume=resume, report=order.keep_run, keep_checkpoints=True)
    except RunFolderError as error:
        if not resume:
            raise
        shutil.rmtree(folder)  # of other versions or weights than now
        if distributed.size() > 1:  # the others have ended
            raise RunFolderError(f"{error} The interrupted run is removed: run the same command again.") from error
        sys.stderr.write(f"Starting anew: {error}\n")
        return carry_out(plan, out=folder, report=order.keep_run, keep_checkpoints=True)


def _test(run: AdaptationRun, split: Split, cell: Cell) -> tuple[Metrics, int]:
    """Return the metrics on the readable test images, predicted over all classes, and how many were not readable."""
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
    return summarize(found.probabilities, labels, len(run.classifier.names), seen), len(skipped)


def _findings(run: AdaptationRun, split: Split) -> dict[str, Any]:
    """Return what the run found, and how right its pseudo-labels were at every step: the truth comes in only here."""
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
    """Interrupt this process when standard input closes: the suite that started it is gone.

    By SIGTERM, which a training takes like Ctrl-C: where a shell starts a suite in the background, SIGINT is ignored.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """Measure the cell whose order comes as one line on standard input."""
    if _is_first():
        os.environ[ORDER] = sys.stdin.readline()
        _end_with_parent()
    order = Order(**json.loads(os.environ[ORDER]))
    try:
        measure(order)
    except ToldElsewhereError:
        return 2
    except CaptuneError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
