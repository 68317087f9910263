"""Opening a session on a run: its own images, wherever one stands; others only if they are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from toys import write_images

import captune
from captune.cli import main
from captune.core.errors import InputError
from captune.report.page import write_report

NAMES = ["stripes", "dots"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a run that was made from the relative folder `photos` of a project."""
    write_images(tmp_path / "project" / "photos", 4, side=40)
    monkeypatch.chdir(tmp_path / "project")
    captune.adapt("photos", NAMES, method="zero_shot", backbone="embedded:patterns", out="run", workers=0, quiet=True)
    return tmp_path / "project" / "run"


def test_images_of_the_same_names_in_the_current_folder_are_not_used(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "other" / "photos", 4, side=40, seed=9)
    monkeypatch.chdir(tmp_path / "other")
    session = captune.open_session(run)
    assert session.images.root == run.parent / "photos"
    session.label(0, "dots")
    session.save()
    card = json.loads((run / "run.json").read_text())
    assert card["image_root"] == str(run.parent / "photos")


def test_changed_images_are_used_only_if_they_are_named(run: Path) -> None:
    photos = run.parent / "photos"
    write_images(photos, 1, side=44, seed=5)  # replaces the first
    with pytest.raises(InputError, match="changed"):
        captune.open_session(run)
    assert len(captune.open_session(run, images=photos).images) == 4


def test_a_moved_folder_is_asked_for(run: Path, tmp_path: Path) -> None:
    shutil.move(run.parent / "photos", tmp_path / "moved")
    with pytest.raises(InputError, match="images"):
        captune.open_session(run)
    (write_images(tmp_path / "stranger", 1, side=40) / "000.png").rename(tmp_path / "stranger" / "x.png")
    with pytest.raises(InputError, match="4 images of the run are not in"):
        captune.open_session(run, images=tmp_path / "stranger")
    assert captune.open_session(run, images=tmp_path / "moved").images.root == tmp_path / "moved"


def test_an_answer_is_no_yes_to_the_pictures_of_a_run_of_somebody_else(run: Path, tmp_path: Path) -> None:
    received = run.rename(tmp_path / "received")
    for images in (None, tmp_path / "project" / "photos"):
        session = captune.open_session(received, images=images, quiet=True)
        session.label(0, "dots")
        session.label(0, "stripes")
        session.save()
        page = write_report([received]).read_text(encoding="utf-8")
        assert ("data:image/jpeg" in page) == (images is not None)


def test_an_image_that_vanishes_before_an_update_is_marked_and_may_come_back(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = run.parent / "photos" / "002.png"
    main(["label", str(run), "002.png", "dots"])
    image.rename(run.parent / "away.png")
    for told, table in (("1 images are gone", "skipped.csv"), ("0 new images", "skipped.csv")):
        assert main(["update", str(run)]) == 0
        assert told in capsys.readouterr().out
        assert "002.png" in (run / table).read_text(encoding="utf-8")
        assert "002.png" not in (run / "predictions.csv").read_text(encoding="utf-8")
    (run.parent / "away.png").rename(image)
    assert main(["update", str(run)]) == 2  # images that changed are used only if they are named
    assert main(["update", str(run), "--images", str(image.parent)]) == 0
    assert "1 new images" in capsys.readouterr().out
    assert "002.png,dots" in (run / "predictions.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize("method", ["auto", "zero_shot"])
def test_another_method_than_that_of_the_run_is_told_with_its_flag(
    run: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--classes", ",".join(NAMES), "--backbone", "embedded:patterns", "--method", method, "--workers", "0"]
    assert main(["adapt", "photos", *words, "--out", "made"]) == 0  # `auto` chooses transductive
    assert main(["label", "made", "000.png", "dots"]) == 0
    told = "instead of zero_shot (--method zero_shot)"
    assert (told in capsys.readouterr().out) == (method == "zero_shot")
    assert main(["label", "made", "001.png", "dots", "--method", method]) == 0
    assert "instead of" not in capsys.readouterr().out


def test_old_names_warn_and_do_the_same(run: Path) -> None:
    with pytest.warns(DeprecationWarning, match="open_session"):
        opened = captune.open_run(run)
    with pytest.warns(DeprecationWarning, match="open_session"):
        again = captune.open(run)
    assert opened.labels == again.labels
    assert "open" not in captune.__all__
