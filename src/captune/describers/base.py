"""Describers: from a class name to sentences that describe what its images look like."""

from __future__ import annotations

import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from captune.core.errors import DescriberError, raise_all
from captune.core.settings import Positive, Rate
from captune.core.text import is_unicode
from captune.core.wording import option
from captune.describers._cache import AnswerCache

PAPER_PROMPT = "Please describe the most distinguishing visual features of [CLS], in one sentence."
CLASS_PLACE = "[CLS]"


@dataclass(frozen=True)
class RequestLimits:
    """How patiently a language model is queried.

    Attributes:
        parallel: Classes that are queried at the same time.
        timeout: Seconds to wait for a connection or for the next bytes of a reply before trying again.
        attempts: How often a request is sent when the server is busy, broken or silent.
        deadline: Seconds after which a question is given up, with all its attempts and waits.
        reply_attempts: How often a question is asked when the reply is empty, unreadable, too long or a refusal.
        longest_reply: Maximum number of characters in a description.
        largest_response: Maximum number of bytes in a response of the server.
        give_up_after: Consecutive classes without any reply after which the others are left for a later run.
    """

    parallel: Positive = 8
    timeout: Rate = 60.0
    attempts: Positive = 5
    deadline: Rate = 180.0
    reply_attempts: Positive = 3
    longest_reply: Positive = 600
    largest_response: Positive = 1 << 20
    give_up_after: Positive = 3


@dataclass(frozen=True)
class DescriptionRequest:
    """A question about one class.

    Attributes:
        name: The class name.
        phrase: What the images show, with one {} for the name, e.g. "a satellite photo of {}".
        n: The number of descriptions.
        prompt: The question, with one [CLS] for the phrase.
    """

    name: str
    phrase: str = "{}"
    n: int = 5
    prompt: str = PAPER_PROMPT

    def __post_init__(self) -> None:
        problems = []
        if not self.name.strip():
            problems.append("the class name is empty")
        if self.phrase.count("{}") != 1 or self.phrase.replace("{}", "").count("{"):
            problems.append(f"phrase {self.phrase!r}: expected one {{}}, as in 'a satellite photo of {{}}'")
        if self.prompt.count(CLASS_PLACE) != 1:
            problems.append(f"prompt {self.prompt!r}: expected one {CLASS_PLACE}, as in {PAPER_PROMPT!r}")
        if self.n < 1:
            problems.append(f"n = {self.n}: expected at least 1 description")
        raise_all(problems, "This request for descriptions is invalid")

    @property
    def question(self) -> str:
        """Return the complete question."""
        return self.prompt.replace(CLASS_PLACE, self.phrase.replace("{}", self.name))


class ServerError(DescriberError):
    """A server that gave no usable response within the limits; a later run can continue."""


class SetupError(DescriberError):
    """A server that rejects every question until the key, the model or the address is corrected."""


class Describer(ABC):
    """A source of descriptions; `argument` is the part of its id after the colon."""

    is_remote: ClassVar[bool] = False
    """Whether querying several classes at the same time saves time."""

    def __init__(
        self, argument: str = "", *, cache: AnswerCache | None = None, limits: RequestLimits | None = None
    ) -> None:
        self.argument = argument
        self.cache = cache
        self.limits = limits or RequestLimits()
        self.remarks: dict[str, str] = {}
        """Why a class has fewer descriptions than requested, by class name."""

    @abstractmethod
    def describe(self, request: DescriptionRequest) -> list[str]:
        """Return up to n sentences; an empty list, or a DescriberError with the reason, leaves the class its name."""

    def cancel(self) -> None:  # noqa: B027 (most describers have nothing to cancel)
        """Give up the questions in progress and ask no more; called from another thread when a run is interrupted."""


PLUGIN_BASE = Describer


class FunctionDescriber(Describer):
    """Calls a Python function with the class name; it returns a sentence or a list of sentences."""

    def __init__(self, function: Callable[[str], str | Sequence[str] | None], identifier: str = "") -> None:
        super().__init__(identifier or getattr(function, "__qualname__", type(function).__name__))
        self._function = function

    def describe(self, request: DescriptionRequest) -> list[str]:
        """Return the first n sentences of a class."""
        try:
            answer = self._function(request.name)
        except Exception as error:  # whatever a person's function raises
            raise DescriberError(
                f"the describer raised {type(error).__name__} for {request.name!r}: {error}"
            ) from error
        sentences = [answer] if isinstance(answer, str) else list(answer or ())
        if not all(isinstance(sentence, str) and sentence.strip() and is_unicode(sentence) for sentence in sentences):
            raise DescriberError(f"the describer returned {answer!r} for {request.name!r}, expected sentences")
        return sentences[: request.n]


