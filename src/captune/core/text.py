"""Names, messages and objects as text: one form for what looks the same, and nothing that controls a terminal."""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape

MOST_SHOWN = 200
_KEPT = frozenset("\n\t")
_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")
"""Characters that change the direction of the text after them."""
WITH_FLAGS = "describer method out overwrite resume format images int8 labels min_confidence prefix source"
FLAGS = {"n_checked": "--check", **{name: f"--{name.replace('_', '-')}" for name in WITH_FLAGS.split()}}
"""Options with a flag of their own; other settings are given with --set."""
_speaks_flags = False


def one_form(name: str) -> str:
    """Return a name without spaces around it, in the composed form (NFC): macOS writes folder names decomposed."""
    return unicodedata.normalize("NFC", name.strip())


def look(name: str) -> str:
    """Return what names that look the same have in common: without case and characters of zero width."""
    visible = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    return unicodedata.normalize("NFKC", visible).strip().casefold()


def is_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8; YAML and JSON can contain half of a surrogate pair."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def invalid_character(name: str) -> str | None:
    """Return the first character that no name may have, escaped: a control character, or half of a pair (UTF-16)."""
    found = next((letter for letter in name if _is_control(letter)), None)
    return None if found is None else ascii(found)[1:-1]


def plain_sentence(text: str) -> str:
    """Return a text as one line without characters that control a terminal or the direction of other text."""
    kept = "".join(letter for letter in text if letter not in _BIDI and not _is_control(letter))
    return " ".join(kept.split())


def printable(text: str) -> str:
    """Return text with escaped control characters, so that a name in it cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(ascii(letter)[1:-1] if letter in _BIDI or _is_control(letter) else letter for letter in text)


def _is_control(letter: str) -> bool:
    return unicodedata.category(letter) in ("Cc", "Cs") and letter not in _KEPT


def shown(value: object) -> str:
    """Return the representation of a value for a message, cut if it is long."""
    try:
        text = repr(value)
    except RecursionError:
        return "..."
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


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
def speaking_flags() -> Iterator[None]:
    """Name flags in messages, as the command line does."""
    global _speaks_flags  # noqa: PLW0603 (not a context variable: messages also come from threads)
    before, _speaks_flags = _speaks_flags, True
    try:
        yield
    finally:
        _speaks_flags = before


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
