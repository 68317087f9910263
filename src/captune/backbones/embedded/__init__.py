"""Tiny models included in the package for the demo and tests; no download is needed."""

from __future__ import annotations

from pathlib import Path

from captune.backbones.hf import HuggingFace
from captune.core.errors import ModelError, nearest

FOLDER = Path(__file__).parent


def available() -> tuple[str, ...]:
    """Return the names of the included models."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob("*/config.json")))


class Embedded(HuggingFace):
    """A small CLIP in transformers' format, included in the package."""

    source = "embedded"
    examples = available()

    @classmethod
    def path_of(cls, name: str) -> str:
        """Return the folder of an included model; the error lists them."""
        if name not in available():
            known = ", ".join(f"embedded:{one}" for one in available()) or "none"
            raise ModelError(f"No embedded model {name!r}.{nearest(name, available())} Available: {known}.")
        return str(FOLDER / name)

    def portable_id(self) -> str:
        """Return the id, whose name is never a path, even if a folder has the same name."""
        return self.identifier
