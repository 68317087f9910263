"""Print the lowest declared version of every dependency as pip constraints, for `make demo-lowest`.

    python scripts/lowest_versions.py [torch=VERSION ...] > lowest.txt

A version given on the command line replaces the declared one, where a package index does not have it any more.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest(requirements: list[str]) -> dict[str, str]:
    """Return the lowest version of each requirement that declares one, by package name."""
    found = (re.match(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)", requirement) for requirement in requirements)
    return {match[1]: match[2] for match in found if match}


def main() -> int:
    """Print the constraints of the package and of all its extras."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    everything = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    versions = lowest(everything) | dict(word.split("=", 1) for word in sys.argv[1:])
    print("\n".join(f"{name}=={version}" for name, version in versions.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
