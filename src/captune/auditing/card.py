"""What an audit folder says: audit.json, read back and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from captune.core.errors import RunFolderError
from captune.core.files import is_file

FORMAT, VERSION = "captune-audit", 1
CARD = "audit.json"


def holds_audit(folder: str | Path) -> bool:
    """Return whether a folder is that of an audit."""
    return is_file(Path(folder) / CARD)


def read_audit(folder: str | Path) -> dict[str, Any]:
    """Return what audit.json says, or a clear error for what is no audit."""
    path = Path(folder) / CARD
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{str(path)!r} cannot be read: {error}. Make one with captune audit.") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise RunFolderError(f"{str(path)!r} is not a {FORMAT} file.")
    if facts.get("version") not in range(1, VERSION + 1):
        raise RunFolderError(
            f"The audit {str(folder)!r} has format version {facts.get('version')!r}, this captune reads up to "
            f"{VERSION}. Upgrade captune: pip install -U captune."
        )
    return facts
