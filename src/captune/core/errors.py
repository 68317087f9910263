"""The exception tree: every message names the value, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


class CaptuneError(Exception):
    """Any problem that a person can understand and mend; the command line prints it without a traceback."""


class InputError(CaptuneError):
    """Images, class names, labels or settings that cannot be used as they are."""


class UnknownNameError(InputError):
    """A name that is in no registry, answered with the nearest right ones."""


class MissingExtraError(CaptuneError):
    """An optional dependency that is not installed, answered with the command that installs it."""


class ModelError(CaptuneError):
    """Weights that are missing, incomplete or of an unexpected format."""


class RunFolderError(CaptuneError):
    """A run folder or classifier file that is missing, damaged, tampered with or too new."""


class DescriberError(CaptuneError):
    """A language model that did not answer usefully."""


class TrainingError(CaptuneError):
    """A training that cannot go on, for example because the loss is no longer a number."""


class ProcessLostError(CaptuneError):
    """One of several processes that work together is gone, so the others cannot go on."""


class ToldElsewhereError(CaptuneError):
    """A problem of the first process, which has told it; the others end without repeating it."""


class ProblemList(list[str]):
    """Problems that are reported together."""

    def collect(self, step: Callable[[], T], place: str | None = None) -> T | None:
        """Return the result of a step, or add its InputError: whole, or with a place, as one problem per line."""
        try:
            return step()
        except InputError as error:
            head, *listed = str(error).split("\n  - ")
            self.extend([str(error)] if place is None else [f"{place}{problem}" for problem in listed or [head]])
            return None


def raise_all(problems: Iterable[str], heading: str) -> None:
    """Raise one InputError that lists every problem, or return when there is none."""
    listed = list(problems)
    if listed:
        raise InputError("\n  - ".join([f"{heading}:", *listed]))


def nearest(name: str, known: Iterable[str], most: int = 3) -> str:
    """Return ` Did you mean 'a' or 'b'?` for the known names closest to a wrong one, or an empty string."""
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    close = [lowered[match] for match in get_close_matches(name.lower(), list(lowered), n=most, cutoff=0.5)]
    return f" Did you mean {' or '.join(repr(match) for match in close)}?" if close else ""


def missing_extra(package: str, extra: str) -> MissingExtraError:
    """Return the error for an optional package that is not installed, with the pip command."""
    return MissingExtraError(
        f"This needs the package {package!r}, which is not installed. Install it with: pip install 'captune[{extra}]'"
    )
