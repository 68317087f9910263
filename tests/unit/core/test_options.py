"""Messages speak of arguments in Python and of flags on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import captune
from captune.cli import main
from captune.core.errors import InputError
from captune.core.text import option, speaking_flags

TEXTS = captune.ClassTexts(["a", "b"], np.eye(2, 3))
IMAGES = captune.Embeddings(np.eye(3) + 0.1)


@pytest.mark.parametrize(
    ("name", "value", "argument", "flag"),
    [
        ("overwrite", True, "overwrite=True", "--overwrite"),
        ("out", None, "out", "--out"),
        ("min_confidence", None, "min_confidence", "--min-confidence"),
        ("n_checked", None, "n_checked", "--check"),
        ("describer", "file:d.yaml", "describer='file:d.yaml'", "--describer file:d.yaml"),
        ("keep_better", False, "keep_better=False", "--set keep_better=false"),
        ("learning_rate", 0.003, "learning_rate=0.003", "--set learning_rate=0.003"),
    ],
)
def test_an_option_in_both_languages(name: str, value: object, argument: str, flag: str) -> None:
    assert option(name, value) == argument  # type: ignore[arg-type]
    with speaking_flags():
        assert option(name, value) == flag  # type: ignore[arg-type]
    assert option(name, value) == argument  # type: ignore[arg-type]


def test_the_same_mistake_in_both_languages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    captune.adapt(IMAGES, TEXTS, method="zero_shot", out=out, quiet=True)
    with pytest.raises(captune.CaptuneError, match=r"pass overwrite=True to replace it, or choose another out\."):
        captune.adapt(IMAGES, TEXTS, method="zero_shot", out=out, quiet=True)
    with pytest.raises(captune.CaptuneError, match=r"does not take min_confidence. It takes: images, int8"):
        captune.export(out, "onnx", min_confidence=0.5)
    np.savez(tmp_path / "texts.npz", names=["a", "b"], texts=np.eye(2, 3))
    np.save(tmp_path / "images.npy", np.eye(3))
    words = ["adapt", f"{tmp_path}/images.npy", "--classes", f"{tmp_path}/texts.npz", "--method", "zero_shot"]
    assert main([*words, "--out", str(out)]) == 2
    assert "pass --overwrite to replace it, or choose another --out." in capsys.readouterr().err
    assert main(["export", str(out), "--format", "onnx", "--min-confidence", "0.5"]) == 2
    assert "does not take --min-confidence. It takes: --images, --int8" in capsys.readouterr().err


def test_numbers_of_numpy_and_paths_are_values(tmp_path: Path) -> None:
    values = {"image_weight": np.float32(2), "seed": np.int64(3), "keep_better": np.bool_(False), "cache": tmp_path}
    found = captune.adapt(IMAGES, TEXTS, method=np.str_("transductive"), quiet=True, **values).settings
    assert (found["image_weight"], found["seed"], found["keep_better"], found["cache"]) == (2, 3, False, str(tmp_path))
    assert type(found["seed"]) is int


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "transductive", "image_wieght": 2}, "Did you mean 'image_weight'"),
        ({"method": "transductive", "epochs": 2}, "It is a setting of cap, .*, not of transductive"),
        ({"method": "cap", "image_weight": 2}, "It is a setting of transductive, not of cap"),
        ({"overwite": True}, "Did you mean 'overwrite'"),
        ({"seed": np.array([1, 2])}, r"seed = \[1, 2\]"),
        ({"seed": object()}, "expected text, finite numbers"),
    ],
)
def test_an_unknown_setting_is_explained(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        captune.adapt(IMAGES, TEXTS, **settings)
