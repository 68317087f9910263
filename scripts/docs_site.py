"""What the documentation site has beyond docs/: pages made from the code, from notebooks and from the root's files.

mkdocs calls `on_files` and `on_page_markdown` (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

REPOSITORY = Path(__file__).parents[1]
ROOT_PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
}
"""Files in the root of the repository, and the pages that they become."""
LINK = re.compile(r"\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files in docs/."""
    from mkdocs.structure.files import File

    for name, text in generated_pages():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:  # noqa: ANN401 (mkdocs passes page, config and files)
    """Let links to files lead to the pages that these files become."""
    return LINK.sub(lambda found: f"]({page_address(found[1])})", markdown)


def page_address(link: str) -> str:
    """Return where a link to a file of the repository leads on the site."""
    target, hash_sign, anchor = link.partition("#")
    own = target.removeprefix("../")
    if own in ROOT_PAGES:
        target = ROOT_PAGES[own]
    elif target.endswith(".ipynb") and "/" in target:
        target = target.removesuffix(".ipynb") + ".md"
    return target.removeprefix("docs/") + hash_sign + anchor


def generated_pages() -> Iterator[tuple[str, str]]:
    """Return the name and the Markdown text of every page that is made when the site is built."""
    for source, page in ROOT_PAGES.items():
        yield page, (REPOSITORY / source).read_text(encoding="utf-8")
    for path in sorted((REPOSITORY / "docs" / "notebooks").glob("*.ipynb")):
        yield f"notebooks/{path.stem}.md", notebook_page(path)
    yield "commands.md", commands_page()
    yield "settings.md", settings_page()
    yield "api.md", api_page()


def commands_page() -> str:
    """Return the reference of the command line, made from its parsers."""
    from captune.cli import _parser

    parser = _parser()
    subparsers = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    summaries = {action.dest: action.help for action in subparsers._choices_actions}
    parts = ["# Command line", "`captune COMMAND --help` shows the same on screen. Exit codes: 0 success, 2 invalid "]
    parts[-1] += "input, 1 unexpected error, 130 interrupted."
    for name, command in subparsers.choices.items():
        parts += [f"## captune {name}", f"{_sentence(summaries[name] or '')}"]
        usage = command.format_usage().removeprefix("usage: ").strip()
        parts.append(f"```text\n{usage}\n```")
        rows = [(_option(action), action.help or "") for action in command._actions if action.dest != "help"]
        parts.append(_table(("argument", "meaning"), rows))
        if command.epilog:
            parts.append(f"```text\n{command.epilog}\n```" if "\n" in command.epilog else command.epilog)
    return "\n\n".join(parts) + "\n"


def settings_page() -> str:
    """Return the settings of every run and of every method, with their defaults and presets."""
    from captune.core import registry
    from captune.core.settings import RunSettings

    parts = [
        "# Settings",
        "A setting is a flag, `--set key=value`, a line in a YAML file (`--config`), or an argument in Python. "
        "`captune adapt --help-settings METHOD --preset NAME` shows the same on screen.",
        "## Every run",
        _settings_table(RunSettings, {}),
    ]
    for name in registry.names("methods"):
        method = registry.load("methods", name)
        parts += [f"## {name}", _sentence(registry.summary("methods", name))]
        parts.append(_settings_table(method.Settings, method.presets))
    return "\n\n".join(parts) + "\n"


def api_page() -> str:
    """Return the reference of the public names, which mkdocstrings fills from docstrings."""
    from captune import _HOMES, __all__

    names = [name for name in __all__ if name in _HOMES]
    functions = [name for name in names if name.islower()]
    parts = ["# Python reference", "Every public name of `captune`. [Python API](python.md) is the guide to them."]
    for title, listed in (("Functions", functions), ("Classes", [name for name in names if name not in functions])):
        parts.append(f"## {title}")
        parts += [f"::: {_HOMES[name]}.{name}\n    options:\n      heading: captune.{name}" for name in listed]
    return "\n\n".join(parts) + "\n"


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = [
        "".join(cell["source"]) if cell["cell_type"] == "markdown" else f"```python\n{''.join(cell['source'])}\n```"
        for cell in cells
    ]
    parts.insert(1, f"[Download the notebook](./{path.name})")
    return "\n\n".join(parts) + "\n"


def _settings_table(cls: type[Any], presets: Any) -> str:  # noqa: ANN401 (names to changed values)
    from captune.core.settings import explain

    fields, help_texts = dataclasses.fields(cls), explain(cls)
    if not fields:
        return "It has no settings."
    rows = []
    for field in fields:
        values = [_code(values.get(field.name, field.default)) for values in presets.values()]
        changed = ["" if value == _code(field.default) else value for value in values]
        rows.append((f"`{field.name}`", _code(field.default), *changed, help_texts.get(field.name, "")))
    return _table(("setting", "default", *(f"preset `{name}`" for name in presets), "meaning"), rows)


def _option(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return f"`{names}`"
    shown = action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper()
    value = " ".join(shown) if isinstance(shown, tuple) else shown
    return f"`{names} {value}`" if names else f"`{value}`"


def _code(value: Any) -> str:  # noqa: ANN401 (any default)
    return f"`{value!r}`" if value != "" else ""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heading, ("---",) * len(heading), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    """Escape what would end a cell or start a tag, but not in code."""
    parts = text.split("`")
    parts[::2] = [part.replace("|", "\\|").replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)
