"""Computing partitions: the model is loaded once, and each partition becomes one Parquet file with a sidecar."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import load_file

from captune.backbones.base import load_backbone
from captune.core import runtime
from captune.core.arrays import Floats
from captune.core.errors import CaptuneError, InputError, RunFolderError
from captune.core.files import digest, is_file
from captune.data.images import ImageCollection, escaped
from captune.data.loading import load_batches
from captune.data.partition_folder import Finished, PartitionFolder, arrow, part_name, read_embeddings, sidecar_name
from captune.data.views import WeakView
from captune.embeddings.embed import embed_classes, encode_pixels
from captune.mixture.open_world import fit_of_new_images
from captune.partitions.job import Outcome, read_plan
from captune.partitions.sources import open_source
from captune.results.classifier import Classifier
from captune.results.image_classifier import load, top_k
from captune.results.run_folder import EVIDENCE

MODEL = "_model.json"
PARQUET = {"compression": "zstd", "use_dictionary": ["status", "reason", "label"], "write_statistics": False}


class _Rows(NamedTuple):
    """What is known about the images of a partition, in order; arrays have rows for the readable ones only."""

    paths: list[str]
    digests: list[str | None]
    reasons: list[str | None]
    embeddings: Floats | None
    probabilities: Floats | None
    fits: Floats | None


class Worker:
    """Computes partitions of the job in a folder, one after the other.

    On the CPU it uses one thread, so that the bits do not depend on the number of workers.
    """

    def __init__(self, out: str) -> None:
        self.folder = PartitionFolder(out)
        self.job, self.partitions = read_plan(self.folder)
        self.engine = runtime.start(
            workers=self.job.decoders, accelerator=self.job.accelerator, precision=self.job.precision, quiet=True
        )
        torch.set_num_threads(1)
        self.classifier = load(self.job.model) if self.job.task == "predict" else None
        self.backbone = load_backbone(self.job.model) if self.classifier is None else None
        if isinstance(self.classifier, Classifier):
            self.classifier.to(self.engine.device)
            self.backbone = None if self.classifier.tuner.edits_images else self.classifier.backbone
        elif self.backbone is not None:
            self.backbone.to(self.engine.device)
        self.fits = self._read_fits()
        self._check_model()

    def run(self, number: int) -> Outcome:
        """Compute one partition, unless it is finished; a problem that a person can fix is returned."""
        try:
            if self.folder.is_done(number):
                return Outcome(number, self.folder.finished(number), was_done=True)
            return Outcome(number, self._compute(number))
        except CaptuneError as error:
            return Outcome(number, problem=str(error))

    def _compute(self, number: int) -> Finished:
        started = time.monotonic()
        source = self.partitions[number]
        if source["kind"] == "partition":
            folder, own = PartitionFolder(source["folder"]), source["number"]
            facts = folder.read_table(own, ["path", "digest", "reason"]).to_pydict()
            vectors = read_embeddings(folder, own)[1]
            rows = _Rows(facts["path"], facts["digest"], facts["reason"], None, *self._score(vectors))
        else:
            with open_source(source, self.folder) as (images, names), self.engine.autocast():
                rows = self._compute_images(images, [escaped(name) for name in names])
        content = self._encode(rows)
        n_readable = sum(reason is None for reason in rows.reasons)
        width = 0 if rows.embeddings is None else rows.embeddings.shape[1]
        seconds = round(time.monotonic() - started, 3)
        finished = Finished(digest(content), len(rows.paths), n_readable, width, seconds)
        self.folder.write(part_name(number), content)
        self.folder.write(sidecar_name(number), json.dumps(finished._asdict()).encode("ascii"))
        return finished

    def _compute_images(self, images: ImageCollection, names: list[str]) -> _Rows:
        """Embed images, or classify them directly if that needs more than embeddings."""
        n_images, size = len(images), self.job.batch_size
        keys, reasons = list[str | None]([None] * n_images), list[str | None]([None] * n_images)
        model: Any = self.backbone or self.classifier
        n_columns = len(model.names) if self.backbone is None else model.embed_dim
        found = [np.empty((0, n_columns), dtype=np.float32)]
        # Batches begin with the partition, so that its bits depend on nothing else.
        batches = [np.arange(first, min(first + size, n_images)) for first in range(0, n_images, size)]
        for batch in load_batches(images, batches, WeakView(model.preprocessing), workers=self.engine.workers):
            for position, key in zip(batch.positions.tolist(), batch.keys, strict=True):
                keys[position] = key.tobytes().hex()
            for position, reason in batch.problems.items():
                reasons[position] = reason
            if len(batch.pixels):
                is_embedded = self.backbone is not None
                found.append(encode_pixels(model, batch.pixels) if is_embedded else model.score_views(batch.pixels))
        rows = np.concatenate(found)
        if self.backbone is None:
            return _Rows(names, keys, reasons, None, rows, None)
        return _Rows(names, keys, reasons, rows, *((None, None) if self.classifier is None else self._score(rows)))

    def _score(self, vectors: Floats) -> tuple[Floats, Floats | None]:
        """Return probabilities `(images, classes)`, and how well images fit the names if the run can tell."""
        if self.classifier is None:
            raise InputError(f"{self.job.input!r} has embeddings already.")
        if not len(vectors):
            return np.empty((0, len(self.classifier.names)), dtype=np.float32), None if self.fits is None else vectors
        return self.classifier.score_embeddings(vectors), None if self.fits is None else self.fits(vectors)

    def _read_fits(self) -> Callable[[Floats], Floats] | None:
        """Return how fit is measured, among the images whose embeddings the run has kept; None if it has none."""
        file = Path(self.job.model) / EVIDENCE
        if self.backbone is None or not isinstance(self.classifier, Classifier) or not is_file(file):
            return None
        try:
            kept = load_file(file).get("vectors")
        except Exception as error:  # safetensors raises errors of many classes
            raise RunFolderError(f"{str(file)!r} is damaged: {error}. Copy the run again, or adapt again.") from error
        if kept is None:
            return None
        texts = embed_classes(self.backbone, self.classifier.vocabulary)
        return lambda vectors: fit_of_new_images(vectors, texts, kept)

    def _encode(self, rows: _Rows) -> bytes:
        """Return a partition as Parquet; equal content has equal bytes."""
        arrays, is_readable = arrow(), np.asarray([reason is None for reason in rows.reasons], dtype=np.bool_)

        def column(kind: Any, of_readable: Iterable[Any]) -> Any:  # noqa: ANN401
            values = iter(of_readable)
            return arrays.array([next(values) if good else None for good in is_readable.tolist()], kind)

        text, number = arrays.string(), arrays.float32()
        columns = {
            "path": arrays.array(rows.paths, text),
            "digest": arrays.array(rows.digests, text),
            "status": arrays.array(np.where(is_readable, "ok", "skipped").tolist(), text),
            "reason": arrays.array(rows.reasons, text),
        }
        if rows.embeddings is not None:
            every = np.zeros((len(is_readable), rows.embeddings.shape[1]), dtype=np.float32)
            every[is_readable] = rows.embeddings
            columns["embedding"] = arrays.FixedSizeListArray.from_arrays(
                arrays.array(every.ravel()), every.shape[1], mask=arrays.array(~is_readable)
            )
        if rows.probabilities is not None and self.classifier is not None:
            names, best = self.classifier.names, top_k(rows.probabilities, self.job.top_k)
            values = np.take_along_axis(rows.probabilities, best, axis=1)
            columns["label"] = column(text, (names[c] for c in best[:, 0]))
            columns["confidence"] = column(number, values[:, 0].tolist())
            if rows.fits is not None:
                columns["fits"] = column(number, rows.fits.tolist())
            if self.job.top_k > 1:
                columns["labels"] = column(arrays.list_(text), ([names[c] for c in row] for row in best))
                columns["confidences"] = column(arrays.list_(number), values.tolist())
        sink = arrays.BufferOutputStream()
        arrow("parquet").write_table(arrays.table(columns), sink, **PARQUET)
        return bytes(sink.getvalue())

    def _check_model(self) -> None:
        """Check that all workers have the same weights: the first one notes their fingerprint."""
        own = "" if self.backbone is None else self.backbone.fingerprint()
        if isinstance(self.classifier, Classifier):
            own = digest(self.classifier.class_vectors.cpu().numpy().tobytes()) + self.classifier.backbone.fingerprint()
        known = self.folder.read_json(MODEL)
        if known is None:
            self.folder.write(MODEL, json.dumps({"fingerprint": own}).encode("ascii"))
        elif known.get("fingerprint") != own:
            changed = f"The weights of {self.job.model!r} have changed since {self.folder.address!r} was begun"
            raise RunFolderError(f"{changed}. Use the same model, or another --out.")
        if self.partitions[0]["kind"] == "partition" and self.backbone is not None and self.backbone.has_image_encoder:
            encoder = PartitionFolder(self.job.input).read_json(MODEL) or {}
            if not str(encoder.get("fingerprint")).endswith(self.backbone.fingerprint()):
                raise InputError(f"The embeddings in {self.job.input!r} are of another model than {self.job.model!r}.")