def describer_of(source: object) -> Describer | None:
    """Return the describer that a Python object is or stands for, or None for an id."""
    if isinstance(source, Describer):
        return source
    if isinstance(source, Mapping):
        digest = hashlib.blake2b(json.dumps(dict(source), default=str).encode(), digest_size=8).hexdigest()
        return FunctionDescriber(source.get, f"mapping-{digest}")
    return FunctionDescriber(source) if callable(source) else None


def open_describer(
    identifier: str, cache_folder: str | Path | None = None, limits: RequestLimits | None = None
) -> Describer:
    """Return the describer of an id such as 'openai:gpt-4o-mini', 'file:descriptions.yaml' or 'none'."""
    from captune.core import registry

    source, argument = registry.split_id("describers", identifier, "openai:gpt-4o-mini")
    cache = AnswerCache(Path(cache_folder).expanduser()) if cache_folder else None
    describer: Describer = registry.load("describers", source)(argument, cache=cache, limits=limits)
    return describer


@dataclass(frozen=True)
class Descriptions:
    """Sentences by class name, and why a class has none or fewer than requested, both in the order of the names."""

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
    """Describe classes, several at a time; a problem with one class does not stop the others.

    When the server stops answering, the rest is left for a later run, which finds the answers so far in the cache.
    DescriberError only when no class was described and none can be: a wrong key, a wrong model, no server.
    """
    requests = [DescriptionRequest(name, phrase, n, prompt) for name in dict.fromkeys(names)]
    queue = _Queue(describer, advance)
    workers = describer.limits.parallel if describer.is_remote else 1
    with ThreadPoolExecutor(max_workers=max(1, min(workers, len(requests)))) as pool:
        try:
            futures = [pool.submit(queue.describe, request) for request in requests]
            # An exception counts as soon as it is raised, although earlier classes may still wait for their replies.
            for future in as_completed(futures):
                future.result()
        except BaseException:
            queue.stop("the run was interrupted")
            describer.cancel()
            raise
    outcomes = [future.result() for future in futures]
    found = {request.name: sentences for request, (sentences, _) in zip(requests, outcomes, strict=True) if sentences}
    problems = {request.name: problem for request, (_, problem) in zip(requests, outcomes, strict=True) if problem}
    if queue.stopped and not found:
        raise DescriberError(f"{queue.stopped} Fix this, or use the class names alone: {option('describer', 'none')}.")
    return Descriptions(found, problems)


class _Queue:
    """What the threads share: whether there is any point in asking further questions."""

    def __init__(self, describer: Describer, advance: Callable[[int], None] | None) -> None:
        self.stopped = ""
        self._describer = describer
        self._advance = advance
        self._lock = threading.Lock()
        self._failures = 0

    def stop(self, reason: str) -> None:
        """Skip the classes that have not been started."""
        with self._lock:
            self.stopped = self.stopped or reason

    def describe(self, request: DescriptionRequest) -> tuple[list[str], str]:
        """Return the sentences of one class and what went wrong."""
        if self.stopped:
            return [], f"not asked, because of an earlier problem: {self.stopped}"
        try:
            sentences = self._describer.describe(request)
        except DescriberError as error:
            self._count(error)
            return [], str(error)
        finally:
            if self._advance is not None:
                with self._lock:
                    self._advance(1)
        with self._lock:
            self._failures = 0
        remark = self._describer.remarks.get(request.name, "")
        return sentences, f"only {len(sentences)} of {request.n} replies were usable: {remark}" if remark else ""

    def _count(self, error: DescriberError) -> None:
        """Stop when nothing can succeed, or when several classes in a row got no reply."""
        with self._lock:
            self._failures += isinstance(error, ServerError)
            is_hopeless = isinstance(error, SetupError) or self._failures >= self._describer.limits.give_up_after
        if is_hopeless:
            self.stop(str(error))
