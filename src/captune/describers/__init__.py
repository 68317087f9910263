"""Providers of class descriptions; the file name is the provider in `provider:argument`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from captune.describers._batch import Descriptions as Descriptions
    from captune.describers._batch import describe_classes as describe_classes
    from captune.describers._file_format import read_descriptions as read_descriptions
    from captune.describers._file_format import write_descriptions as write_descriptions
    from captune.describers._patience import Patience as Patience
    from captune.describers.base import Describer as Describer
    from captune.describers.base import DescriptionRequest as DescriptionRequest
    from captune.describers.base import open_describer as open_describer

_HOMES = {
    "Describer": "base",
    "DescriptionRequest": "base",
    "Descriptions": "_batch",
    "Patience": "_patience",
    "describe_classes": "_batch",
    "open_describer": "base",
    "read_descriptions": "_file_format",
    "write_descriptions": "_file_format",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 (the type checker reads the imports above)
    """Import public names when they are first used, so that listing providers stays light."""
    if name in _HOMES:
        return getattr(import_module(f"captune.describers.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'captune.describers' has no attribute {name!r}")
