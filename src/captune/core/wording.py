"""How messages name an option: `overwrite=True` in Python, `--overwrite` on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

OF_EXPORT = ("format", "images", "int8", "labels", "min_confidence", "prefix", "source")
FLAGS = {name: f"--{name.replace('_', '-')}" for name in ("describer", "out", "overwrite", "resume", *OF_EXPORT)}
FLAGS["n_checked"] = "--check"
"""Options with a flag of their own; other settings are given with --set."""
_speaks_flags = False


def option(name: str, value: str | float | None = None) -> str:
    """Return an option as the user would write it, with a value or alone."""
    if not _speaks_flags:
        return name if value is None else f"{name}={value!r}"
    if name in FLAGS:
        return FLAGS[name] if value is None or value is True else f"{FLAGS[name]} {value}"
    return name if value is None else f"--set {name}={str(value).lower() if isinstance(value, bool) else value}"


def speaks_flags() -> bool:
    """Return whether messages name flags."""
    return _speaks_flags


@contextmanager
def speaking_flags(is_command: bool = True) -> Iterator[None]:
    """Name flags in messages, as the command line does."""
    global _speaks_flags  # noqa: PLW0603 (not a context variable: messages also come from threads)
    before, _speaks_flags = _speaks_flags, is_command
    try:
        yield
    finally:
        _speaks_flags = before
