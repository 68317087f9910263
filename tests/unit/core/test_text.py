"""Names that look the same are one, and nothing in a text controls the terminal."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from captune.core.text import invalid_character, is_unicode, look, one_form, printable, shown


@given(st.text())
def test_both_normal_forms_are_one_name(name: str) -> None:
    assert one_form(unicodedata.normalize("NFD", name)) == one_form(unicodedata.normalize("NFC", name))


def test_names_that_look_the_same() -> None:
    assert look("Cat\u200b") == look("cat") == look("\ufeffCAT") == look("ｃａｔ")
    assert look("cat") != look("car")


def test_characters_that_no_name_may_have() -> None:
    assert invalid_character("a\x1b[31m") == r"\x1b"
    assert invalid_character("caf\udce9") == r"\udce9"
    assert invalid_character("café 猫 👩\u200d🚀") is None


@given(st.text(alphabet=st.characters()))
def test_nothing_controls_the_terminal(text: str) -> None:
    clean = printable(text)
    assert not any(unicodedata.category(letter) == "Cc" for letter in clean if letter not in "\n\t")
    assert is_unicode(clean)
    assert clean == text or not text.isprintable()


def test_escapes_are_shown() -> None:
    assert printable("\x1b[2Jx\u202ey\nz") == r"\x1b[2Jx\u202ey" + "\nz"


def test_long_and_endless_values_are_cut() -> None:
    endless: list[object] = []
    for _ in range(100_000):
        endless = [endless]
    assert shown(endless) == "..."
    assert len(shown("x" * 10**6)) < 300
