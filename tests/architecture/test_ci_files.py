"""What contributors' CI runs is what `.ci/run` and the Makefile say, and the version stands in one place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

import captune
from lowest_versions import lowest

REPOSITORY = Path(__file__).parents[2]
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
TARGETS = {name for line in re.findall(r"^([\w -]+):(?!=)", MAKEFILE, flags=re.MULTILINE) for name in line.split()}
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


def jobs(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]


def make_targets(job: dict[str, Any]) -> set[str]:
    """Return the targets that a job makes, with every value of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    rows = matrix.get("include", []) + [{name: value} for name, values in matrix.items() for value in values]
    found = set()
    for step in job["steps"]:
        for target in re.findall(r"\bmake ([\w$.{} -]+)", step.get("run", "")):
            filled = {
                re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda name, row=row: str(row.get(name[1], name[0])), target)
                for row in rows
            }
            found |= {name for name in filled or {target} if "$" not in name}
    return found


def test_workflows_call_targets_that_exist() -> None:
    called = {target for path in WORKFLOWS for job in jobs(path).values() for target in make_targets(job)}
    assert called <= TARGETS
    assert {"demo-lowest", "demo-newest", "test-slow", "test-faults"} <= called  # those of a matrix are found


def test_contributors_run_what_ci_runs() -> None:
    own = set(re.findall(r"^make ([\w-]+)", (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"lint", "test"} <= own
    workflow = jobs(REPOSITORY / ".github" / "workflows" / "ci.yml")
    assert own <= {target for job in workflow.values() for target in make_targets(job)}


def test_the_declared_python_versions_are_tested() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    declared = set(re.findall(r"Python :: (3\.\d+)", project))
    assert declared == set(
        jobs(REPOSITORY / ".github" / "workflows" / "ci.yml")["test"]["strategy"]["matrix"]["python"]
    )


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == captune.__version__


def test_lowest_versions_are_read_from_requirements() -> None:
    declared = ["torch>=2.4", "captune[web]", "uvicorn[standard]>=0.30", "types-PyYAML"]
    assert lowest(declared) == {"torch": "2.4", "uvicorn": "0.30"}
