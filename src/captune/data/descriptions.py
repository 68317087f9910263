"""Description files: YAML with class names and lists of sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from captune.core import strict_yaml
from captune.core.errors import InputError, raise_all
from captune.core.files import write_whole
from captune.core.strict_yaml import compose_yaml, describe_error
from captune.core.text import is_unicode, one_form


def write_descriptions(path: str | Path, descriptions: Mapping[str, Sequence[str]]) -> None:
    """Write a descriptions file, to edit and to pass as `file:PATH`."""
    content = {str(name): [str(sentence) for sentence in sentences] for name, sentences in descriptions.items()}
    text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False, width=10_000)
    write_whole(Path(path), text)


def read_descriptions(path: str | Path) -> dict[str, list[str]]:
    """Read a descriptions file, or raise one error that lists all problems by line."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        # Every scalar is read as text: a class can be called "on" or "747".
        root = compose_yaml(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"The descriptions file {str(path)!r} cannot be read: {reason}.") from error
    except strict_yaml.ERRORS as error:
        raise InputError(f"The descriptions file {str(path)!r} is not valid YAML: {describe_error(error)}") from error
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"The descriptions file {str(path)!r} must map class names to lists of sentences.")
    found: dict[str, list[str]] = {}
    problems: list[str] = []
    for key, value in root.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or not key.value.strip():
            problems.append(f"line {line}: a class name must be text")
            continue
        name = one_form(key.value)
        if name in found:
            problems.append(f"line {line}: duplicate class {name!r}")
        sentences, wrong = _sentences(name, value)
        found[name] = sentences
        problems += wrong
    raise_all(problems, f"The descriptions file {str(path)!r} cannot be used")
    return found


def _sentences(name: str, node: yaml.Node) -> tuple[list[str], list[str]]:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        return [], [f"line {line}: {name!r} must have a list of sentences, each after '- '"]
    sentences, problems = [], []
    for entry in node.value:
        text = entry.value.strip() if isinstance(entry, yaml.ScalarNode) else ""
        if text and is_unicode(text):
            sentences.append(text)
        else:
            problems.append(f"line {entry.start_mark.line + 1}: a sentence of {name!r} is empty or not text")
    return sentences, problems
