"""The second day of a project: nothing of the first day is lost."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "day_two.py"


def test_nothing_of_the_first_day_is_lost(tmp_path: Path) -> None:
    runpy.run_path(str(SCRIPT))["tell"](tmp_path)
