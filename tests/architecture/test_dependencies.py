"""The package declares what it imports, and imports where POSIX-only modules are missing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "captune").rglob("*.py"))


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (entry for name, group in project["optional-dependencies"].items() if name != "dev" for entry in group)
    return {plain(re.split(r"[\s<>=!~\[;]", entry)[0]) for entry in (*project["dependencies"], *extras)}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"captune"}


def test_every_third_party_import_is_declared() -> None:
    distributions = packages_distributions()
    undeclared = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in SOURCES
        for module in imported(path)
        if not {plain(name) for name in distributions.get(module, [module])} & (declared() | {"open-clip"})
    }
    assert not undeclared


def test_every_module_imports_without_posix() -> None:
    modules = [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__") for path in SOURCES
    ]
    program = (
        "import sys, importlib\n"
        "import torch, transformers, sklearn, filelock  # these handle it themselves\n"
        "for name in [n for n in sys.modules if n.startswith('captune')]: del sys.modules[name]\n"
        "for name in ('resource', 'fcntl'): sys.modules[name] = None\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-2000:]
