"""captune list: what can be chosen."""

from __future__ import annotations

import argparse
from typing import Any

from captune import registry

ROLES = ("methods", "backbones", "tuners", "describers", "datasets")


def add(commands: Any) -> None:  # noqa: ANN401 (argparse keeps this class private)
    """Declare the command."""
    words = commands.add_parser("list", help="show what can be chosen", allow_abbrev=False)
    words.add_argument("what", choices=ROLES, metavar="|".join(ROLES))


def run(options: argparse.Namespace) -> None:
    """Show the plug-ins of a role with their first sentence."""
    from rich.table import Table
    from rich.text import Text

    from captune.commands._screen import Screen

    shown = Table("name", "what it is", box=None, pad_edge=False)
    for name in registry.names(options.what):
        shown.add_row(name, Text(registry.summary(options.what, name)))
    Screen(highlight=False).print(shown)
