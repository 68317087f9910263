"""Python reads this file when it starts: the process of a benchmark's cell dies where the harness says, or counts."""

from __future__ import annotations

import os
import sys

if os.environ.get("CAPTUNE_CHANGES_IN") and "multiprocessing.forkserver" in " ".join(sys.orig_argv):
    from faults.dying import count_changes, die_at_change

    if "CAPTUNE_DIE_AT" in os.environ:
        die_at_change(int(os.environ["CAPTUNE_DIE_AT"]), os.environ["CAPTUNE_CHANGES_IN"])
    else:
        count_changes(os.environ["CAPTUNE_CHANGES_IN"], f"{os.environ['CAPTUNE_COUNT_TO']}-{os.getpid()}")
