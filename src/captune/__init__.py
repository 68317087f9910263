"""captune: adapt CLIP to your own images, without labels."""

from __future__ import annotations

import pkgutil
import re
import warnings
from importlib import import_module
from typing import Any

__version__ = "0.2.0"
_STUB = pkgutil.get_data(__name__, "__init__.pyi").decode("ascii")
_HOMES = {name: module for module, name in re.findall(r"^from (\S+) import (\w+)", _STUB, re.MULTILINE)}
"""The module of each public name, as type checkers read them."""
__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import public names when they are first used, so that `import captune` stays light."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in ("open", "open_run"):  # deprecated in 0.3; the first replaced the builtin after `import *`
        warnings.warn(f"captune.{name} is now captune.open_session", DeprecationWarning, stacklevel=2)
        now = import_module("captune.review.opening").open_session
        return now if name == "open" else lambda run, images=None, **settings: now(run, images=images, **settings)
    raise AttributeError(f"module 'captune' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, of which most are not imported yet."""
    return sorted(__all__)
