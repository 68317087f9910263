"""`python -m captune`, the same as the command `captune`."""

from __future__ import annotations

import sys

from captune.cli import main

if __name__ == "__main__":
    sys.exit(main())
