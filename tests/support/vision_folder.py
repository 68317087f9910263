"""Vision libraries from a folder of their own, beside a torch that their torchvision was not built for.

torchvision's compiled operators are missing then, but its Python code works. It is not installed in the environment
itself, because transformers would try to use it in every test and every process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers.utils import is_timm_available, is_torchvision_available

FOLDER = Path(sys.prefix, "vision")
INSTALL = f"pip install --no-deps --target {FOLDER} open_clip_torch torchvision timm ftfy wcwidth"


def import_vision(name: str) -> tuple[Any, str]:
    """Return a module of open_clip, torchvision or timm, or None and the reason why it is missing."""
    is_timm_available(), is_torchvision_available()  # transformers keeps the answers, so it will not use the folder
    if not FOLDER.is_dir():
        return None, f"{name} is not installed; to run these tests: {INSTALL}"
    register = torch.library.register_fake

    def skip_missing(operator: Any, *options: Any, **more: Any) -> Callable[..., Any]:
        is_missing = isinstance(operator, str) and operator.startswith("torchvision::")
        return (lambda function: function) if is_missing else register(operator, *options, **more)

    # The folder does not stay in sys.path, which processes that are spawned later inherit.
    path = [*sys.path, str(FOLDER)]
    with mock.patch.object(sys, "path", path), mock.patch.object(torch.library, "register_fake", skip_missing):
        for library in ("torchvision", "timm", "open_clip"):
            import_module(library)
        return import_module(name), ""
