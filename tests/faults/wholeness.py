"""What a result is, and whether everything that a kill left behind is whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

TIMES = {"started", "seconds", "seconds_of_steps", "processor", "peak_memory_mb", "commit"}
OTHERS = ("checkpoints",)


def result_of(run: Path) -> dict[str, Any]:
    """Return everything that a run says, without times: files by name, run.json as what it holds."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        name = path.relative_to(run).as_posix()
        if name.startswith((".captune-", *OTHERS)) or path.name.startswith(".captune-") or name == "report.html":
            continue
        found[name] = timeless(json.loads(path.read_text())) if name == "run.json" else path.read_bytes()
    return found


def timeless(content: Any) -> Any:
    """Return JSON without what differs from run to run."""
    if isinstance(content, dict):
        return {key: timeless(value) for key, value in content.items() if key not in TIMES}
    return [timeless(value) for value in content] if isinstance(content, list) else content


def halves(run: Path, cache: Path, reference: dict[str, Any]) -> list[str]:
    """Return the files that look whole and are not; a file that is written aside has a name that tells."""
    wrong = [name for name, content in result_of(run).items() if content != reference.get(name)] if run.exists() else []
    digests = [(path, path.stem.rpartition("-")[2]) for path in run.glob("checkpoints/[0-9]*.safetensors")]
    digests += [(path, path.stem) for path in cache.glob("embeddings/*/[0-9a-f]*.safetensors")]
    for path, digest in digests:
        size = len(digest) // 2
        if hashlib.blake2b(path.read_bytes(), digest_size=size).hexdigest() != digest:
            wrong.append(path.name)
    report = run / "report.html"
    if report.exists() and not report.read_text().rstrip().endswith("</html>"):
        wrong.append("report.html")
    return wrong
