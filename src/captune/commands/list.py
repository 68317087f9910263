"""captune list: show the available methods, backbones and other plug-ins."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from captune.core import registry
from captune.core.errors import CaptuneError, InputError

ROLES = ("methods", "backbones", "tuners", "describers", "datasets", "exports")
CHOICES = (*ROLES, "suites")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("what", choices=CHOICES, metavar="|".join(CHOICES), nargs="?", help="default: everything")
    parser.add_argument("--data", metavar="ROOT", help="datasets: folder to look in")


def run(options: argparse.Namespace) -> None:
    """List plug-ins with a summary, datasets with their facts, or suites with their titles; by default everything."""
    from captune.commands._screen import Screen

    if options.what != "datasets" and options.data:
        raise InputError(f"--data applies to datasets, not to {options.what or 'everything'}.")
    screen = Screen(highlight=False)
    for what in CHOICES if options.what is None else (options.what,):
        if options.what is None:
            screen.print(f"{what}:", style="bold")
        is_alone = options.what == "datasets"
        screen.print(_datasets(Path(options.data) if options.data else None) if is_alone else _table(what))
        if what != (options.what or CHOICES[-1]):
            screen.print()


def _table(what: str) -> Any:  # noqa: ANN401 (a table of rich, which is imported late)
    from rich.table import Table
    from rich.text import Text

    shown = Table("name", "description", box=None, pad_edge=False)
    for name, sentence in _sentences(what):
        shown.add_row(name, Text(sentence))
    return shown


def _sentences(what: Any) -> list[tuple[str, str]]:  # noqa: ANN401 (one of CHOICES, which argparse has checked)
    if what == "suites":
        from captune.benchmark.suite import shipped_suites, suite_title

        return [(name, suite_title(path)) for name, path in shipped_suites().items()]
    return [(name, registry.summary(what, name)) for name in registry.names(what)]


def _datasets(root: Path | None) -> Any:  # noqa: ANN401 (a table of rich, which is imported late)
    from rich.table import Table
    from rich.text import Text

    shown = Table("name", "found", "classes", "pool", "test", box=None, pad_edge=False)
    shown.add_column("license and source", overflow="fold")
    for name in registry.names("datasets"):
        try:
            dataset = registry.load("datasets", name)()
            facts = dataset.facts
            found = "?" if root is None else "yes" if dataset.is_found(root) else "no"
        except CaptuneError as error:  # a broken third-party plug-in must not hide the others
            shown.add_row(name, "no", "", "", "", Text(str(error)))
            continue
        sizes = ("any" if size is None else f"{size:,}" for size in (facts.n_classes, facts.n_pool, facts.n_test))
        shown.add_row(name, found, *sizes, Text(f"{facts.license}\n{facts.source}"))
    if root is None:
        shown.caption = "With --data ROOT, the column 'found' shows which ones exist there."
    return shown
