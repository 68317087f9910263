"""Writing the report: one self-contained HTML file, with figures inside."""

from __future__ import annotations

import base64
import hashlib
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from captune import __version__
from captune.core.errors import InputError
from captune.core.files import read_json, write_json, write_whole
from captune.core.runtime import duration
from captune.report.class_table import listing
from captune.report.comparison import compare_runs
from captune.report.drawing import Drawing
from captune.report.sections import describe_run
from captune.report.summary import count
from captune.results.run import Run, noticing_damage
from captune.results.run_folder import REPORT

COMPARISON = "captune-comparison.html"
LAST_REPORT = "last_report.json"
MOST_CLASSES = 2000
MOST_LISTED = 5


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


def report_of(run: Run, labels: Any = None) -> Report:  # noqa: ANN401
    """Return the report of a run in memory, which is written to a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="captune-") as temporary:
        folder = Path(temporary) / "run"
        run.write(folder)
        page = write_report([folder], labels=labels).read_text(encoding="utf-8")
        # The page names the folder in the commands that repeat or use the run.
        return Report(page.replace(f"{folder.resolve()}/", "").replace(str(folder), "RUN"))


def write_report(
    folders: Sequence[str | Path],
    out: str | Path | None = None,
    labels: Any = None,  # noqa: ANN401 (what `read_labels` takes)
    figures: str | Path | None = None,
    images: str | Path | None = None,
) -> Path:
    """Write the report of one run, or the comparison of several runs, and return its path.

    The default path is `report.html` in the run folder, or `captune-comparison.html` for a comparison. `labels` are
    `folders`, a table (path, label), or one label for each readable image. `figures` is a folder for the figures as
    PNG, SVG and CSV files. `images` is the folder of the images, if it moved or if somebody else made the run.
    """
    if not folders:
        raise InputError("Expected at least one run folder.")
    runs, drawings = [Run.read(folder, labels, images) for folder in folders], list[Drawing]()
    if len(runs) > 1:
        page, text = Path(out or COMPARISON), render("compare.html.j2", compare_runs(runs))
    else:
        page = Path(folders[0]) / REPORT if out is None else Path(out)
        with noticing_damage(runs[0].folder):  # run.json may have been edited by hand
            content, drawings = describe_run(runs[0])
            states, since = _since_last(runs[0])
            text = render("page.html.j2", {**content, "since": since})
    if page.is_dir():
        raise InputError(f"The report {str(page)!r} is a folder, expected the path of an HTML file.")
    write_whole(page, text)
    if out is None and len(runs) == 1:
        write_json(runs[0].folder / LAST_REPORT, states)
    for drawing in drawings if figures is not None else ():
        drawing.write(Path(str(figures)))
    return page


def one_line(text: object) -> str:
    """Return text as Markdown that is only text, in one line."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


FILTERS = {"one_line": one_line, "count": count, "duration": duration, "listing": listing, "shell": shlex.join}


def render(template: str, content: Mapping[str, Any]) -> str:
    """Return a page; everything but our own figures is escaped."""
    environment = Environment(
        loader=PackageLoader("captune.report", ""),
        autoescape=select_autoescape(("html.j2",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    here = Path(__file__).parent
    script = (here / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    frame = {
        "stylesheet": Markup((here / "page.css").read_text(encoding="utf-8")),
        "script": Markup(script),
        "script_digest": Markup(digest),
        "version": __version__,
    }
    return environment.get_template(template).render(**content, **frame)


def _since_last(run: Run) -> tuple[dict[str, Any], list[str]]:
    """Return the states of a run to keep, and what changed since the last state that was different, as lines."""
    review = run.card.get("review") or {}
    accuracy = (review.get("accuracy") or {}).get("accuracy")
    facts = {
        "Images": f"{len(run.labels):,}",
        "Skipped files": f"{len(run.skipped_files):,}",
        "Method": run.method,
        "Result that was kept": run.kept,
        "Answers of people": f"{review.get('n_labels') or 0:,}",
        "Accuracy by random checks": "not measured" if accuracy is None else f"{accuracy:.1%}",
    }
    counts = np.bincount(run.labels, minlength=run.n_classes).tolist()
    classes = dict(zip(run.names, counts, strict=True)) if len(counts) <= MOST_CLASSES else {}
    now: dict[str, Any] = {"facts": facts, "classes": classes}
    try:
        last = read_json(run.folder / LAST_REPORT)
        before = last["before"] if last["now"] == now else last["now"]
        told = before["facts"]
        lines = [f"{name}: {told[name]} → {fact}" for name, fact in facts.items() if fact != told[name]]
        counted = before["classes"]
        moved = {name: (counted.get(name, 0), classes.get(name, 0)) for name in {**classes, **counted}}
        largest = sorted(moved.items(), key=lambda entry: -abs(entry[1][1] - entry[1][0]))[:MOST_LISTED]
        lines += [f"{name}: {old:,} → {new:,} images" for name, (old, new) in largest if old != new]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # a first report, or a file that was edited
        before, lines = None, []
    return {"now": now, "before": before}, lines
