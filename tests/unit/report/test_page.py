"""The page of a run: complete, in order, self-contained, escaped, the same every time."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from captune.cli import main
from captune.core.errors import InputError, RunFolderError
from captune.report import page
from captune.report.measures import Measures
from captune.report.page import write_report
from captune.report.sections import describe_run
from captune.report.summary import HEADLINES, findings
from captune.results.health import ADVICE
from captune.results.run import Run

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Reader(HTMLParser):
    """Reads a page, insists that every element is closed in order, and keeps what tests ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    return reader


def sections(reader: Reader) -> list[str | None]:
    return [attributes["id"] for attributes in reader.named("section")]


def test_the_sections_come_in_order(labeled_page: Path) -> None:
    reader = read(labeled_page)
    assert sections(reader) == [
        "summary",
        "numbers",
        "map",
        "changes",
        "unsure",
        "classes",
        "mismatch",
        "confusion",
        "skipped",
        "training",
        "settings",
    ]
    assert "72 images (2 files skipped)" in reader.text
    assert "Accuracy rose: " in reader.text
    assert "Measured on 72 labeled images of 72." in reader.text
    assert "Not verified: other images than these." in reader.text


def test_without_labels_there_is_the_health_check(run_folder: Any) -> None:
    folder = run_folder()
    reader = read(write_report([folder]))
    assert {"numbers", "mistakes"}.isdisjoint(sections(reader))
    health = json.loads((folder / "run.json").read_text(encoding="utf-8"))["health"]
    assert HEADLINES[health["verdict"]] in reader.text
    assert health["sentence"].partition(": ")[2].removesuffix(f" {ADVICE}") in reader.text
    assert ADVICE not in reader.text  # the next line says how
    assert "Not verified: whether the names are right." in reader.text
    assert f"captune review {folder}" in reader.text
    assert "estimated change of accuracy" in reader.text
    assert "Accuracy" not in reader.text


def test_what_there_is_nothing_of_is_left_out(run_folder: Any) -> None:
    folder = run_folder(adapted=False, skipped=0)
    reader = read(write_report([folder]))
    assert sections(reader) == ["summary", "map", "hesitations", "unsure", "classes", "confusion", "settings"]
    assert "nothing was adapted to these images" in reader.text
    assert "Predicted before" not in reader.text


def test_a_folder_without_evidence_still_has_a_page(run_folder: Any) -> None:
    folder = run_folder()
    for name in ("evidence.safetensors", "pseudo_labels.csv"):
        (folder / name).unlink()
    reader = read(write_report([folder]))
    assert {"summary", "unsure", "classes", "training", "settings"} <= set(sections(reader))


def test_names_are_shown_and_never_run(labeled_page: Path) -> None:
    reader = read(labeled_page)
    assert len(reader.named("script")) == 1
    assert "<script>alert(1)</script>" in reader.text
    assert "$x$ & $y$" in reader.text
    assert "<b>bold</b> lines" in reader.text
    assert 'broken "0" <img src=x>.png' in reader.text
    assert {"b", "i"}.isdisjoint(tag for tag, _ in reader.tags)
    *pictures, large = reader.named("img")
    assert large == {"alt": ""}
    for attributes in pictures:
        assert set(attributes) == {"src", "alt", "title"}
        assert "'it' & <b>.png" in str(attributes["alt"])
    handlers = [name for _, attributes in reader.tags for name in attributes if name.startswith("on")]
    assert handlers == []


