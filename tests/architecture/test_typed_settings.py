"""The settings that editors complete are those that runs and methods have."""

from __future__ import annotations

import importlib.util
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_typed_settings_are_up_to_date() -> None:
    place = REPOSITORY / "scripts" / "typed_settings.py"
    spec = importlib.util.spec_from_file_location("typed_settings", place)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    expected = script.source()
    assert script.TARGET.read_text(encoding="utf-8") == expected, "run: python scripts/typed_settings.py"
    assert "    epochs: int\n" in expected
