"""Real processes that work together over gloo on the CPU, forked from a server that has imported everything once."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

NAMES = ["cat", "red dog", "striped bird"]
SHORT: dict[str, Any] = {"epochs": 4, "iterations": 3, "grow_every": 2, "k": 2, "train_batch": 5, "strong_views": 2}

PRELOADED = [
    *("captune.pipeline", "captune.methods.cap", "captune.report.page", "captune.report.drawing", "ranks"),
    *("captune.backbones.dual", "torch._dynamo", "transformers.models.auto.modeling_auto"),
    *("transformers.models.bert.modeling_bert", "transformers.models.dinov2.modeling_dinov2"),
]


def launch(work: Callable[..., None], folder: Path, n: int, *arguments: Any) -> list[BaseProcess]:
    """Start `work(folder, *arguments)` in n processes; what each writes to standard error is in folder/RANK.err."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED)
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        server.Process(target=_enter, args=(work, folder, rank, n, port, *arguments), daemon=True) for rank in range(n)
    ]
    for process in started:
        process.start()
    return started


def _enter(work: Callable[..., None], folder: Path, rank: int, n: int, port: int, *arguments: Any) -> None:
    error = os.open(folder / f"{rank}.err", os.O_WRONLY | os.O_CREAT)
    os.dup2(error, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(address, LOCAL_RANK=str(rank), RANK=str(rank), WORLD_SIZE=str(n), OMP_NUM_THREADS="1")
    import torch

    torch.set_num_threads(1)
    try:
        work(folder, *arguments)
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)


def adapt(photos: Path, backbone: str, preset: str, **changes: Any) -> Any:
    """Run a short CAP on tiny models."""
    import captune

    common = {
        "backbone": backbone,
        "method": "cap",
        "preset": preset,
        "workers": 0,
        "quiet": True,
        "keep_better": False,
    }
    return captune.adapt(photos, NAMES, **{**common, **SHORT, **changes})


def facts_of(run: Any) -> dict[str, Any]:
    """Return what must be the same whatever the number of processes, as JSON holds it."""
    labels = (
        []
        if run.evidence is None
        else [[epoch, held.image_index.tolist(), held.labels.tolist()] for epoch, held in run.evidence.history]
    )
    return {
        "epochs": [facts for facts in run.rounds if facts["step"] == "epoch"],
        "history": labels,
        "predicted": run.predictions.labels.tolist(),
        "probabilities": run.predictions.probabilities.tolist(),
        "skipped": {str(position): why for position, why in run.skipped.items()},
        "parameters": {name: tensor.tolist() for name, tensor in run.classifier.tuner.state_dict().items()},
        "sentences": {str(c): list(s) for c, s in run.classifier.vocabulary.descriptions.items()},
    }


def spied(record: dict[str, list[Any]]) -> None:
    """Record which images every step sees, which are encoded, and whom the describer is asked about."""
    from captune.describers.file import FileDescriber
    from captune.training.batch_sources import EmbeddingSource, PixelSource

    for source in (EmbeddingSource, PixelSource):

        def views(self: Any, *arguments: Any, _views: Any = source.views) -> Iterator[Any]:
            for seen in _views(self, *arguments):
                record["steps"].append([part.tolist() for part in seen.request])
                yield seen

        source.views = views  # type: ignore[method-assign]

    def describe(self: Any, request: Any, _describe: Any = FileDescriber.describe) -> list[str]:
        record["asked"].append(request.name)
        return _describe(self, request)

    FileDescriber.describe = describe  # type: ignore[method-assign]


def adapt_and_tell(folder: Path, photos: Path, backbone: str, preset: str, changes: dict[str, Any]) -> None:
    """Adapt as one of two processes and write down what came out and what was seen on the way."""
    from captune.core import distributed
    from captune.embeddings import embed

    record: dict[str, list[Any]] = {"steps": [], "asked": [], "embedded": []}
    spied(record)
    load = embed.load_batches

    def load_batches(images: Any, batches: Any, *rest: Any) -> Iterator[Any]:
        record["embedded"].append([int(position) for batch in batches for position in batch])
        yield from load(images, batches, *rest)

    embed.load_batches = load_batches
    run = adapt(photos, backbone, preset, devices=2, out=folder / "run", cache=str(folder / "cache"), **changes)
    told = {**facts_of(run), **record, "seen_by": distributed.size()}
    (folder / f"{distributed.rank()}.json").write_text(json.dumps(told))
