"""How long a describer waits and how often it asks again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from captune.core.settings import Positive


@dataclass(frozen=True)
class Patience:
    """How a language model is asked.

    Attributes:
        parallel: Classes that are asked about at once.
        timeout: Seconds after which a question counts as lost.
        attempts: How often a question is put when the server is busy, broken or silent.
        first_wait: Seconds before the second attempt; every further wait is twice as long.
        longest_wait: Seconds that no wait exceeds, also when the server asks for more.
        reply_attempts: How often a question is put when the reply is empty, a refusal or too long.
        longest_reply: Characters that a description may have.
        give_up_after: Classes in a row without any answer, after which the others are left for a later run.
    """

    parallel: Positive = 8
    timeout: Annotated[float, Gt(0)] = 60.0
    attempts: Positive = 5
    first_wait: Annotated[float, Ge(0)] = 1.0
    longest_wait: Annotated[float, Ge(0)] = 60.0
    reply_attempts: Positive = 3
    longest_reply: Positive = 600
    give_up_after: Positive = 3

    def wait(self, attempt: int, asked_for: float | None = None) -> float:
        """Return the seconds to wait after the attempt of this number, counted from 0."""
        return min(self.longest_wait, max(self.first_wait * 2.0**attempt, asked_for or 0.0))
