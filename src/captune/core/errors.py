"""Exceptions; each message names the value, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


class CaptuneError(Exception):
    """A problem that the user can fix; the command line prints it without a traceback."""


class InputError(CaptuneError):
    """Invalid images, class names, labels or settings."""


class UnknownNameError(InputError):
    """A name that is not registered; the message suggests similar ones."""


class MissingExtraError(CaptuneError):
    """An optional dependency that is not installed; the message has the pip command."""


class ModelError(CaptuneError):
    """Model weights that are missing, incomplete or in an unexpected format."""


class RunFolderError(CaptuneError):
    """A run folder or file that is missing, damaged, changed or written by a newer version."""


class DescriberError(CaptuneError):
    """A language model that failed or returned an unusable answer."""


class TrainingError(CaptuneError):
    """Training that cannot continue, for example because the loss is not finite."""


class ProcessLostError(CaptuneError):
    """A process of a distributed run was lost, so the others cannot continue."""


class ToldElsewhereError(CaptuneError):
    """A problem that the first process reports; the others exit without repeating it."""


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
    """Raise one InputError that lists all problems, if there are any; a list inside the list is indented."""
    listed = [problem.replace("\n", "\n  ") for problem in problems]
    if listed:
        raise InputError("\n  - ".join([f"{heading}:", *listed]))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'a' or 'b'?` for the known names most similar to a wrong one, or an empty string."""
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    close = [lowered[match] for match in get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.5)]
    return f" Did you mean {' or '.join(repr(match) for match in close)}?" if close else ""


def import_extra(module: str, extra: str) -> Any:  # noqa: ANN401 (a module)
    """Import a module of an optional dependency, or raise the error with the pip command."""
    try:
        return import_module(module)
    except ImportError as error:
        raise missing_extra(module.split(".", maxsplit=1)[0], extra) from error


def missing_extra(package: str, extra: str) -> MissingExtraError:
    """Return the error for a missing optional package, with the pip command."""
    return MissingExtraError(
        f"This needs the package {package!r}, which is not installed. Install it with: pip install 'captune[{extra}]'"
    )


def damaged_model(problem: str) -> ModelError:
    """Return the error for a model whose weights or files cannot be right."""
    return ModelError(f"{problem} The model is damaged: download or save it again.")


def require(extra: str, *packages: str) -> None:
    """Raise an error with the pip command if a package of an extra is not installed."""
    for package in packages:
        import_extra(package, extra)
