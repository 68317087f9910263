"""The folder is the registry: names without imports, helpful errors, third-party plug-ins."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from captune.core import registry
from captune.core.errors import InputError, UnknownNameError
from captune.methods.base import Method
from captune.methods.zero_shot import ZeroShot


class Foreign(ZeroShot):
    """A method of someone else."""


@pytest.fixture
def third_party(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("foreign_plugin")
    Foreign.__module__ = "foreign_plugin"
    module.Foreign = Foreign  # type: ignore[attr-defined]
    module.Method = Method  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "foreign_plugin", module)
    points = [
        EntryPoint("whole_module", "foreign_plugin", "captune.methods"),
        EntryPoint("one_class", "foreign_plugin:Foreign", "captune.methods"),
        EntryPoint("broken", "no_such_module_at_all", "captune.methods"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if p.group == group])


def test_names_are_the_modules_of_the_folder() -> None:
    assert "zero_shot" in registry.names("methods")
    assert {"hf", "dual", "embedded"} <= set(registry.names("backbones"))
    assert "frozen" in registry.names("tuners")
    for role in registry.FOLDERS:
        assert not [name for name in registry.names(role) if name == "base" or name[0] == "_"]  # type: ignore[arg-type]


def test_a_wrong_name_answers_with_the_nearest_right_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'zero_shot'.*captune list methods"):
        registry.load("methods", "zeroshot")
    with pytest.raises(UnknownNameError, match=r"Available: .*zero_shot"):
        registry.load("methods", "qqqqqq")


def test_ids_are_split_and_their_source_checked() -> None:
    assert registry.split_id("backbones", "dual:C:/a:b", "x:y") == ("dual", "C:/a:b")
    assert registry.split_id("backbones", "hf", "x:y") == ("hf", "")
    with pytest.raises(UnknownNameError, match="Did you mean 'dual'"):
        registry.split_id("backbones", "duel:folder", "x:y")
    with pytest.raises(UnknownNameError, match="'x:y'"):
        registry.split_id("backbones", "openai/clip-vit-base-patch32", "x:y")


def test_summaries_are_the_first_sentence_of_the_module(third_party: None) -> None:
    module = importlib.import_module("captune.methods.zero_shot")
    assert registry.summary("methods", "zero_shot") == str(module.__doc__).splitlines()[0]
    assert registry.summary("methods", "whole_module") == "third-party plug-in"


def test_third_party_plugins_are_found(third_party: None) -> None:
    assert {"whole_module", "one_class", "zero_shot"} <= set(registry.names("methods"))
    assert registry.load("methods", "whole_module") is Foreign
    assert registry.load("methods", "one_class") is Foreign
    with pytest.raises(InputError, match=r"'broken'.*cannot be imported.*no_such_module_at_all"):
        registry.load("methods", "broken")


def test_a_class_knows_its_name(third_party: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.name_of("methods", ZeroShot) == "zero_shot"
    assert registry.name_of("methods", Foreign) == "whole_module"
    monkeypatch.setattr(registry, "entry_points", lambda group: [])
    with pytest.raises(UnknownNameError, match=r"captune\.methods"):
        registry.name_of("methods", Foreign)


@pytest.mark.parametrize(("classes", "found"), [((), "none"), (("A", "B"), "A, B")])
def test_a_module_defines_exactly_one_plugin(classes: tuple[str, ...], found: str) -> None:
    module = ModuleType("two")
    for name in classes:
        setattr(module, name, type(name, (Method,), {"__module__": "two"}))
    with pytest.raises(InputError, match=f"exactly one Method class, found: {found}"):
        registry._plugin_class("methods", module)
