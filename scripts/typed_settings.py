"""Write src/captune/core/typed_settings.py: the keyword settings of `captune.adapt`, as editors complete them.

Run `python scripts/typed_settings.py` after a setting was added, removed or renamed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from captune.core import registry
from captune.core.settings import RunSettings

TARGET = Path(__file__).parents[1] / "src" / "captune" / "core" / "typed_settings.py"
IN_MEMORY = {"backbone": "Any", "describer": "Any", "cache": "str | Path", "root": "str | Path"}
"""Settings that may also be objects in Python."""
HEAD = '''"""The keyword settings of `captune.adapt` for editors; written by scripts/typed_settings.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict


class AdaptSettings(TypedDict, total=False):
    """Settings of every run and of all methods; `captune adapt --help-settings METHOD` explains them."""

    rename: Mapping[str, str]
    merge: Mapping[str, str | Sequence[str]]
'''


def words(kind: Any) -> list[str]:  # noqa: ANN401 (any type)
    """Return the members of a type as they are written; choices are joined to one literal later."""
    if get_origin(kind) is Literal:
        return [repr(value) for value in get_args(kind)]
    if kind is NoneType:
        return ["None"]
    if get_origin(kind) is None or get_origin(kind) in (tuple, dict):
        return [kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")]
    return [word for part in get_args(kind) for word in words(part)]


def source() -> str:
    """Return the content of the file."""
    found: dict[str, list[str]] = {}
    for cls in (RunSettings, *(registry.load("methods", name).Settings for name in registry.names("methods"))):
        hints = get_type_hints(cls)
        for field in dataclasses.fields(cls):
            found.setdefault(field.name, []).extend(words(hints[field.name]))
    lines = []
    for name, kinds in found.items():
        choices = sorted({kind for kind in kinds if kind[0] in "'\""})
        plain = sorted({kind for kind in kinds if kind[0] not in "'\""}, key=lambda kind: (kind == "None", kind))
        joined = [f"Literal[{', '.join(choices)}]".replace("'", '"')] if choices else []
        lines.append(f"    {name}: {IN_MEMORY.get(name) or ' | '.join([*joined, *plain])}\n")
    return HEAD + "".join(lines)


if __name__ == "__main__":
    TARGET.write_text(source(), encoding="utf-8")
