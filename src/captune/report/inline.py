"""A report that was not saved: one HTML page, which a notebook shows inline."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from captune.core.files import write_whole


@dataclass(frozen=True, repr=False)
class Report:
    """A self-contained HTML page.

    Attributes:
        html: The page.
    """

    html: str

    def save(self, path: str | Path) -> Path:
        """Write the page to a file."""
        write_whole(Path(path), self.html)
        return Path(path)

    def __repr__(self) -> str:
        return f"Report({len(self.html) / 1e6:.1f} MB of HTML; report.save('report.html') writes it)"

    def _repr_html_(self) -> str:
        # A frame of its own: the page's styles and scripts stay away from the notebook's, and nothing is loaded.
        return (
            '<iframe title="captune report" sandbox="allow-scripts allow-popups" loading="lazy" '
            f'style="width:100%;height:40rem;border:1px solid #8884" srcdoc="{escape(self.html)}"></iframe>'
        )


def saved_page(save: Callable[[Path], object], write_page: Callable[[Path], Path]) -> Report:
    """Return the page that is written for a folder, which is removed afterward."""
    with tempfile.TemporaryDirectory(prefix="captune-") as temporary:
        folder = Path(temporary) / "run"
        save(folder)
        page = write_page(folder).read_text(encoding="utf-8")
        # The page names the folder in the commands that repeat or use the run.
        return Report(page.replace(f"{folder.resolve()}/", "").replace(str(folder), "RUN"))
