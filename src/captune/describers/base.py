"""What a describer is: from a class name to sentences that say how its images look."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from captune.core.errors import DescriberError, raise_all
from captune.describers._answers import AnswerCache
from captune.describers._patience import Patience

PAPER_PROMPT = "Please describe the most distinguishing visual features of [CLS], in one sentence."
CLASS_PLACE = "[CLS]"


@dataclass(frozen=True)
class DescriptionRequest:
    """What is asked about one class.

    Attributes:
        name: The class name.
        phrase: What the images show, with one {} for the name, e.g. "a satellite photo of {}".
        n: How many descriptions.
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
        raise_all(problems, "This description cannot be asked for")

    @property
    def question(self) -> str:
        """Return the question in full."""
        return self.prompt.replace(CLASS_PLACE, self.phrase.replace("{}", self.name))


class ServerError(DescriberError):
    """A server that did not answer at all, however patiently it was asked; a later run can go on."""


class SetupError(DescriberError):
    """A server that will refuse every question until a person mends something: the key, the model, the address."""


class Describer(ABC):
    """A source of descriptions; `argument` is what stands after the colon of its id.

    A new one is a module of this folder with one such class. One that asks a server question by question derives
    from `captune.describers._asking.AskingDescriber`, which brings the cache and the retries.
    """

    asks_server: ClassVar[bool] = False
    """Whether it is worth asking for several classes at once."""

    def __init__(
        self, argument: str = "", *, cache: AnswerCache | None = None, patience: Patience | None = None
    ) -> None:
        self.argument = argument
        self.cache = cache
        self.patience = patience or Patience()
        self.remarks: dict[str, str] = {}
        """Why a class has fewer descriptions than were asked for, by its name."""

    @abstractmethod
    def describe(self, request: DescriptionRequest) -> list[str]:
        """Return up to n sentences; none when the class should keep its name, DescriberError when it must."""


PLUGIN_BASE = Describer


def open_describer(
    identifier: str, cache_folder: str | Path | None = None, patience: Patience | None = None
) -> Describer:
    """Return the describer of an id such as 'openai:gpt-4o-mini', 'file:descriptions.yaml' or 'none'."""
    from captune.core import registry

    source, argument = registry.split_id("describers", identifier, "openai:gpt-4o-mini")
    cache = AnswerCache(Path(cache_folder).expanduser()) if cache_folder else None
    describer: Describer = registry.load("describers", source)(argument, cache=cache, patience=patience)
    return describer


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
