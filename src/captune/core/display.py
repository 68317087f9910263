"""How objects show themselves: one line in a terminal, a small table in a notebook."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from html import escape


class Displayed:
    """An object that shows a few facts about itself."""

    @abstractmethod
    def summary(self) -> Mapping[str, object]:
        """Return what matters most, by name."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.summary().items())})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align:left">{escape(name.replace("_", " "))}</th>'
            f'<td style="text-align:left">{escape(_shown(value))}</td></tr>'
            for name, value in self.summary().items()
        )
        return f"<table><caption>{escape(type(self).__name__)}</caption><tbody>{rows}</tbody></table>"


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value)) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def shortened(names: list[str], most: int = 5) -> list[str]:
    """Return the first few names, and how many others there are."""
    return names if len(names) <= most else [*names[:most], f"... ({len(names) - most} more)"]
