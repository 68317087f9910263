"""What a describer is: from a class name to sentences that say how its images look."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from captune.describers._answers import AnswerCache
from captune.describers._patience import Patience
from captune.errors import DescriberError, raise_all

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
    from captune import registry

    source, argument = registry.split_id("describers", identifier, "openai:gpt-4o-mini")
    cache = AnswerCache(Path(cache_folder).expanduser()) if cache_folder else None
    describer: Describer = registry.load("describers", source)(argument, cache=cache, patience=patience)
    return describer
