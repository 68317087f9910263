"""Describers that ask a server: cache, retries with growing waits, and a look at every reply."""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from captune.core.errors import DescriberError
from captune.describers._answers import redact
from captune.describers.base import Describer, DescriptionRequest, ServerError

_THOUGHTS = re.compile(r"<think>.*?(</think>|\Z)", flags=re.DOTALL)
_REFUSAL = re.compile(
    r"(i['’]?\s?a?m (very |so )?(sorry|unable|not able)|sorry\b|my apologies|i apologi[sz]e|as an ai\b"
    r"|unfortunately,? i\b|i (cannot|can not|can['’]?t|won['’]?t|do not|don['’]?t)\b)",
    flags=re.IGNORECASE,
)


class BusyError(Exception):
    """A question that may succeed when it is put again; `wait` is how many seconds the server asks for."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait = wait


@dataclass(frozen=True)
class Reply:
    """What the server said, and whether it says itself that it refused or was cut off."""

    text: str
    is_refused: bool = False
    is_cut_off: bool = False


class AskingDescriber(Describer):
    """A describer that puts one question after the other; a provider gives `model` and `ask`."""

    asks_server = True
    provider: ClassVar[str]

    @property
    @abstractmethod
    def model(self) -> str:
        """Return the model's name."""

    @abstractmethod
    def ask(self, question: str) -> Reply:
        """Put a question once; BusyError when it may be put again, DescriberError when not."""

    def describe(self, request: DescriptionRequest) -> list[str]:
        """Return the usable answers; DescriberError with the reason when there is none."""
        answers, reason = [], ""
        for index in range(request.n):
            answer = self.cache.find(self.provider, self.model, request.question, index) if self.cache else None
            if answer is None:
                answer, problem = self._usable_answer(request.question)
                reason = problem or reason
                if answer is None:
                    continue
                if self.cache:
                    self.cache.keep(self.provider, self.model, request.question, index, answer)
            answers.append(answer)
        if not answers:
            raise DescriberError(reason)
        if reason:
            self.remarks[request.name] = reason
        return answers

    def _usable_answer(self, question: str) -> tuple[str | None, str]:
        """Ask until a reply is usable; return it, or none and what was wrong with the last one."""
        problem = ""
        for _ in range(self.patience.reply_attempts):
            reply = self._ask_patiently(question)
            text = clean(reply.text)
            problem = self._problem(reply, text)
            if not problem:
                return text, ""
        return None, f"{problem} ({self.patience.reply_attempts} times)"

    def _problem(self, reply: Reply, text: str) -> str:
        """Return what makes a reply unusable, or an empty string."""
        if reply.is_refused or _REFUSAL.match(text):
            return f"the model refused: {text[:80]!r}" if text else "the model refused"
        if not text:
            return "the reply was empty"
        if reply.is_cut_off or len(text) > self.patience.longest_reply:
            return f"the reply was too long ({len(text)} characters, {self.patience.longest_reply} allowed)"
        return ""

    def _ask_patiently(self, question: str) -> Reply:
        """Ask with growing waits while the server is busy, broken or silent."""
        reason = ""
        for attempt in range(self.patience.attempts):
            try:
                return self.ask(question)
            except BusyError as error:
                reason = redact(error.reason)
                if attempt + 1 < self.patience.attempts:
                    time.sleep(self.patience.wait(attempt, error.wait))
        raise ServerError(f"{self.provider}: no answer after {self.patience.attempts} attempts: {reason}")


def clean(text: str) -> str:
    """Return a reply as one line without quotes around it, without thoughts and without keys."""
    line = " ".join(redact(_THOUGHTS.sub(" ", text)).split())
    quotes = {'"': '"', "'": "'", "“": "”", "«": "»"}
    while len(line) >= 2 and quotes.get(line[0]) == line[-1] and line[0] not in line[1:-1]:
        line = line[1:-1].strip()
    return line