def test_nothing_is_fetched(labeled_page: Path) -> None:
    reader = read(labeled_page)
    assert re.findall(r"https?:|//[a-z]+\.", labeled_page.read_text(encoding="utf-8")) == []
    for _, attributes in reader.tags:
        for name in ("src", "href", "xlink:href"):
            assert str(attributes.get(name, "#")).startswith(("#", "data:image/"))
    policies = [a["content"] for a in reader.named("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert "default-src 'none'" in str(policies[0])
    assert "script-src 'sha256-" in str(policies[0])


def test_ids_are_unique_and_links_lead_somewhere(labeled_page: Path) -> None:
    reader = read(labeled_page)
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [
        str(attributes["href"])[1:] for _, attributes in reader.tags if str(attributes.get("href")).startswith("#")
    ]
    assert set(links) <= set(ids)


def test_tables_and_figures_speak_to_screen_readers(run_folder: Any) -> None:
    reader = read(write_report([run_folder()]))
    assert len(reader.named("caption")) == len(reader.named("table"))
    assert all("scope" in attributes for attributes in reader.named("th"))
    drawings = [attributes for attributes in reader.named("svg") if attributes.get("role") == "img"]
    assert drawings
    assert all(attributes["aria-label"] for attributes in drawings)
    assert reader.named("html")[0]["lang"] == "en"


def test_the_same_folder_gives_the_same_bytes(run_folder: Any) -> None:
    folder = run_folder()
    first = write_report([folder]).read_bytes()
    assert write_report([folder]).read_bytes() == first


def test_a_report_lists_what_changed_since_the_last_one(run_folder: Any) -> None:
    folder = run_folder()
    assert "Since the last report" not in read(write_report([folder])).text
    rows = (folder / "predictions.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "predictions.csv").write_text("".join(rows[:-3]), encoding="utf-8")
    (folder / "evidence.safetensors").unlink()
    for _ in range(2):  # a report that is only written again tells the same
        text = read(write_report([folder])).text
        assert "Since the last report Images: 72 → 69 plain: 12 → 9 images" in text
    (folder / "last_report.json").write_text('{"now": {"images": "x"}, "before": 3}', encoding="utf-8")
    assert "Since the last report" not in read(write_report([folder])).text


def test_a_class_without_images_is_named_beside_the_verdict(run_folder: Any) -> None:
    folder = run_folder(["a", "b", "c"])
    text = (folder / "predictions.csv").read_text(encoding="utf-8")
    (folder / "predictions.csv").write_text(text.replace(",c,", ",b,"), encoding="utf-8")
    top = describe_run(Run.read(folder))[0]["top"]
    named = {one["title"].rpartition(" (")[0]: one["names"] for one in top["findings"]}
    assert named["Classes that no image was given"] == "c"
    assert named["Names that mislead the model"] == "a"
    assert "2 of 3 classes predicted for at least one image" in read(write_report([folder])).text


def test_too_little_memory_is_no_damage(
    run_folder: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(run: Run) -> None:
        raise MemoryError

    monkeypatch.setattr(page, "describe_run", fail)
    assert main(["report", str(run_folder(["a", "b"]))]) == 2
    told = capsys.readouterr().err
    assert "not enough memory" in told
    assert "damaged" not in told


def test_near_duplicates_are_shown_as_pictures(run_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measures = Measures(Run.read(run_folder(["a", "b", "c"])))
    vectors = measures.vectors.copy()
    vectors[1] = vectors[0]
    monkeypatch.setitem(vars(measures), "vectors", vectors)
    (found,) = (one for one in findings(measures) if one["title"] == "Images with a near duplicate (2)")
    expected = [measures.run.readable.name(row) for row in measures.embedded_rows[:2].tolist()]
    assert [picture.path for picture in found["pictures"]] == expected


def test_fifty_classes_fit_in_five_megabytes(run_folder: Any) -> None:
    folder = run_folder([f"class number {i}" for i in range(50)], per_class=8)
    path = write_report([folder], labels=folder.parent / "images" / "labels.csv")
    assert path.stat().st_size < 5_000_000
    assert len(read(path).named("article")) == 50


def test_figures_are_files_on_demand(run_folder: Any, tmp_path: Path) -> None:
    folder = run_folder()
    write_report([folder], labels=folder.parent / "images" / "labels.csv", figures=tmp_path / "figures")
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {f"confidence-density.{kind}" for kind in ("png", "svg", "csv")} <= names
    assert not (folder / "figures").exists()


def test_wrong_folders_labels_and_targets_are_clear_errors(run_folder: Any, tmp_path: Path) -> None:
    folder = run_folder()
    with pytest.raises(InputError):
        write_report([folder], labels="folders")
    with pytest.raises(RunFolderError):
        write_report([tmp_path / "nothing"])
    with pytest.raises(InputError):
        write_report([folder], out=tmp_path)
    with pytest.raises(InputError):
        write_report([])
    (folder / "predictions.csv").write_text("path,label,confidence\nx.png,unheard,1\n", encoding="utf-8")
    with pytest.raises(RunFolderError):
        write_report([folder])


def test_images_that_are_gone_cost_only_their_pictures(run_folder: Any) -> None:
    folder = run_folder()
    (folder.parent / "images").rename(folder.parent / "moved")
    reader = read(write_report([folder]))
    assert reader.named("img") == [{"alt": ""}]  # the frame of large pictures
    assert "The image files could not be read" in reader.text


def test_runs_are_compared_side_by_side(run_folder: Any, tmp_path: Path) -> None:
    folders = [run_folder(name="a", adapted=False), run_folder(name="b"), run_folder(name="c", seed=1)]
    labels = tmp_path / "images" / "labels.csv"
    path = write_report(folders, out=tmp_path / "all.html", labels=labels)
    reader = read(path)
    assert sections(reader) == ["summary", "differences", "numbers", "disagreements", "classes"]
    assert "3 runs on 6 classes: a, b, c" in reader.text
    assert "Balanced accuracy" in reader.text
    assert "<script>alert(1)</script>" in reader.text
    assert "Calibration error (ECE)" in reader.text
    unlabeled = read(write_report(folders, out=path)).text
    assert "The runs agree on" in unlabeled
    assert "Which run is right was not verified." in unlabeled


def test_runs_of_other_classes_are_not_compared(run_folder: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_report([run_folder(name="a"), run_folder(["x", "y", "z"], name="b")], out=tmp_path / "x.html")


def test_the_comparison_goes_to_the_present_folder(
    run_folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert write_report([run_folder(name="a"), run_folder(name="b")]) == Path(page.COMPARISON)


def test_a_model_on_this_machine_is_told_by_its_last_name(run_folder: Any) -> None:
    folder = run_folder()
    card = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    for given, told in (("dual:/models/of/mine/aerial", "dual:aerial"), ("hf:openai/clip", "hf:openai/clip")):
        card["settings"]["backbone"] = given
        (folder / "run.json").write_text(json.dumps(card), encoding="utf-8")
        assert describe_run(Run.read(folder))[0]["top"]["model"] == told
