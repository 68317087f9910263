"""Arrays as cleanlab reads them: labels.npy, pred_probs.npy, paths.npy and classes.json."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from captune.core.errors import InputError
from captune.core.files import write_json, write_whole
from captune.data.images import read_labels
from captune.exports._labels import TAKES, choose_labels, probabilities_of
from captune.exports.base import ExportFormat, ExportSettings, FinishedRun


class CleanlabArrays(ExportFormat):
    """Labels beside probabilities; with labels of your own, cleanlab finds those that the model doubts."""

    target: ClassVar[str] = "cleanlab"
    is_folder: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = TAKES | {"labels"}

    def write(self, run: FinishedRun, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write the arrays, none of which needs pickle."""
        chosen = choose_labels(run, settings)
        labels, kept = chosen.labels, np.arange(len(chosen))
        if settings.labels is not None:
            given = read_labels(settings.labels, run.record.images.subset(chosen.rows), chosen.class_names)
            kept = np.flatnonzero(given >= 0)
            if len(kept) == 0:
                raise InputError(f"None of the {len(chosen)} images has a label in {settings.labels!r}.")
            labels = given
        _write_array(target / "labels.npy", labels[kept])
        _write_array(target / "pred_probs.npy", probabilities_of(run, chosen.rows[kept]))
        _write_array(target / "paths.npy", np.asarray([chosen.names[i] for i in kept], dtype=np.str_))
        write_json(target / "classes.json", list(chosen.class_names))
        whose = "the model's labels" if settings.labels is None else f"labels of {settings.labels}"
        return [f"{len(kept)} images of {len(run.record.images)}, {whose}."]


def _write_array(path: Path, array: NDArray[Any]) -> None:
    content = BytesIO()
    np.save(content, array, allow_pickle=False)
    write_whole(path, content.getvalue())
