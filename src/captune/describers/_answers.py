"""Answers on disk, so that no question is asked twice, and answers without what must not be kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from captune.core.files import write_json

_SECRETS = (
    re.compile(r"\b(sk|rk|pk)-[\w*.-]{6,}"),
    re.compile(r"(?i)\b(?:bearer|api[-_ ]?key)['\"]?\s*[:=]?\s*['\"]?(?=\S*\d)[\w*.~+/-]{8,}=*"),
    re.compile(r"(?<=://)[^/\s@]+@"),
)
_KEY_VARIABLE = re.compile(r"(API_KEY|TOKEN|SECRET)$")


@dataclass(frozen=True)
class AnswerCache:
    """A folder with one JSON file for each answer, keyed by provider, model, prompt and index."""

    folder: Path

    def find(self, provider: str, model: str, prompt: str, index: int) -> str | None:
        """Return a kept answer; a damaged file counts as none."""
        try:
            kept = json.loads(self._path(provider, model, prompt, index).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        answer = kept.get("answer") if isinstance(kept, dict) else None
        return answer if isinstance(answer, str) and answer else None

    def keep(self, provider: str, model: str, prompt: str, index: int, answer: str) -> None:
        """Keep an answer; a kill at any moment leaves a whole file or none."""
        content = {"provider": provider, "model": model, "prompt": prompt, "index": index, "answer": answer}
        write_json(self._path(provider, model, prompt, index), content)

    def _path(self, provider: str, model: str, prompt: str, index: int) -> Path:
        key = hashlib.blake2b(json.dumps([provider, model, prompt, index]).encode(), digest_size=16).hexdigest()
        return self.folder / "descriptions" / key[:2] / f"{key}.json"


def redact(text: str) -> str:
    """Return a text without keys: those of the environment, and whatever looks like one."""
    for name, value in os.environ.items():
        if _KEY_VARIABLE.search(name) and len(value) >= 8:
            text = text.replace(value, "[key]")
    for pattern in _SECRETS:
        text = pattern.sub("[key]", text)
    return text
