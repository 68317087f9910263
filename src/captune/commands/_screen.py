"""Standard output as every command uses it."""

from __future__ import annotations

from rich.console import Console


class Screen(Console):
    """Standard output; a reader that went away is left to the command line, which ends quietly."""

    def on_broken_pipe(self) -> None:
        """Let the error through, where rich would end with code 1."""
        raise BrokenPipeError
