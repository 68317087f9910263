"""What every dataset keeps, whoever wrote it: facts that can be shown, addresses that can be trusted, no surprises."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import pytest

from captune.benchmark.datasets.base import Dataset
from captune.core import registry
from captune.core.errors import InputError
from captune.data.vocabulary import Vocabulary

DATASETS = registry.names("datasets")
DOCUMENT = Path(__file__).parents[2] / "docs" / "datasets.md"


@pytest.fixture(params=DATASETS)
def dataset(request: pytest.FixtureRequest) -> Dataset:
    found: Dataset = registry.load("datasets", request.param)()
    return found


def test_facts_can_be_shown_and_used(dataset: Dataset) -> None:
    facts = dataset.facts
    assert facts.title
    assert facts.source
    assert facts.license
    assert all(size is None or size > 0 for size in (facts.n_classes, facts.n_pool, facts.n_test))
    Vocabulary(("cat", "dog"), (facts.template,))


def test_downloads_are_safe(dataset: Dataset) -> None:
    for remote in dataset.facts.urls:
        assert remote.url.startswith("https://")
        assert re.fullmatch(r"[0-9a-f]{32}", remote.md5)
        target = PurePosixPath(remote.creates)
        assert not target.is_absolute()
        assert ".." not in target.parts


@pytest.mark.parametrize("kind", ["empty", "missing", "file", "odd"])
def test_a_root_without_it_is_an_answer_not_a_crash(dataset: Dataset, kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    root = {"empty": tmp_path / "new", "odd": Path("a\0b")}.get(kind, tmp_path / kind)
    if kind == "empty":
        root.mkdir()
    if dataset.is_found(root):
        assert registry.name_of("datasets", type(dataset)) == "patterns"  # made, not found
        return
    with pytest.raises(InputError, match=re.escape(repr(str(root)))):
        dataset.load(root)


@pytest.mark.parametrize("name", DATASETS)
def test_the_document_says_the_same_numbers(name: str) -> None:
    facts = registry.load("datasets", name).facts
    row = next(line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}` |"))
    cells = [cell.strip() for cell in row.split("|")][2:]
    shown = ["any" if size is None else f"{size:,}" for size in (facts.n_classes, facts.n_pool, facts.n_test)]
    assert cells[:3] == shown
    assert facts.license in row
