"""One call leaves the process as it was: after success, after an error and after an interruption."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.utils import are_progress_bars_disabled
from transformers.utils import logging as transformers_logging

import captune
from captune.core import runtime
from captune.core.errors import CaptuneError
from captune.methods.audit import Audit
from captune.methods.zero_shot import ZeroShot

LOGGERS = ("", "transformers", "huggingface_hub", "torch", "matplotlib", "PIL")


def state() -> dict[str, Any]:
    return {
        "python": random.getstate(),
        "numpy": [np.asarray(part).tolist() for part in np.random.get_state()],
        "torch": torch.get_rng_state().tolist(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "threads": torch.get_num_threads(),
        "levels": {name: (logging.getLogger(name).level, logging.getLogger(name).disabled) for name in LOGGERS},
        "disabled": logging.root.manager.disable,
        "verbosity": transformers_logging.get_verbosity(),
        "bars": (transformers_logging.is_progress_bar_enabled(), are_progress_bars_disabled()),
        "environment": dict(os.environ),
        "handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "filters": list(warnings.filters),
        "errors": np.geterr(),
        "dtype": torch.get_default_dtype(),
    }


@pytest.fixture
def unusual(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put the process in a state that is neither the default nor what captune works in."""
    with runtime.unchanged():
        random.seed(7)
        np.random.seed(8)
        torch.manual_seed(9)
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = True
        torch.set_num_threads(2)
        transformers_logging.set_verbosity_info()
        logging.getLogger("huggingface_hub").setLevel(logging.DEBUG)
        monkeypatch.delenv("DISABLE_SAFETENSORS_CONVERSION", raising=False)
        warnings.filterwarnings("always", message="something of the user's")
        yield
        transformers_logging.set_verbosity_warning()
        logging.getLogger("huggingface_hub").setLevel(logging.NOTSET)


@pytest.fixture(scope="module")
def finished(photos: Path, clip_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    captune.adapt(photos, ["cat", "red dog"], backbone=f"hf:{clip_folder}", method="zero_shot", out=out, quiet=True)
    return out


Call = Callable[[], object]


@pytest.fixture(params=["adapt", "audit", "load", "predict", "export"])
def call(request: pytest.FixtureRequest, photos: Path, backbone: str, finished: Path, tmp_path: Path) -> Call:
    """Return one public call; it trains, loads weights or decodes images in worker processes."""
    common: dict[str, Any] = {"backbone": backbone, "cache": str(tmp_path / "cache"), "quiet": True}
    names = ["cat", "red dog"]
    short = {"method": "cap", "epochs": 1, "iterations": 2, "workers": 2}
    classifier = captune.load(finished) if request.param == "predict" else None
    calls: dict[str, Call] = {
        "adapt": lambda: captune.adapt(photos, names, **common, **short, seed=3, out=tmp_path / "run"),
        "audit": lambda: captune.audit(photos, names, **common, workers=2, out=tmp_path / "audit"),
        "load": lambda: captune.load(finished),
        "predict": lambda: classifier.predict(photos),  # type: ignore[union-attr]
        "export": lambda: captune.export(finished, "onnx", tmp_path / "model.onnx", images=str(photos)),
    }
    return calls[str(request.param)]


@pytest.mark.usefixtures("unusual")
def test_a_call_leaves_nothing_behind(call: Call) -> None:
    before = state()
    call()
    assert state() == before


@pytest.mark.usefixtures("unusual")
@pytest.mark.parametrize("error", [CaptuneError("no"), RuntimeError("a defect"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("name", ["adapt", "audit"])
def test_a_call_that_fails_or_is_interrupted_leaves_nothing_behind(
    photos: Path, backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException
) -> None:
    def fail(*arguments: object, **settings: object) -> None:
        torch.rand(1)
        raise error

    monkeypatch.setattr(ZeroShot, "adapt", fail)
    monkeypatch.setattr(Audit, "adapt", fail)
    before = state()
    method = {"method": "zero_shot"} if name == "adapt" else {}
    with pytest.raises(type(error)):
        getattr(captune, name)(photos, ["cat", "red dog"], backbone=backbone, quiet=True, out=tmp_path / "x", **method)
    assert state() == before


@pytest.mark.usefixtures("unusual")
def test_an_interrupted_training_leaves_nothing_behind(photos: Path, backbone: str, tmp_path: Path) -> None:
    def interrupt(name: str) -> list[str]:
        os.kill(os.getpid(), signal.SIGINT)
        return ["a thing"]

    before = state()
    with pytest.raises(KeyboardInterrupt):
        captune.adapt(
            photos, ["cat", "red dog"], backbone=backbone, describer=interrupt, describe="all", method="zero_shot",
            quiet=True, cache=str(tmp_path),
        )  # fmt: skip
    assert state() == before


@pytest.mark.usefixtures("unusual")
def test_broken_input_leaves_nothing_behind(finished: Path, photos: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(finished, tmp_path / "broken")
    (broken / "classifier" / "classifier.safetensors").write_bytes(b"")
    classifier = captune.load(finished)
    before = state()
    for wrong in (
        lambda: captune.load(broken),
        lambda: captune.export(finished, "nothing"),
        lambda: captune.adapt(photos, ["cat"], backbone="hf:nowhere"),
        lambda: captune.audit(photos, ["cat", "dog"], backbone="hf:nowhere/at-all"),
        lambda: classifier.predict("nowhere"),
    ):
        with pytest.raises(CaptuneError):
            wrong()
    assert state() == before


@pytest.mark.usefixtures("unusual")
def test_the_own_random_numbers_go_on_as_if_nothing_had_happened(finished: Path, photos: Path) -> None:
    with runtime.unchanged():
        expected = [random.random(), np.random.rand(), torch.rand(1).item()]
    captune.load(finished).predict(photos)
    assert [random.random(), np.random.rand(), torch.rand(1).item()] == expected
