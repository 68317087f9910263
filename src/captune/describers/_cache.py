"""Answers of language models on disk, so that no question is asked twice."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from captune.core.cards import read_json
from captune.core.files import digest, write_json


@dataclass(frozen=True)
class Question:
    """What identifies an answer: who was asked where, with which prompt, and for the how-manieth time."""

    provider: str
    address: str
    model: str
    prompt: str
    index: int


@dataclass(frozen=True)
class AnswerCache:
    """A folder with one JSON file for each answer."""

    folder: Path

    def find(self, question: Question) -> str | None:
        """Return a cached answer; a damaged file counts as none."""
        try:
            kept = read_json(self._path(question))
        except (OSError, ValueError):
            return None
        answer = kept.get("answer") if isinstance(kept, dict) else None
        return answer if isinstance(answer, str) and answer else None

    def keep(self, question: Question, answer: str) -> None:
        """Write an answer; a kill at any moment leaves a whole file or none."""
        write_json(self._path(question), {**asdict(question), "answer": answer})

    def _path(self, question: Question) -> Path:
        content = json.dumps(list(asdict(question).values())).encode()
        key = digest(content)
        return self.folder / "descriptions" / key[:2] / f"{key}.json"
