"""Names and messages as text: one form for what looks the same, and nothing that controls a terminal."""

from __future__ import annotations

import unicodedata

MOST_SHOWN = 200
_KEPT = frozenset("\n\t")
_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")
"""Characters that change the direction of the text after them."""


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
