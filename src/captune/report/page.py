"""Writing the report: one self-contained HTML file, and its figures as files."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from captune import __version__
from captune.core.errors import CaptuneError, InputError, RunFolderError
from captune.core.files import write_whole
from captune.report.comparison import compare_runs
from captune.report.drawing import FOLDER, Drawing
from captune.report.sections import describe_run
from captune.results.reading import RunRecord, read_run
from captune.results.run import REPORT

COMPARISON = "captune-comparison.html"
_OURS = re.compile(
    r"(cluster-concentration|map-(mismatch|confusion)-\d+|class-(similarity|margin)|confidence-density|confused-groups"
    r"|training-curves|lowest-and-highest-classes|compared-[a-z]+)\.(png|svg|csv)"
)


def write_report(
    folders: Sequence[str | Path],
    out: str | Path | None = None,
    labels: Any = None,  # noqa: ANN401 (what `read_labels` takes)
) -> Path:
    """Write the report of one run, or the comparison of several runs, and return its path.

    The default path is `report.html` in the run folder, or `captune-comparison.html` for a comparison. `labels` are
    `folders`, a table (path, label), or one label for each readable image.
    """
    if not folders:
        raise InputError("Expected at least one run folder.")
    runs = [read_run(folder, labels) for folder in folders]
    if len(runs) > 1:
        target = Path(out or COMPARISON)
        return write_page(target, target.with_name(f"{target.stem}-{FOLDER}"), "compare.html.j2", *compare_runs(runs))
    folder = Path(folders[0])
    target = Path(out) if out is not None else folder / REPORT
    return write_page(target, folder / FOLDER, "page.html.j2", *_describe(runs[0]))


def write_page(
    target: Path,
    figure_folder: Path,
    template: str,
    content: Mapping[str, Any],
    drawings: Sequence[Drawing],
    package: str = "captune.report",
) -> Path:
    """Write a page and its figures; the template may be in another package."""
    if target.is_dir():
        raise InputError(f"The report {str(target)!r} is a folder, expected the path of an HTML file.")
    page = render(template, {**content, "figure_folder": figure_folder.name}, package)
    _write_figures(figure_folder, drawings)
    write_whole(target, page)
    return target


def _describe(run: RunRecord) -> tuple[dict[str, Any], list[Drawing]]:
    try:
        return describe_run(run)
    except CaptuneError:
        raise
    except Exception as error:  # run.json may have been edited by hand
        raise RunFolderError(
            f"The run {str(run.folder)!r} is damaged ({type(error).__name__}: {error}). If you did not change its "
            "files, please report this."
        ) from error


def render(template: str, content: Mapping[str, Any], package: str = "captune.report") -> str:
    """Return a page; everything but our own figures is escaped."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, ""), PackageLoader("captune.report", "")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
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


def _write_figures(folder: Path, drawings: Sequence[Drawing]) -> None:
    """Write all figures as files, and remove outdated figures of an earlier report."""
    written = {f"{drawing.name}.{kind}" for drawing in drawings for kind in ("png", "svg", "csv")}
    if folder.is_dir():
        for path in folder.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in written:
                path.unlink()
    for drawing in drawings:
        drawing.write(folder)
