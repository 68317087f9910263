"""Describe nothing: every class keeps its name."""

from __future__ import annotations

from captune.describers.base import Describer, DescriptionRequest


class NoDescriber(Describer):
    """Leaves every class its name."""

    def describe(self, request: DescriptionRequest) -> list[str]:
        """Return no sentence."""
        return []
