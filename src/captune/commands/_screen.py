"""The console that commands print to."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from captune.core.text import printable


class Screen(Console):
    """Standard output; a closed pipe is handled by the command line, which exits quietly."""

    def on_broken_pipe(self) -> None:
        """Raise the error, where rich would exit with code 1."""
        raise BrokenPipeError

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 (as rich does)
        """Print; control characters in text are escaped, since names and paths come from anywhere."""
        super().print(*(printable(text) if isinstance(text, str) else text for text in objects), **options)
