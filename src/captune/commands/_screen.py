"""The console that commands print to."""

from __future__ import annotations

from rich.console import Console


class Screen(Console):
    """Standard output; a closed pipe is handled by the command line, which exits quietly."""

    def on_broken_pipe(self) -> None:
        """Raise the error, where rich would exit with code 1."""
        raise BrokenPipeError
