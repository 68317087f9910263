"""A folder for transformers: its own loaders read it, its README's code runs and agrees, other runs are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from export_runs import NAMES, make_run
from models import identifier
from PIL import Image

from captune.backbones.hf import HuggingFace
from captune.core import registry
from captune.core.errors import InputError
from captune.exports.base import export


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_transformers_loads_it_and_agrees(
    kind: str,
    model_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = make_run(tmp_path / "run", HuggingFace.load(str(model_folder(kind))))
    folder = export(tmp_path / "run", "hf", tmp_path / "hf").path
    said = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
    assert said["names"] == list(NAMES)
    again = HuggingFace.load(str(folder))
    assert again.preprocessing == made.classifier.backbone.preprocessing
    assert again.fingerprint() == made.classifier.backbone.fingerprint()

    monkeypatch.chdir(folder)
    Image.open(made.images.paths[5]).save("photo.jpg", quality=95)
    expected = made.classifier.predict_proba(["photo.jpg"])[0]
    blocks = re.findall(r"(?:^    .*\n|^\n)+", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    source = "\n".join(line.removeprefix("    ") for line in max(blocks, key=len).splitlines())
    found: dict[str, torch.Tensor] = {}
    exec(compile(source, "README.md", "exec"), found)
    assert np.abs(found["probabilities"].numpy() - expected).max() < 1e-3
    assert capsys.readouterr().out.startswith(NAMES[int(expected.argmax())])


@pytest.mark.parametrize(
    ("tuner", "kind", "reason"),
    [
        ("maple", "clip", "'maple'"),
        ("feature_adapter", "clip", "'feature_adapter'"),
        ("frozen", "dual_dinov2", "dual:"),
    ],
)
def test_other_runs_are_refused_with_a_way_out(
    tuner: str, kind: str, reason: str, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    source, _, name = identifier(kind, model_folder(kind)).partition(":")
    make_run(tmp_path / "run", registry.load("backbones", source).load(name), tuner)
    with pytest.raises(InputError, match=reason) as caught:
        export(tmp_path / "run", "hf", tmp_path / "hf")
    assert "format='onnx'" in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "run"]
