"""The page of an audit: escaped, complete, rebuilt from audit.json alone, and clear about what is no audit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from audit_folders import audit_facts, write_audit

from captune.auditing.page import write_audit_page
from captune.cli import main
from captune.core.errors import InputError, RunFolderError
from captune.report.page import write_report


@pytest.mark.parametrize("has_truth", [True, False])
def test_everything_is_shown_and_nothing_runs(tmp_path: Path, has_truth: bool) -> None:
    folder = write_audit(tmp_path / "audit", audit_facts(tmp_path / "images", has_truth))
    page = write_audit_page(folder).read_text(encoding="utf-8")
    assert len(re.findall(r"<script", page)) == 1  # the page's own
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in page
    for tag in ("<img src=x", "<b>stripes", "<u>", "<image>", "<empty>"):
        assert tag not in page
        assert tag.replace("<", "&lt;").replace(">", "&gt;") in page
    assert page.count("data:image/jpeg") == 2
    assert not re.search(r'(src|href)="https?:', page)
    assert ("50.0%" in page) == has_truth
    assert ("Right by description" in page) == has_truth
    anchors = re.findall(r'<li><a href="#([^"]+)"', page)
    assert all(f'<section id="{anchor}"' in page for anchor in anchors)
    assert len(anchors) == page.count("<section id=") - 1  # all but the summary


def test_an_audit_that_found_nothing_has_a_page(tmp_path: Path) -> None:
    facts = audit_facts(tmp_path / "images", has_truth=False)
    facts |= {"mismatched": [], "confused_groups": [], "problems": {}, "skipped": {}}
    for row in facts["classes"]:
        row |= {"is_mismatched": False, "examples": [], "description": []}
    page = write_audit_page(write_audit(tmp_path / "audit", facts)).read_text(encoding="utf-8")
    assert "No misleading class name was found." in page
    assert "No group of classes stands out" in page
    assert "<figure>" not in page


def test_the_command_rebuilds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_audit(tmp_path / "audit", audit_facts(tmp_path / "images"))
    assert main(["report", str(folder), "--out", str(tmp_path / "elsewhere.html")]) == 0
    assert "elsewhere.html" in capsys.readouterr().out
    assert main(["report", str(folder), "--labels", "folders"]) == 2
    assert "captune audit" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change", [{"version": 99}, {"format": "other"}, {"classes": [{"name": 3}]}, {"settings": None}]
)
def test_damage_is_a_clear_error(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = write_audit(tmp_path / "audit", audit_facts(tmp_path / "images") | change)
    with pytest.raises(RunFolderError, match=r"audit"):
        write_audit_page(folder)
    (folder / "audit.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"audit\.json"):
        write_audit_page(folder)


def test_audits_are_not_compared(tmp_path: Path) -> None:
    folder = write_audit(tmp_path / "audit", audit_facts(tmp_path / "images"))
    with pytest.raises((RunFolderError, InputError)):
        write_report([folder, folder])
