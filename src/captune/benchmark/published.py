"""Published numbers, transcribed from the paper's tables, to stand beside ours and never as ours."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from captune.core.errors import UnknownNameError, nearest
from captune.core.settings import read_yaml

FILE = Path(__file__).parent / "published.yaml"


class PublishedNumber(NamedTuple):
    """A mean in percent, with the standard deviation over seeds where it was printed."""

    mean: float
    deviation: float | None = None


@cache
def published_tables() -> dict[str, dict[str, Any]]:
    """Return all published tables by their label."""
    return read_yaml(FILE)


def published_table(label: str) -> dict[str, Any]:
    """Return one published table: title, and rows of method, dataset and setting."""
    tables = published_tables()
    if label not in tables:
        raise UnknownNameError(f"No published table {label!r}.{nearest(label, tables)} There are: {', '.join(tables)}.")
    return tables[label]


def published_number(label: str, method: str, dataset: str, setting: str) -> PublishedNumber | None:
    """Return what a published table says in one place, if anything."""
    value = published_table(label)["rows"].get(method, {}).get(dataset, {}).get(setting)
    if value is None:
        return None
    return PublishedNumber(*value) if isinstance(value, list) else PublishedNumber(value)
