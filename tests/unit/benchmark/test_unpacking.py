"""Archives that try to leave their folder are refused whole; damaged ones leave nothing behind."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from captune.benchmark.unpacking import is_archive, unpack
from captune.core.errors import InputError


def tar(path: Path, *members: tarfile.TarInfo | str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            entry = tarfile.TarInfo(member) if isinstance(member, str) else member
            entry.size = 2 if entry.isreg() else 0
            archive.addfile(entry, io.BytesIO(b"ok"))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


def left(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_files_and_folders_are_unpacked(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tgz", special("x", tarfile.DIRTYPE), "x/y/1.jpg", "./2.txt")
    unpack(archive, tmp_path / "out")
    assert left(tmp_path / "out") == ["2.txt", "x/y/1.jpg"]
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as files:
        files.writestr("z/3.jpg", b"ok")
        files.writestr("2.txt", b"other")
        files.writestr("__MACOSX/z/._3.jpg", b"")
    unpack(tmp_path / "b.zip", tmp_path / "out")
    assert left(tmp_path / "out") == ["2.txt", "x/y/1.jpg", "z/3.jpg"]
    assert (tmp_path / "out" / "2.txt").read_bytes() == b"ok"  # what was there stays
    assert is_archive("A.TAR.GZ")
    assert not is_archive("setid.mat")


@pytest.mark.parametrize(
    "member",
    [
        "../outside.txt",
        "a/../../outside.txt",
        "/tmp/outside.txt",
        "..\\outside.txt",
        "C:/outside.txt",
        special("link", tarfile.SYMTYPE, "/etc"),
        special("hard", tarfile.LNKTYPE, "/etc/passwd"),
        special("pipe", tarfile.FIFOTYPE),
    ],
)
def test_nothing_leaves_the_folder(tmp_path: Path, member: tarfile.TarInfo | str) -> None:
    archive = tar(tmp_path / "a.tar.gz", "good.txt", member)
    with pytest.raises(InputError, match="was not unpacked"):
        unpack(archive, tmp_path / "deep" / "out")
    assert left(tmp_path) == ["a.tar.gz"]


@pytest.mark.parametrize("kind", ["path", "link"])
def test_nothing_leaves_the_folder_of_a_zip(tmp_path: Path, kind: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as files:
        entry = zipfile.ZipInfo("../outside.txt" if kind == "path" else "link")
        entry.external_attr = (0o120777 if kind == "link" else 0o100644) << 16
        files.writestr("good.txt", b"ok")
        files.writestr(entry, b"/etc/passwd")
    with pytest.raises(InputError, match="was not unpacked"):
        unpack(tmp_path / "a.zip", tmp_path / "deep" / "out")
    assert left(tmp_path) == ["a.zip"]


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
@pytest.mark.parametrize("kept", [0, 40])
def test_a_damaged_archive_leaves_nothing(tmp_path: Path, name: str, kept: int) -> None:
    path = tmp_path / name
    tar(path, "x.txt", "y.txt")
    if name == "a.zip":
        with zipfile.ZipFile(path, "w") as files:
            files.writestr("x.txt", b"ok" * 50)
    path.write_bytes(path.read_bytes()[:kept] + b"\0" * 30)
    with pytest.raises(InputError, match="cannot be unpacked"):
        unpack(path, tmp_path / "out")
    assert left(tmp_path) == [name]
