"""Files that came from someone else: nothing in them is run, fills the memory, or names a place outside a folder."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from report_runs import make_run
from toys import write_images

import captune
from captune.backbones.hf import HuggingFace
from captune.cli import main
from captune.commands.adapt import print_audit
from captune.core import files
from captune.core.errors import CaptuneError, InputError
from captune.core.settings import parse_overrides, read_yaml
from captune.data.images import find_images
from captune.data.vocabulary import read_class_names, read_classes, read_descriptions
from captune.plan import make_plan
from captune.report.measures import Measures
from captune.report.page import write_report
from captune.results.run import Run

APPLY = "!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [{}]]"
LEVELS = 12
LAUGHS = "".join(f"k{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10) if n else 'lol'}]\n" for n in range(LEVELS))
"""Ten to the power of eleven words, once the aliases are written out."""


def test_code_that_comes_with_a_model_is_not_run(clip_folder: Path, tmp_path: Path) -> None:
    model, mark = tmp_path / "model", tmp_path / "was run"
    shutil.copytree(clip_folder, model)
    (model / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Model: pass\n", encoding="utf-8")
    for name in ("config.json", "tokenizer_config.json", "preprocessor_config.json"):
        if (model / name).is_file():
            content = json.loads((model / name).read_text(encoding="utf-8"))
            classes = ("AutoConfig", "AutoModel", "AutoTokenizer", "AutoImageProcessor", "AutoProcessor")
            content["auto_map"] = dict.fromkeys(classes, "evil.Model")
            (model / name).write_text(json.dumps(content), encoding="utf-8")
    with contextlib.suppress(CaptuneError):  # refusing the model would be as good
        HuggingFace.load(str(model))
    assert not mark.exists()


@pytest.mark.parametrize("what", ["settings", "override", "classes", "descriptions"])
def test_a_yaml_tag_runs_nothing(tmp_path: Path, what: str) -> None:
    mark = tmp_path / "was run"
    apply = APPLY.format(json.dumps(str(mark)))
    file = tmp_path / "x.yaml"
    file.write_text(f"- {apply}\n- b\n" if what == "classes" else f"seed: {apply}\n", encoding="utf-8")
    readers = {"settings": read_yaml, "classes": read_class_names, "descriptions": read_descriptions}
    with contextlib.suppress(InputError):
        if what == "override":
            parse_overrides([f"seed={apply}"])
        else:
            readers[what](file)
    assert not mark.exists()


READERS = {
    "settings": (
        "from captune.core.settings import *; build(RunSettings, {{'seed': read_yaml({0!r})['k11']}}, 'settings')"
    ),
    "classes": "from captune.data.vocabulary import *; read_class_names({0!r})",
    "descriptions": "from captune.data.vocabulary import *; read_descriptions({0!r})",
}


ALIASES = {
    "settings": "a: &x [1]\nb: *x\n",
    "classes": "- &x cat\n- *x\n",
    "descriptions": "cat: &x [a, b]\ndog: *x\n",
}
NESTED = "[" * 200_000
SURROGATE = {
    "settings": 'template: "a \\ud800 {}"\n',
    "classes": '- "\\ud800"\n- cat\n',
    "descriptions": 'cat: ["\\ud800"]\n',
}


@pytest.mark.parametrize("what", ALIASES)
def test_aliases_nesting_and_half_characters_are_refused_in_a_sentence(tmp_path: Path, what: str) -> None:
    file = tmp_path / "x.yaml"

    def use() -> None:
        if what == "settings":
            make_plan(tmp_path, ["cat", "dog"], None, read_yaml(file))
        elif what == "classes":
            read_classes(file)
        else:
            read_descriptions(file)

    for content, words in ((ALIASES[what], "aliases"), (NESTED, "YAML"), (SURROGATE[what], "cannot|Cannot")):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=words) as error:
            use()
        assert len(str(error.value)) < 2000


@pytest.mark.parametrize("what", READERS)
def test_yaml_aliases_cannot_fill_the_memory(tmp_path: Path, what: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(LAUGHS, encoding="utf-8")

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))

    words = [sys.executable, "-c", READERS[what].format(str(file))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, preexec_fn=bound, check=False)
    assert "InputError" in done.stderr
    assert len(done.stderr) < 20_000


@pytest.mark.parametrize("name", ["list.txt", "table.csv"])
def test_a_file_without_line_ends_is_not_read_whole(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, 50_000_000_000)  # a hole: it takes no space
    for read in (find_images, read_classes):
        with pytest.raises(InputError, match="Is this a text file"):
            read(tmp_path / name)


def test_a_huge_yaml_file_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").touch()
    os.truncate(tmp_path / "x.yaml", 50_000_000_000)
    for read in (read_classes, read_descriptions, read_yaml):
        with pytest.raises(InputError, match=r"more than .* characters"):
            read(tmp_path / "x.yaml")


def test_class_names_are_never_places(tmp_path: Path) -> None:
    names = ("../../outside", str(tmp_path / "absolute"), "..", "a/b\\c", "CON")
    folder = make_run(tmp_path / "deep" / "er" / "run", tmp_path / "images", names, per_class=6)
    before = {path for path in tmp_path.rglob("*") if folder not in path.parents}
    write_report([folder], labels=tmp_path / "images" / "labels.csv")
    assert {path for path in tmp_path.rglob("*") if folder not in path.parents} == before


def test_a_name_is_no_markup_on_the_screen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = "[red]x[/red]"
    folder = make_run(tmp_path / "run", tmp_path / "images", (name, "plain"))
    print_audit(Measures(Run.read(folder)))
    shown = capsys.readouterr().out
    assert shown.count(name) >= 2  # the table and the sentence
    assert main(["report", str(tmp_path / name)]) == 2
    assert name in capsys.readouterr().err


@pytest.mark.parametrize("name", ["figures", "classifier", "exports"])
def test_a_run_of_somebody_else_moves_no_file_into_a_folder_of_mine(tmp_path: Path, name: str) -> None:
    folder = make_run(tmp_path / "run", tmp_path / "images", ("cat", "dog"), per_class=6)
    mine = tmp_path / "mine"
    mine.mkdir()
    shutil.rmtree(folder / name, ignore_errors=True)
    (folder / name).symlink_to(mine)
    (folder / ".captune-new" / name).mkdir(parents=True)
    (folder / ".captune-new" / name / "classifier.json").write_text("theirs", encoding="utf-8")
    shutil.copy(folder / "run.json", folder / ".captune-new" / "run.json")
    for words in (["report", str(folder)], ["suggest", str(folder)], ["export", str(folder), "--format", "csv"]):
        main(words)
    main(["predict", str(folder), str(tmp_path / "images")])
    assert list(mine.iterdir()) == []


def test_an_export_is_not_written_through_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "run", tmp_path / "images", ("cat", "dog"), per_class=6)
    (tmp_path / "mine").mkdir()
    (folder / "exports").symlink_to(tmp_path / "mine")
    assert main(["export", str(folder), "--format", "csv"]) == 2
    assert "is a link" in capsys.readouterr().err
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.parametrize("name", ["run.json", "predictions.csv", "evidence.safetensors", "pseudo_labels.csv"])
def test_a_pipe_in_a_run_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = make_run(tmp_path / "run", tmp_path / "images", ("cat", "dog"), per_class=6)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    signal.alarm(60)  # a report that waits for the pipe ends here
    try:
        assert main(["report", str(folder)]) == 2
    finally:
        signal.alarm(0)


def test_a_run_of_somebody_else_shows_no_pictures_without_a_yes(tmp_path: Path) -> None:
    made = make_run(tmp_path / "made", tmp_path / "images", ("cat", "dog"), per_class=6)
    received = tmp_path / "received"
    made.rename(received)  # not where the user made a run
    page = write_report([received], out=tmp_path / "page.html").read_text(encoding="utf-8")
    assert "data:image/jpeg" not in page
    assert f"--images {tmp_path / 'images'}" in page
    page = write_report([received], images=tmp_path / "images").read_text(encoding="utf-8")
    assert page.count("data:image/jpeg") > 6
    shutil.copytree(tmp_path / "images", tmp_path / "elsewhere")
    for picture in sorted((tmp_path / "elsewhere").rglob("*.png")):  # sent with the run, but links to what is mine
        picture.unlink()
        picture.symlink_to(tmp_path / "images" / picture.relative_to(tmp_path / "elsewhere"))
    assert "data:image/jpeg" not in write_report([received], images=tmp_path / "elsewhere").read_text(encoding="utf-8")


def test_a_table_that_was_edited_cannot_show_other_files(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", tmp_path / "images", ("cat", "dog"), per_class=6)
    table = folder / "predictions.csv"
    content = table.read_text(encoding="utf-8")
    write_images(tmp_path / "private", 1)
    for name in ("../private/000.png", str(tmp_path / "private" / "000.png")):
        table.write_text(f"{content}{name},cat,0.9\n", encoding="utf-8")
        with pytest.raises(InputError, match="is outside the folder of the images"):
            write_report([folder])
    table.write_text(content, encoding="utf-8")
    write_report([folder])


def test_a_card_of_absurd_depth_or_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run", tmp_path / "images", ("cat", "dog"), per_class=6)
    content = (folder / "run.json").read_text(encoding="utf-8")
    for text in ("[" * 200_000, '{"a":' * 5000 + "1" + "}" * 5000, content[:-2] + f', "x": {"[" * 900}{"]" * 900}}}'):
        (folder / "run.json").write_text(text, encoding="utf-8")
        with pytest.raises(CaptuneError, match="nested more than"):
            captune.load(folder)
    (folder / "run.json").write_text(content, encoding="utf-8")
    monkeypatch.setattr(files, "MAX_BYTES", 100)
    with pytest.raises(CaptuneError, match="larger than 100 bytes"):
        captune.load(folder)
