"""Tiny models included in the package for the demo and tests; no download is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from captune.backbones.hf import HuggingFace
from captune.core.errors import ModelError, nearest

FOLDER = Path(__file__).parent


def available() -> tuple[str, ...]:
    """Return the names of the included models."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob("*/config.json")))


class Embedded(HuggingFace):
    """A small CLIP in transformers' format, included in the package."""

    examples: ClassVar[tuple[str, ...]] = available()

    @classmethod
    def load(cls, name: str) -> Embedded:
        """Load an included model by name."""
        cls.check(name)
        backbone = super().load(str(FOLDER / name))
        backbone.identifier = f"embedded:{name}"
        assert isinstance(backbone, Embedded)
        return backbone

    def portable_id(self) -> str:
        """Return the id, whose name is never a path, even if a folder has the same name."""
        return self.identifier

    @classmethod
    def files(cls, name: str) -> Sequence[Path]:
        """Return the files of an included model."""
        return super().files(str(FOLDER / name)) if name in available() else ()

    @classmethod
    def check(cls, name: str) -> None:
        """Raise an error that lists the included models if the name is none of them."""
        if name not in available():
            known = ", ".join(f"embedded:{one}" for one in available()) or "none"
            raise ModelError(f"No embedded model {name!r}.{nearest(name, available())} Available: {known}.")
