"""Two thousand damaged files: each is used, skipped or refused in a sentence, within limits of time and memory."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from toys import write_images

import captune
from faults.mutating import write_seeds
from faults.records import FACTS, MUTANTS
from faults.trying import KINDS
from faults.zygote import environment

HAS_EXPORTS = importlib.util.find_spec("captune.exports") is not None


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory, backbone: str) -> Path:
    """Return a folder whose folder `seeds` holds a good file of every kind."""
    base = tmp_path_factory.mktemp("mutants")
    photos = write_images(base / "photos", 6, side=24)
    captune.adapt(
        photos, ["cat", "dog"], backbone=backbone, method="zero_shot", out=base / "run", workers=0, quiet=True
    )
    write_seeds(base / "seeds", base / "run", backbone)
    if HAS_EXPORTS:
        from captune.cli import main

        assert main(["export", str(base / "run"), "--format", "onnx", "--out", str(base / "seeds" / "model.onnx")]) == 0
    return base


def attempt(seeds: Path, share: float, first: int) -> list[dict[str, Any]]:
    """Try a share of the mutants of every kind and count the answers."""
    kinds = {kind: max(3, round(share * n)) for kind, (_, n) in KINDS.items() if kind != "ONNX export" or HAS_EXPORTS}
    jobs = [(kind, -1) for kind in kinds] + [(kind, first + i) for kind, n in kinds.items() for i in range(n)]
    done = subprocess.run(
        [sys.executable, "-m", "faults.trying", str(seeds)],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(jobs)
    good, answers = answers[: len(kinds)], answers[len(kinds) :]
    assert all(answer["answer"] == "accepted" for answer in good), good
    for answer in answers:
        MUTANTS.setdefault(answer["kind"], Counter()).update(["tried", answer["answer"]])
    FACTS.append(f"Highest memory of a process that tried mutants: {max(a['memory'] for a in answers) / 2**20:.0f} MB.")
    return answers


def complaints(answers: list[dict[str, Any]]) -> str:
    wrong = [answer for answer in answers if answer["answer"] not in ("accepted", "refused")]
    return "\n\n".join(f"{a['kind']} {a['number']}: {a['answer']}: {a['said']}" for a in wrong[:20])


@pytest.mark.timeout(900)
def test_some_mutants(seeds: Path) -> None:
    answers = attempt(seeds, share=0.05, first=100_000)
    assert not complaints(answers), complaints(answers)
    counts = Counter(answer["answer"] for answer in answers)
    assert counts["refused"] > 20  # the mutator does damage
    assert counts["accepted"] > 10  # and not only


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_thousand_mutants(seeds: Path) -> None:
    for kind in KINDS:
        MUTANTS.pop(kind, None)  # not those of a part
    answers = attempt(seeds, share=1.0, first=0)
    assert not complaints(answers), complaints(answers)
