"""Rules that hold for every file: its length, and that nothing in the package runs code that came with data."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
LONGEST = 500
"""Near 150 lines is the aim; a longer file is a reason to ask whether there are two ideas inside."""
FOLDERS = ("src", "tests", "scripts", "benchmarks")
ALL_FILES = sorted(path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py"))
PACKAGE = sorted((REPOSITORY / "src").rglob("*.py"))
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNWANTED_MODULES = {"torchvision": "the views are made with Pillow"}


def name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def dotted(node: ast.expr) -> str:
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def violations(source: str) -> list[str]:
    """Return what a module of the package does that none may do."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)]
            tops = {module.split(".")[0] for module in modules}
            found += [f"line {node.lineno}: imports {top}" for top in tops & (UNSAFE_MODULES | set(UNWANTED_MODULES))]
        if isinstance(node, ast.Call):
            found += [f"line {node.lineno}: {problem}" for problem in call_problems(node)]
    return found


def call_problems(call: ast.Call) -> list[str]:
    function = dotted(call.func)
    given = {keyword.arg: getattr(keyword.value, "value", None) for keyword in call.keywords}
    problems = []
    if function in ("torch.load", "load_state_dict_from_url") and given.get("weights_only") is not True:
        problems.append("torch.load without weights_only=True")
    if "trust_remote_code" in given and given["trust_remote_code"] is not False:
        problems.append("trust_remote_code other than False")
    if function in ("np.load", "numpy.load") and given.get("allow_pickle", False) is not False:
        problems.append("np.load with allow_pickle")
    if function in ("eval", "exec", "os.system", "yaml.unsafe_load", "yaml.full_load"):
        problems.append(f"calls {function}")
    if given.get("shell") is True:
        problems.append("a subprocess through the shell")
    return problems


def findings(paths: Iterable[Path], check: Callable[[str], object]) -> dict[str, object]:
    """Return what a check found, by the name of the file; files without a finding are left out."""
    found = {name(path): check(path.read_text(encoding="utf-8")) for path in paths}
    return {file: finding for file, finding in found.items() if finding}


def test_no_file_is_too_long() -> None:
    assert findings(ALL_FILES, lambda source: max(0, len(source.splitlines()) - LONGEST)) == {}


def test_nothing_runs_code_that_came_with_data() -> None:
    assert findings(PACKAGE, violations) == {}


def names_read(source: str) -> list[str]:
    """Return where a module asks an image for its name or place, in which a folder of classes shows the truth."""
    asked = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
    return [f"line {node.lineno}: {node.attr}" for node in asked if node.attr in ("paths", "root", "fingerprint")]


def test_no_method_looks_at_the_names_of_images() -> None:
    folders = ("methods", "labeling", "concepts", "tuners")
    assert findings((path for path in PACKAGE if path.parent.name in folders), names_read) == {}


def test_a_look_at_names_is_noticed() -> None:
    assert names_read("truth = [path.parent.name for path in task.unlabeled.paths]") == ["line 1: paths"]


def lacks_sentence(source: str) -> bool:
    """Return whether a module does not say in its first line what it is."""
    first = (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]
    return len(first) <= 10 or not first.endswith((".", ":"))


def test_a_module_says_what_it_is_in_one_sentence() -> None:
    assert findings(PACKAGE, lacks_sentence) == {}
    assert lacks_sentence("import os")


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from pickle import loads",
        "import torchvision.transforms",
        "import torch\ntorch.load('x')",
        "import torch\ntorch.load('x', weights_only=False)",
        "Model.from_pretrained('x', trust_remote_code=True)",
        "Model.from_pretrained('x', trust_remote_code=chosen)",
        "np.load('x', allow_pickle=True)",
        "eval(text)",
        "run(words, shell=True)",
    ],
)
def test_each_violation_is_noticed(source: str) -> None:
    assert len(violations(source)) == 1


def test_safe_loading_is_allowed() -> None:
    assert violations("torch.load('x', weights_only=True)\nload('x', trust_remote_code=False)\nnp.load('x')") == []
