"""Describers: from a class name to sentences that describe what its images look like."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import ClassVar

from captune.core import registry
from captune.core.errors import DescriberError, InputError
from captune.core.files import digest, read_json, write_json
from captune.core.text import is_unicode, option, plain_sentence

PAPER_PROMPT = "Please describe the most distinguishing visual features of [CLS], in one sentence."
PAIR_PROMPT = "How does [CLS] look different from [OTHER]? Please describe only the first, in one sentence."


@dataclass(frozen=True)
class RequestLimits:
    """How patiently a language model is queried."""

    parallel: int = 8  # classes at the same time
    timeout: float = 60.0  # seconds until the next bytes of a reply
    attempts: int = 5  # if the server is busy, broken or silent
    deadline: float = 180.0  # seconds for a question, with all its attempts and waits
    reply_attempts: int = 3  # if a reply is empty, unreadable, too long or a refusal
    longest_reply: int = 600  # characters
    give_up_after: int = 3  # consecutive classes without any reply


def pair_key(name: str, other: str) -> str:
    """Return the name of a pair of classes in files and answers."""
    return f"{name} vs. {other}"


@dataclass(frozen=True)
class DescriptionRequest:
    """A question about one class, to be answered n times."""

    name: str
    phrase: str = "{}"  # what the images show, with one {} for the name, e.g. "a satellite photo of {}"
    n: int = 5
    prompt: str = PAPER_PROMPT  # with one [CLS] for the phrase
    other: str = ""  # the name of a class from which the description must tell this one, [OTHER] in the prompt

    def __post_init__(self) -> None:
        if self.phrase.count("{}") != 1 or self.phrase.replace("{}", "").count("{"):
            raise InputError(f"domain: expected one {{}}, as in 'a satellite photo of {{}}', got {self.phrase!r}.")

    @property
    def key(self) -> str:
        """Return the name by which descriptions are looked up: of a class, or of a pair, as in `lake vs. river`."""
        return pair_key(self.name, self.other) if self.other else self.name

    @property
    def question(self) -> str:
        """Return the complete question."""
        asked = self.prompt.replace("[OTHER]", self.phrase.replace("{}", self.other))
        return asked.replace("[CLS]", self.phrase.replace("{}", self.name))


@dataclass(frozen=True)
class AnswerCache:
    """A folder with one JSON file for each answer of a language model, so that no question is asked twice."""

    folder: Path

    def find(self, **question: str | int) -> str | None:
        """Return the answer to a question with these facts; a damaged file counts as none."""
        try:
            answer = read_json(self._path(question))["answer"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return answer if isinstance(answer, str) and answer else None

    def keep(self, answer: str, **question: str | int) -> None:
        """Write an answer; a kill at any moment leaves a whole file or none."""
        write_json(self._path(question), {**question, "answer": answer})

    def _path(self, question: Mapping[str, str | int]) -> Path:
        key = digest(json.dumps(list(question.values())).encode())
        return self.folder / "descriptions" / key[:2] / f"{key}.json"


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
        self.argument, self.cache, self.limits = argument, cache, limits or RequestLimits()
        self.remarks: dict[str, str] = {}
        """Why a class has fewer descriptions than requested, by class name."""

    @abstractmethod
    def describe(self, request: DescriptionRequest) -> list[str]:
        """Return up to n sentences; an empty list, or a DescriberError with the reason, leaves the class its name."""


PLUGIN_BASE = Describer


class FunctionDescriber(Describer):
    """Calls a Python function with the class name; it returns a sentence or a list of sentences."""

    def __init__(self, function: Callable[[str], str | Sequence[str] | None], identifier: str = "") -> None:
        super().__init__(identifier or getattr(function, "__qualname__", type(function).__name__))
        self._function = function

    def describe(self, request: DescriptionRequest) -> list[str]:
        """Return the first n sentences of a class."""
        try:
            answer = self._function(request.key)
        except Exception as error:  # whatever a person's function raises
            raise DescriberError(f"the describer raised {type(error).__name__} for {request.key!r}: {error}") from error
        sentences = [answer] if isinstance(answer, str) else list(answer or ())
        if not all(isinstance(sentence, str) and sentence.strip() and is_unicode(sentence) for sentence in sentences):
            raise DescriberError(f"the describer returned {answer!r} for {request.key!r}, expected sentences")
        return sentences[: request.n]


def describer_of(source: object) -> Describer | None:
    """Return the describer that a Python object is or stands for, or None for an id."""
    if isinstance(source, Describer):
        return source
    if isinstance(source, Mapping):
        return FunctionDescriber(source.get, f"mapping-{digest(json.dumps(dict(source), default=str).encode())[:16]}")
    return FunctionDescriber(source) if callable(source) else None


def open_describer(
    identifier: str, cache_folder: str | Path | None = None, limits: RequestLimits | None = None
) -> Describer:
    """Return the describer of an id such as 'openai:gpt-4o-mini', 'file:descriptions.yaml' or 'none'."""
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
    names: Sequence[str | tuple[str, str]],
    *,
    phrase: str = "{}",
    n: int = 5,
    prompt: str = PAPER_PROMPT,
    advance: Callable[[int], None] | None = None,
) -> Descriptions:
    """Describe classes, or the first of pairs, several at a time; a problem with one does not stop the others.

    When the server stops answering, the rest is left for a later run, which finds the answers so far in the cache.
    DescriberError only when no class was described and none can be: a wrong key, a wrong model, no server.
    """
    pairs = [(name, "") if isinstance(name, str) else name for name in dict.fromkeys(names)]
    requests = [DescriptionRequest(name, phrase, n, prompt, other) for name, other in pairs]
    found: dict[str, list[str]] = {}
    problems: dict[str, str] = {}
    stopped, n_failures = "", 0

    def ask(request: DescriptionRequest) -> tuple[str, list[str] | BaseException]:
        nonlocal stopped
        if stopped:
            return request.key, DescriberError(f"not asked, because of an earlier problem: {stopped}")
        try:
            return request.key, describer.describe(request)
        except BaseException as error:  # a thread that dies would leave its question open
            stopped = str(error) if isinstance(error, SetupError) else stopped
            return request.key, error

    # The threads are daemons: a run that is interrupted waits for no server.
    n_threads = min(describer.limits.parallel if describer.is_remote else 1, len(requests))
    with ThreadPool(max(1, n_threads)) as pool:
        for key, answer in pool.imap_unordered(ask, requests):
            if advance is not None:
                advance(1)
            if isinstance(answer, list):
                n_failures = 0
                problems |= {key: describer.remarks[key]} if key in describer.remarks else {}
                found[key] = [plain_sentence(sentence) for sentence in answer]
                continue
            if not isinstance(answer, DescriberError):
                raise answer
            problems[key] = str(answer)
            n_failures += isinstance(answer, ServerError)
            if n_failures >= describer.limits.give_up_after:
                stopped = stopped or str(answer)
    keys = [request.key for request in requests]
    found = {key: found[key] for key in keys if found.get(key)}
    if stopped and not found:
        raise DescriberError(f"{stopped} Fix this, or use the class names alone: {option('describer', 'none')}.")
    return Descriptions(found, {key: problems[key] for key in keys if key in problems})
