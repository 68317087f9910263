"""Many classes at once: what was found, what was not and why."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from captune.describers.base import PAPER_PROMPT, Describer, DescriptionRequest, ServerError, SetupError
from captune.errors import DescriberError


@dataclass(frozen=True)
class Descriptions:
    """Sentences by class name, and why a class has none or fewer than were asked for.

    A class without sentences keeps its name. Both dictionaries are in the order in which the names were given.
    """

    found: dict[str, list[str]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def describe_classes(
    describer: Describer,
    names: Sequence[str],
    *,
    phrase: str = "{}",
    n: int = 5,
    prompt: str = PAPER_PROMPT,
    advance: Callable[[int], None] | None = None,
) -> Descriptions:
    """Describe classes, several at once; problems of some classes do not stop the others.

    When the server stops answering, the rest is left for a later run, which finds the answers so far in the cache.
    DescriberError only when no class got an answer and none can: a wrong key, a wrong model, a server that is away.
    """
    requests = [DescriptionRequest(name, phrase, n, prompt) for name in dict.fromkeys(names)]
    asking = _Asking(describer, advance)
    workers = describer.patience.parallel if describer.asks_server else 1
    with ThreadPoolExecutor(max_workers=max(1, min(workers, len(requests) or 1))) as pool:
        try:
            outcomes = list(pool.map(asking.describe, requests))
        except BaseException:
            asking.stop("the run was interrupted")
            raise
    found = {request.name: sentences for request, (sentences, _) in zip(requests, outcomes, strict=True) if sentences}
    problems = {request.name: problem for request, (_, problem) in zip(requests, outcomes, strict=True) if problem}
    if asking.stopped and not found:
        raise DescriberError(f"{asking.stopped} Mend it, or go on with the class names alone: --describer none.")
    return Descriptions(found, problems)


class _Asking:
    """The state that the threads share: whether asking still makes sense."""

    def __init__(self, describer: Describer, advance: Callable[[int], None] | None) -> None:
        self.stopped = ""
        self._describer = describer
        self._advance = advance
        self._lock = threading.Lock()
        self._failures = 0

    def stop(self, reason: str) -> None:
        """Let the classes that nobody asked about yet be."""
        with self._lock:
            self.stopped = self.stopped or reason

    def describe(self, request: DescriptionRequest) -> tuple[list[str], str]:
        """Return the sentences of one class and what went wrong."""
        if self.stopped:
            return [], f"not asked, because of an earlier problem: {self.stopped}"
        try:
            sentences = self._describer.describe(request)
        except DescriberError as error:
            self._note(error)
            return [], str(error)
        finally:
            if self._advance is not None:
                with self._lock:
                    self._advance(1)
        with self._lock:
            self._failures = 0
        remark = self._describer.remarks.get(request.name, "")
        return sentences, f"only {len(sentences)} of {request.n} replies were usable: {remark}" if remark else ""

    def _note(self, error: DescriberError) -> None:
        """Stop at once when nothing can succeed, or when several classes in a row got no answer."""
        if isinstance(error, SetupError):
            self.stop(str(error))
        elif isinstance(error, ServerError):
            with self._lock:
                self._failures += 1
                is_enough = self._failures >= self._describer.patience.give_up_after
            if is_enough:
                self.stop(str(error))
