"""Python reads this file when it starts: the process of a benchmark's cell dies where the harness says."""

from __future__ import annotations

import os
import sys

if os.environ.get("CAPTUNE_DIE_AT") and "captune.benchmark.measuring" in " ".join(sys.orig_argv):
    from faults.dying import die_at_change

    die_at_change(int(os.environ["CAPTUNE_DIE_AT"]), os.environ["CAPTUNE_DIE_IN"])
