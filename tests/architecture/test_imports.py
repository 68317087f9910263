"""The straight line holds: a module imports from its own layer or from layers below it, and start-up stays light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "captune"
MODULES = sorted(PACKAGE.rglob("*.py"))

LAYERS = (
    {"core"},
    {"data", "world"},
    {"backbones"},
    {"embeddings"},
    {"describers", "concepts"},
    {"labeling"},
    {"mixture"},
    {"tuners"},
    {"training"},
    {"methods"},
    {"plan"},
    {"results"},
    {"partitions"},
    {"review"},
    {"report"},
    {"web", "exports"},
    {"pipeline", "estimator", "distill"},
    {"benchmark"},
    {"commands", "cli"},
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
FOUNDATION = {"core"}
METHODS_OF_RUN = {"results/run.py": {"report", "review", "distill"}}
"""`Run.report`, `Run.save` and `Run.suggest` call what is made from runs: for users, one object has it all."""
ROOT_NAMES = {"__version__"}
"""Names that captune/__init__.py defines itself; everything else there is a shortcut upwards."""
HEAVY = ("torch", "transformers", "numpy", "PIL", "pydantic", "yaml", "rich", "sklearn", "pyarrow")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Yield the full name of every imported module, and of every name taken from the package itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "captune":
                yield from (f"captune.{alias.name}" for alias in node.names)
            else:
                yield str(node.module)


def wrong_imports(part: str, source: str) -> list[str]:
    """Return the imports of one module of a part that lead up the straight line."""
    allowed = {p for p, level in LEVEL.items() if level <= LEVEL[part]}
    if part == "world":
        allowed = FOUNDATION | {"world"}
    names = [name.split(".")[1] for name in imported_modules(ast.parse(source)) if name.startswith("captune.")]
    return [name for name in names if name not in allowed | ROOT_NAMES]


def test_imports_go_down_the_straight_line() -> None:
    # The package's front door names what is at the top, and imports it late.
    parts = {path: part_of(path) for path in MODULES if part_of(path) not in ("__init__", "__main__")}
    assert sorted(set(parts.values()) - set(LEVEL)) == [], "give these a layer in LAYERS"
    wrong = {
        path.relative_to(PACKAGE).as_posix(): set(wrong_imports(part, path.read_text("utf-8")))
        for path, part in parts.items()
    }
    assert {name: imports for name, imports in wrong.items() if imports} == METHODS_OF_RUN


def private_imports(path: Path, source: str) -> list[str]:
    """Return the modules with a leading underscore that belong to another folder than the one they are imported in."""
    folder = ".".join(("captune", *path.relative_to(PACKAGE).parent.parts))
    names = [name for name in imported_modules(ast.parse(source)) if name.startswith("captune.")]
    private = [
        name for name in names if any(part.startswith("_") and part != "__version__" for part in name.split("."))
    ]
    return [name for name in private if not name.startswith(f"{folder}._")]


def test_a_private_module_is_used_in_its_own_folder_only() -> None:
    found = {str(path.relative_to(PACKAGE)): private_imports(path, read(path)) for path in MODULES}
    assert {name: imports for name, imports in found.items() if imports} == {}


def test_a_private_import_from_another_folder_is_noticed() -> None:
    source = "from captune.tuners._prompted_texts import PromptedTexts"
    assert private_imports(PACKAGE / "methods" / "cap.py", source)
    assert private_imports(PACKAGE / "tuners" / "maple.py", source) == []


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("data", "from captune.embeddings.embed import score"),
        ("data", "from captune import pipeline"),
        ("tuners", "def late():\n    import captune.methods.base"),
        ("world", "from captune.data.images import find_images"),
        ("methods", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from captune.cli import main"),
    ],
)
def test_an_import_upwards_is_noticed(part: str, source: str) -> None:
    assert wrong_imports(part, source)


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that some code loads in a fresh interpreter."""
    report = "import sys, json; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_captune_imports_nothing_heavy() -> None:
    loaded = loaded_by("import captune; assert captune.__version__; assert captune.CaptuneError")
    assert "captune" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_help_imports_nothing_heavy() -> None:
    code = "from captune.cli import main\nfor words in (['--help'], ['adapt', '--help']):\n"
    loaded = loaded_by(code + "    try: main(words)\n    except SystemExit as end: assert end.code == 0")
    assert "argparse" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_listing_plugins_loads_no_model_library() -> None:
    loaded = loaded_by(
        "from captune.cli import main\nfor role in ('methods', 'backbones', 'tuners', 'datasets'): main(['list', role])"
    )
    assert loaded.isdisjoint(("torch", "transformers"))
