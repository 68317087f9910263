"""The worked example of docs/adding-a-method.md is a method like any other."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import captune
from captune.core import registry
from captune.core.errors import InputError
from captune.world import class_names, render_world

PAGE = (Path(__file__).parents[2] / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
COMMON: dict[str, Any] = {"backbone": "embedded:patterns", "workers": 0, "quiet": True}


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the example to a package and declare it as the page says."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "prototypes.py").write_text(code, encoding="utf-8")
    (name, value) = re.findall(r'^(\w+) = "([\w.]+)"$', PAGE, flags=re.MULTILINE)[0]
    (group,) = re.findall(r'entry-points\."([\w.]+)"\]', PAGE)
    points = [EntryPoint(name, value, group)]
    monkeypatch.setattr(registry, "entry_points", lambda group: [point for point in points if point.group == group])
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package / "prototypes.py"
    for module in ("my_package.prototypes", "my_package"):
        sys.modules.pop(module, None)


def test_the_example_adapts_and_is_saved(added: Path, tmp_path: Path) -> None:
    photos, names = render_world(12, seed=0), list(class_names())
    common = {**COMMON, "cache": str(tmp_path / "cache"), "keep_better": False}
    run = captune.adapt(photos.images, names, method="prototypes", k=4, out=tmp_path / "run", **common)
    alone = captune.adapt(photos.images, names, method="prototypes", weight=0.0, **common)
    zero_shot = captune.adapt(photos.images, names, method="zero_shot", **common)
    assert np.array_equal(alone.predictions.labels, zero_shot.predictions.labels)  # without weight, texts decide
    assert not np.array_equal(run.predictions.labels, zero_shot.predictions.labels)
    loaded = captune.load(tmp_path / "run")
    assert np.allclose(loaded.predict_proba(photos.images), run.predictions.probabilities, atol=1e-5)
    with pytest.raises(InputError, match="k = 0"):
        captune.adapt(photos.images, names, method="prototypes", k=0, **common)


def test_the_command_line_knows_it(added: Path, captune: Any) -> None:
    assert "prototypes" in captune("list", "methods").out
    assert "make the prototype of a class" in captune("adapt", "--help-settings", "prototypes").out


def test_the_example_passes_the_linter(added: Path) -> None:
    ruff = [sys.executable, "-m", "ruff", "check", "--config", str(Path(__file__).parents[2] / "pyproject.toml")]
    found = subprocess.run([*ruff, str(added)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
