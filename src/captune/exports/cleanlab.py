"""Arrays for cleanlab: labels.npy, pred_probs.npy, paths.npy and classes.json."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Rows
from captune.core.errors import InputError
from captune.core.files import write_json, write_whole
from captune.data.labels import read_labels
from captune.exports.base import OF_LABELS, ExportFormat, ExportSettings, choose_labels
from captune.results.run import Run


class CleanlabArrays(ExportFormat):
    """Labels and probabilities; with --labels, cleanlab can find likely errors in your own labels."""

    target = "cleanlab"
    is_folder = True
    takes = OF_LABELS | {"labels"}

    def write(self, run: Run, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write the arrays, without pickle."""
        chosen = choose_labels(run, settings)
        labels, kept, origin = chosen.labels, np.arange(len(chosen)), "predicted by the model"
        if settings.labels is not None:
            labels = read_labels(settings.labels, run.readable.subset(chosen.rows), chosen.run.names)
            kept, origin = np.flatnonzero(labels >= 0), f"from {settings.labels}"
            if len(kept) == 0:
                raise InputError(f"None of the {len(chosen)} images has a label in {settings.labels!r}.")
        arrays: dict[str, NDArray[Any]] = {
            "labels": labels[kept],
            "pred_probs": run.probabilities_of(Rows(chosen.rows[kept])),
            "paths": np.asarray([chosen.names[i] for i in kept], dtype=np.str_),
        }
        for name, array in arrays.items():
            content = BytesIO()
            np.save(content, array, allow_pickle=False)
            write_whole(target / f"{name}.npy", content.getvalue())
        write_json(target / "classes.json", list(chosen.run.names))
        return [f"Exported {len(kept)} of {len(run.readable)} images with labels {origin}."]
