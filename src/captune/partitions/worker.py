"""Computing partitions: the model is loaded once, and each partition becomes one Parquet file with a sidecar."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from captune.backbones.base import Backbone, load_backbone
from captune.core import runtime
from captune.core.arrays import Floats
from captune.core.errors import CaptuneError, InputError, RunFolderError
from captune.core.files import digest
from captune.data.images import ImageCollection, escaped
from captune.data.loading import load_batches
from captune.data.partition_folder import Finished, PartitionFolder, arrow, part_name, read_embeddings, sidecar_name
from captune.data.views import WeakView
from captune.embeddings.embed import encode_pixels
from captune.partitions.job import Outcome, read_plan
from captune.partitions.sources import open_source
from captune.results.classifier import Classifier
from captune.results.image_classifier import ImageClassifier, load, top_k

MODEL = "_model.json"
PARQUET = {"compression": "zstd", "use_dictionary": ["status", "reason", "label"], "write_statistics": False}


class _Rows(NamedTuple):
    """What is known about the images of a partition, in order; arrays have rows for the readable ones only."""

    paths: list[str]
    digests: list[str | None]
    reasons: list[str | None]
    embeddings: Floats | None
    probabilities: Floats | None

    @property
    def is_readable(self) -> NDArray[np.bool_]:
        return np.asarray([reason is None for reason in self.reasons], dtype=np.bool_)


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
        self.classifier: ImageClassifier | None = None
        self.backbone: Backbone | None = None
        if self.job.task == "predict":
            self.classifier = load(self.job.model)
        else:
            self.backbone = load_backbone(self.job.model)
        if isinstance(self.classifier, Classifier):
            self.classifier.to(self.engine.device)
            self.backbone = None if self.classifier.tuner.edits_images else self.classifier.backbone
        elif self.backbone is not None:
            self.backbone.to(self.engine.device)
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
            rows = self._score_partition(PartitionFolder(source["folder"]), source["number"])
        else:
            with open_source(source, self.folder) as (images, names), self.engine.autocast():
                rows = self._compute_images(images, [escaped(name) for name in names])
        content = self._encode(rows)
        width = 0 if rows.embeddings is None else rows.embeddings.shape[1]
        seconds = round(time.monotonic() - started, 3)
        finished = Finished(digest(content), len(rows.paths), int(rows.is_readable.sum()), width, seconds)
        self.folder.write(part_name(number), content)
        self.folder.write(sidecar_name(number), json.dumps(finished._asdict()).encode("ascii"))
        return finished

    def _compute_images(self, images: ImageCollection, names: list[str]) -> _Rows:
        n_images, size = len(images), self.job.batch_size
        keys, reasons = list[str | None]([None] * n_images), list[str | None]([None] * n_images)
        embeddings, probabilities = list[Floats](), list[Floats]()
        # Batches begin with the partition, so that its bits depend on nothing else.
        batches = [np.arange(first, min(first + size, n_images)) for first in range(0, n_images, size)]
        model: Any = self.backbone or self.classifier
        for batch in load_batches(images, batches, WeakView(model.preprocessing), workers=self.engine.workers):
            for position, key in zip(batch.positions.tolist(), batch.keys, strict=True):
                keys[position] = key.tobytes().hex()
            for position, reason in batch.problems.items():
                reasons[position] = reason
            if not len(batch.pixels):
                continue
            if self.backbone is not None:
                embeddings.append(encode_pixels(self.backbone, batch.pixels))
            if self.classifier is not None and self.backbone is not None:
                probabilities.append(self.classifier.score_embeddings(embeddings[-1]))
            elif self.classifier is not None:
                probabilities.append(self.classifier.score_views(batch.pixels))
        return _Rows(names, keys, reasons, self._joined(embeddings, "embed_dim"), self._joined(probabilities, "names"))

    def _joined(self, parts: list[Floats], width: str) -> Floats | None:
        """Return the rows of all batches, `(readable, width)`; None if they are not computed by this job."""
        if width == "embed_dim":
            n_columns = None if self.backbone is None else self.backbone.embed_dim
        else:
            n_columns = None if self.classifier is None else len(self.classifier.names)
        if n_columns is None:
            return None
        return np.concatenate([np.empty((0, n_columns), dtype=np.float32), *parts])

    def _score_partition(self, folder: PartitionFolder, number: int) -> _Rows:
        """Predict from the embeddings of another job's partition."""
        if self.classifier is None:
            raise InputError(f"{folder.address!r} has embeddings already.")
        facts = folder.read_table(number, ["path", "digest", "status", "reason"]).to_pydict()
        _, vectors = read_embeddings(folder, number)
        probabilities = self._joined([self.classifier.score_embeddings(vectors)] if len(vectors) else [], "names")
        return _Rows(facts["path"], facts["digest"], facts["reason"], None, probabilities)

    def _encode(self, rows: _Rows) -> bytes:
        """Return a partition as Parquet; equal content has equal bytes."""
        arrays, is_readable = arrow(), rows.is_readable
        columns: dict[str, Any] = {
            "path": arrays.array(rows.paths, arrays.string()),
            "digest": arrays.array(rows.digests, arrays.string()),
            "status": arrays.array(np.where(is_readable, "ok", "skipped").tolist(), arrays.string()),
            "reason": arrays.array(rows.reasons, arrays.string()),
        }
        if rows.embeddings is not None:
            width = rows.embeddings.shape[1]
            every = np.zeros((len(is_readable), width), dtype=np.float32)
            every[is_readable] = rows.embeddings
            columns["embedding"] = arrays.FixedSizeListArray.from_arrays(
                arrays.array(every.ravel()), width, mask=arrays.array(~is_readable)
            )
        if rows.probabilities is not None:
            columns |= self._predictions(rows.probabilities, is_readable)
        sink = arrays.BufferOutputStream()
        arrow("parquet").write_table(arrays.table(columns), sink, **PARQUET)
        return bytes(sink.getvalue())

    def _predictions(self, probabilities: Floats, is_readable: NDArray[np.bool_]) -> dict[str, Any]:
        """Return the columns label and confidence, and lists of both if several classes are asked for."""
        assert self.classifier is not None
        arrays, names = arrow(), self.classifier.names
        best = top_k(probabilities, self.job.top_k)
        values = np.take_along_axis(probabilities, best, axis=1)
        rows = np.full(len(is_readable), -1)
        rows[is_readable] = np.arange(len(best))

        def column(of_row: Any, kind: Any) -> Any:  # noqa: ANN401
            return arrays.array([None if row < 0 else of_row(row) for row in rows.tolist()], kind)

        found = {
            "label": column(lambda row: names[best[row, 0]], arrays.string()),
            "confidence": column(lambda row: float(values[row, 0]), arrays.float32()),
        }
        if self.job.top_k > 1:
            found["labels"] = column(lambda row: [names[c] for c in best[row]], arrays.list_(arrays.string()))
            found["confidences"] = column(lambda row: values[row].tolist(), arrays.list_(arrays.float32()))
        return found

    def _check_model(self) -> None:
        """Check that all workers have the same weights: the first one notes their fingerprint."""
        own = "" if self.backbone is None else self.backbone.fingerprint()
        if isinstance(self.classifier, Classifier):
            own = digest(self.classifier.class_vectors.cpu().numpy().tobytes()) + self.classifier.backbone.fingerprint()
        known = self.folder.read_json(MODEL)
        if known is None:
            self.folder.write(MODEL, json.dumps({"fingerprint": own}).encode("ascii"))
        elif known.get("fingerprint") != own:
            raise RunFolderError(
                f"The weights of {self.job.model!r} have changed since {self.folder.address!r} was begun. Use the same "
                "model, or another --out."
            )
        if self.partitions[0]["kind"] == "partition" and self.backbone is not None and self.backbone.has_image_encoder:
            encoder = PartitionFolder(self.job.input).read_json(MODEL) or {}
            if not str(encoder.get("fingerprint")).endswith(self.backbone.fingerprint()):
                raise InputError(f"The embeddings in {self.job.input!r} are of another model than {self.job.model!r}.")


def run_some(out: str, numbers: Iterator[int]) -> Iterator[Outcome]:
    """Compute partitions in this process."""
    worker = Worker(out)
    yield from map(worker.run, numbers)
