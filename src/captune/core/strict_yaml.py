"""YAML without surprises: no aliases, no duplicate keys, no Python objects, and 1e-3 is a number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from captune.core.errors import InputError

MOST_CHARACTERS = 1 << 26
ERRORS = (yaml.YAMLError, ValueError, RecursionError)
"""What reading can raise; a date such as 2024-99-99 is a ValueError."""


def load_yaml(text: str, as_text: bool = False) -> Any:  # noqa: ANN401 (anything that YAML can hold)
    """Return the content of YAML text; with `as_text`, every scalar is text, such as a class called "on" or "747"."""
    return yaml.load(text, Loader=_TextLoader if as_text else _StrictLoader)  # noqa: S506 (made strict below)


def read_yaml_file(path: str | Path, what: str, as_text: bool = False) -> Any:  # noqa: ANN401
    """Return the content of a YAML file, or raise an InputError that says what the file should be."""
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            text = file.read(MOST_CHARACTERS + 1)
        if len(text) > MOST_CHARACTERS:
            raise InputError(f"The {what} {str(path)!r} has more than {MOST_CHARACTERS:,} characters.")
        return load_yaml(text, as_text)
    except OSError as error:
        raise InputError(f"The {what} {str(path)!r} cannot be read: {error.strerror}.") from error
    except ERRORS as error:
        # The parser's own message may quote very long lines.
        reason = "\n".join(line[:200] for line in str(error).splitlines()[:8])
        reason = "it is nested too deeply." if isinstance(error, RecursionError) else reason
        raise InputError(f"The {what} {str(path)!r} is not valid YAML: {reason}") from error


class _Strict:
    """Reject duplicate keys, and aliases: a few lines of them can expand to gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next node, unless it is an alias."""
        if self.check_event(yaml.AliasEvent):  # type: ignore[attr-defined]
            mark = self.peek_event().start_mark  # type: ignore[attr-defined]
            raise yaml.composer.ComposerError(None, None, "aliases such as *name are not supported", mark)
        return super().compose_node(parent, index)  # type: ignore[misc]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping, unless a key is repeated."""
        keys = [str(self.construct_object(key, deep=True)) for key, _ in node.value]  # type: ignore[attr-defined]
        if len(set(keys)) < len(keys):
            message = f"duplicate key {max(keys, key=keys.count)!r}"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)
        return super().construct_mapping(node, deep=deep)  # type: ignore[misc]


class _StrictLoader(_Strict, yaml.SafeLoader):
    """A safe loader, with every number in scientific notation."""


class _TextLoader(_Strict, yaml.BaseLoader):
    """A loader that reads every scalar as text."""


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)
