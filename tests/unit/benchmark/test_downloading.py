"""Downloads from a local server (resuming, changed files, digests, offline), and safe unpacking of archives."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import dataset_copies as copies
import numpy as np
import pytest
from file_server import FileServer, serve

from captune.benchmark.datasets.base import DatasetFacts, RemoteFile
from captune.benchmark.downloading import download, fetch, unpack
from captune.cli import main
from captune.core import registry
from captune.core.errors import InputError

CONTENT = np.random.default_rng(0).bytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve() as running:
        running.files["/data.bin"] = CONTENT
        yield running


def remote(server: FileServer, md5: str = MD5, name: str = "data.bin") -> RemoteFile:
    return RemoteFile(f"{server.address}/{name}", creates=name, md5=md5)


def test_a_file_arrives_whole_and_is_not_asked_for_twice(server: FileServer, tmp_path: Path) -> None:
    download(remote(server), tmp_path / "data.bin", quiet=True)
    download(remote(server), tmp_path / "data.bin", quiet=True)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert len(server.asked) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin"]


def test_a_download_goes_on_where_it_was_cut(server: FileServer, tmp_path: Path) -> None:
    server.cut_after = 100_000
    with pytest.raises(InputError, match="100,000 of 300,000 bytes"):
        download(remote(server), tmp_path / "data.bin", quiet=True)
    assert not (tmp_path / "data.bin").exists()
    download(remote(server), tmp_path / "data.bin", quiet=True)
    assert server.asked[1]["Range"] == "bytes=100000-"
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_download_starts_over_if_the_server_knows_no_ranges(server: FileServer, tmp_path: Path) -> None:
    server.cut_after, server.knows_ranges = 1000, False
    with pytest.raises(InputError):
        download(remote(server), tmp_path / "data.bin", quiet=True)
    download(remote(server), tmp_path / "data.bin", quiet=True)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_download_without_a_digest_starts_over(server: FileServer, tmp_path: Path) -> None:
    server.cut_after = 1000
    with pytest.raises(InputError):
        download(remote(server, md5=""), tmp_path / "data.bin", quiet=True)
    server.files["/data.bin"] = CONTENT[::-1]
    download(remote(server, md5=""), tmp_path / "data.bin", quiet=True)
    assert "Range" not in server.asked[1]
    assert (tmp_path / "data.bin").read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("extra", [b"", b"too long"])
def test_a_part_that_has_all_bytes_already(server: FileServer, tmp_path: Path, extra: bytes) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT + extra)
    download(remote(server), tmp_path / "data.bin", quiet=True)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_wrong_digest_is_an_error_that_names_both(server: FileServer, tmp_path: Path) -> None:
    server.files["/data.bin"] = b"something else"
    found = hashlib.md5(b"something else").hexdigest()
    with pytest.raises(InputError, match=f"MD5 digest is {found}, expected {MD5}"):
        download(remote(server), tmp_path / "data.bin", quiet=True)
    assert not (tmp_path / "data.bin").exists()
    server.files["/data.bin"] = CONTENT
    download(remote(server), tmp_path / "data.bin", quiet=True)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_digest_that_is_not_known_is_recorded_and_held_to(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    download(remote(server, md5=""), tmp_path / "data.bin", quiet=True)
    assert hashlib.sha256(CONTENT).hexdigest() in (tmp_path / "data.bin.sha256").read_text()
    (tmp_path / "data.bin").unlink()
    server.files["/data.bin"] = b"another"
    with pytest.raises(InputError, match="SHA256 digest is"):
        download(remote(server, md5=""), tmp_path / "data.bin", quiet=True)


def test_offline_and_missing_files_are_sentences(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="404 Not Found"):
        download(remote(server, name="gone.bin"), tmp_path / "gone.bin", quiet=True)
    nowhere = RemoteFile("http://127.0.0.1:9/x.bin", creates="x.bin")
    with pytest.raises(InputError, match=r"http://127\.0\.0\.1:9/x\.bin") as caught:
        download(nowhere, tmp_path / "x.bin", quiet=True)
    assert str(tmp_path / "x.bin") in str(caught.value)
    with pytest.raises(InputError, match="file:///etc/passwd"):
        download(RemoteFile("file:///etc/passwd", creates="x"), tmp_path / "x", quiet=True)


def packed(folder: Path, name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder / name, arcname=name)
    return buffer.getvalue()


@pytest.fixture
def remote_flowers(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    """Put the small copy of Flowers102 on the server, in the three files of the real one."""
    copies.flowers_official(tmp_path / "origin")
    origin = tmp_path / "origin" / "flowers-102"
    server.files["/102flowers.tgz"] = packed(origin, "jpg")
    for name in ("imagelabels.mat", "setid.mat"):
        server.files[f"/{name}"] = (origin / name).read_bytes()
    cls = registry.load("datasets", "flowers102")
    urls = tuple(
        dataclasses.replace(file, url=f"{server.address}/{name}", md5=hashlib.md5(server.files[f"/{name}"]).hexdigest())
        for file in cls.facts.urls
        for name in [file.url.rsplit("/", 1)[-1]]
    )
    monkeypatch.setattr(cls, "facts", dataclasses.replace(cls.facts, urls=urls))
    return server


def test_a_dataset_is_downloaded_unpacked_and_read(
    remote_flowers: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    words = ["list", "datasets", "--data", str(root), "--download", "flowers102"]
    remote_flowers.cut_after = 500
    assert main(words) == 2
    assert main(words) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("flowers102"))
    assert line.split()[1] == "yes"
    assert len(registry.load("datasets", "flowers102")().load(root).pool) == 6
    assert sorted(path.name for path in (root / "flowers-102").iterdir()) == ["imagelabels.mat", "jpg", "setid.mat"]
    n_asked = len(remote_flowers.asked)
    assert main(words) == 0
    assert len(remote_flowers.asked) == n_asked


def test_an_archive_that_holds_something_else_is_said(server: FileServer, tmp_path: Path) -> None:
    copies.write_image(tmp_path / "cats" / "1.jpg")
    server.files["/x.tgz"] = packed(tmp_path, "cats")
    facts = DatasetFacts("Dogs", "here", "none", 2, 1, 1, urls=(RemoteFile(f"{server.address}/x.tgz", "dogs"),))
    with pytest.raises(InputError, match="'dogs'"):
        fetch(facts, tmp_path / "root", quiet=True)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["list", "datasets", "--download", "dtd"], "--download needs --data ROOT"),
        (["list", "datasets", "--data", "x", "--download", "dttd"], "Did you mean 'dtd'?"),
        (["list", "datasets", "--data", "x", "--download", "ucmerced"], "UC Merced Land Use"),
        (["list", "methods", "--data", "x"], "--data and --download"),
    ],
)
def test_wrong_words_are_answered(words: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert answer in capsys.readouterr().err


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
