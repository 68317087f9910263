"""Read descriptions from a YAML file, such as one that a run wrote."""

from __future__ import annotations

from typing import Any

from captune.core.errors import DescriberError, InputError, nearest
from captune.core.text import one_form
from captune.data.vocabulary import read_descriptions
from captune.describers.base import Describer, DescriptionRequest


class FileDescriber(Describer):
    """Looks classes up in a file; the argument is its path."""

    def __init__(self, argument: str = "", **options: Any) -> None:  # noqa: ANN401 (those of Describer)
        super().__init__(argument, **options)
        if not argument:
            raise InputError("The describer 'file' needs a path, for example file:descriptions.yaml.")
        self._known = read_descriptions(argument)

    def describe(self, request: DescriptionRequest) -> list[str]:
        """Return the first n sentences of a class."""
        name = one_form(request.key)
        if name not in self._known:
            raise DescriberError(f"{self.argument!r} has no class {name!r}.{nearest(name, self._known)}")
        return self._known[name][: request.n]
