"""Cards: JSON files whose format and version are checked before anything else in them is used."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from captune.core.errors import RunFolderError
from captune.core.files import digest

T = TypeVar("T")
MAX_BYTES = 1 << 28
MAX_DEPTH = 64
DIGEST = "digest"
"""Key of the digest in a card that must not be edited."""


def read_json(path: Path) -> Any:  # noqa: ANN401 (anything that JSON can hold)
    """Return the content of a JSON file; one that is not JSON, too large or nested too deeply is a ValueError."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError("it is not a regular file")  # reading a pipe could block forever
    if facts.st_size > MAX_BYTES:
        raise ValueError(f"the file is larger than {MAX_BYTES:,} bytes")
    return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str) -> Any:  # noqa: ANN401
    """Return the content of JSON text; text that is not JSON or is nested too deeply is a ValueError."""
    try:
        content = json.loads(text)
        if _depth(content) <= MAX_DEPTH:
            return content
    except RecursionError:
        pass
    raise ValueError(f"the content is nested more than {MAX_DEPTH} levels deep")


def read_card(path: Path, format: str, version: int, missing: str) -> dict[str, Any]:
    """Return the content of a card; `missing` is the error message if there is no such file."""
    try:
        content = read_json(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunFolderError(missing) from error
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{str(path)!r} cannot be read: {error}.") from error
    return check_card(content, str(path), format, version)


def check_card(content: Any, source: str, format: str, version: int) -> dict[str, Any]:  # noqa: ANN401
    """Return the content if it is a card of this format, and not of a newer version."""
    if not isinstance(content, dict) or content.get("format") != format:
        raise RunFolderError(f"{source!r} is not a {format} file.")
    if content.get("version") not in range(1, version + 1):
        raise RunFolderError(
            f"{source!r} has format version {content.get('version')!r}, but this captune reads versions up to "
            f"{version}. Upgrade captune: pip install -U captune."
        )
    return content


def add_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a card with a digest of everything in it."""
    return {**content, DIGEST: _digest_of(content)}


def check_digest(content: Mapping[str, Any], source: str) -> None:
    """Raise an error if a card was changed since it was sealed; cards of captune 0.1.0 have no digest."""
    if content.get(DIGEST) and content[DIGEST] != _digest_of(content):
        raise RunFolderError(
            f"{source!r} does not match its own digest: it was damaged, or edited by hand. Copy it again, or make it "
            "again with captune."
        )


def build_card(cls: type[T], content: dict[str, Any], source: str) -> T:
    """Return a card as a dataclass, or raise an error that lists the fields that are wrong."""
    try:
        return TypeAdapter(cls).validate_python(content)
    except ValidationError as error:
        fields = ", ".join(".".join(map(str, entry["loc"])) for entry in error.errors())
        raise RunFolderError(f"{source!r} is damaged: {fields}.") from error


def _digest_of(content: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps({key: value for key, value in content.items() if key != DIGEST}))
    return digest(json.dumps(plain, sort_keys=True).encode())


def _depth(content: object) -> int:
    """Return the number of nested lists and mappings, without recursion."""
    depth, level = 0, [content]
    while level := [value for value in level if isinstance(value, (dict, list))]:
        depth += 1
        level = [child for value in level for child in (value.values() if isinstance(value, dict) else value)]
    return depth
