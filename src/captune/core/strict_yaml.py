"""YAML without surprises: no aliases, no duplicate keys, no Python objects, and 1e-3 is a number."""

from __future__ import annotations

import re
from typing import Any

import yaml

ERRORS = (yaml.YAMLError, ValueError, RecursionError)
"""What reading can raise; a date such as 2024-99-99 is a ValueError."""


def load_yaml(text: str) -> Any:  # noqa: ANN401 (anything that YAML can hold)
    """Return the content of YAML text."""
    return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 (a safe loader, made strict below)


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the nodes of YAML text, with their lines, in which every scalar is text."""
    return yaml.compose(text, Loader=_PlainLoader)


def describe_error(error: Exception) -> str:
    """Return what is wrong with a text; the parser's own message may quote very long lines."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply."
    return "\n".join(line[:200] for line in str(error).splitlines()[:8])


class _NoAliases:
    """Reject aliases: a few lines of them can expand to gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next node, unless it is an alias."""
        if self.check_event(yaml.AliasEvent):  # type: ignore[attr-defined]
            event = self.peek_event()  # type: ignore[attr-defined]
            raise yaml.composer.ComposerError(None, None, "aliases such as *name are not supported", event.start_mark)
        return super().compose_node(parent, index)  # type: ignore[misc]


class _StrictLoader(_NoAliases, yaml.SafeLoader):
    """A safe loader that also rejects duplicate keys."""


class _PlainLoader(_NoAliases, yaml.BaseLoader):
    """A loader that reads every scalar as text."""


def _strict_mapping(loader: _StrictLoader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    seen = set[str]()
    for key in map(str, keys):
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", node.start_mark)
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=deep)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _strict_mapping)
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)
