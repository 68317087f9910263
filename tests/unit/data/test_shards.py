"""Tar shards: images at their place, patterns and lists, and what is refused with a clear message."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from toys import write_images

from captune.core.errors import InputError
from captune.data.decoding import UnreadableImageError, read_bytes
from captune.data.images import ImageCollection, find_images
from captune.data.labels import read_labels
from captune.data.loading import load_batches
from captune.data.views import Preprocessing, WeakView

LONG = "folder-with-a-long-name/" * 12 + "image-é.jpg"


def write_shard(path: Path, members: dict[str, bytes], kind: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def write_entry(path: Path, **facts: object) -> Path:
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo("a.jpg")
        for name, value in facts.items():
            setattr(entry, name, value)
        tar.addfile(entry)
    return path


def names(images: ImageCollection) -> list[str]:
    return [images.name(i) for i in range(len(images))]


def contents(images: ImageCollection) -> list[bytes]:
    return [read_bytes(images.paths[i], images.span(i)) for i in range(len(images))]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_images_are_read_at_their_place(tmp_path: Path, kind: int) -> None:
    long = LONG[-90:] if kind == tarfile.USTAR_FORMAT else LONG
    members = {"./cat/1.jpg": b"one", "cat/1.cls": b"0", "cat/1.json": b"{}", long: b"two" * 400, "cat/._1.jpg": b"no"}
    shard = write_shard(tmp_path / "x.tar", members, kind)
    found = find_images(shard)
    assert names(found) == ["x.tar/cat/1.jpg", f"x.tar/{long}"]
    assert contents(found) == [b"one", b"two" * 400]
    assert [read_bytes(path) for path in found.paths] == contents(found)  # by name alone
    assert found.subset([1]).paths[0] == shard / long


def test_patterns_ranges_folders_and_lists_name_shards(tmp_path: Path) -> None:
    for number in range(12):
        write_shard(tmp_path / "d" / f"s-{number:03d}.tar", {f"{number}.png": b"%d" % number})
    everything = [f"s-{n:03d}.tar/{n}.png" for n in range(12)]
    assert names(find_images(f"{tmp_path}/d/*.tar")) == everything
    assert names(find_images(tmp_path / "d")) == everything
    assert names(find_images(f"{tmp_path}/d/s-{{009..011}}.tar")) == everything[9:]
    (tmp_path / "list.txt").write_text("d/s-003.tar\nd/s-001.tar\nplain.jpg\nd/s-002.tar/2.png\n")
    listed = find_images(tmp_path / "list.txt")
    assert names(listed) == ["d/s-003.tar/3.png", "d/s-001.tar/1.png", "plain.jpg", "d/s-002.tar/2.png"]
    assert contents(listed.subset([0, 1, 3])) == [b"3", b"1", b"2"]
    assert listed.fingerprint != find_images(tmp_path / "d").fingerprint


def test_a_folder_with_images_leaves_its_tar_files_alone(tmp_path: Path) -> None:
    write_shard(tmp_path / "download.tar", {"a.jpg": b"x"})
    (tmp_path / "a.jpg").write_bytes(b"x")
    assert names(find_images(tmp_path)) == ["a.jpg"]


def test_labels_from_folders_and_tables_work_inside_shards(tmp_path: Path) -> None:
    write_shard(tmp_path / "x.tar", {"cat/1.jpg": b"1", "dog/2.jpg": b"2"})
    found = find_images(tmp_path / "x.tar")
    assert read_labels("folders", found, ["dog", "cat"]).tolist() == [1, 0]
    (tmp_path / "labels.csv").write_text("path,label\nx.tar/dog/2.jpg,cat\n")
    assert read_labels(tmp_path / "labels.csv", found, ["dog", "cat"]).tolist() == [-1, 1]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"name": "../a.jpg"}, "outside"),
        ({"name": "x/../../a.jpg"}, "outside"),
        ({"name": "/etc/a.jpg"}, "outside"),
        ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "/etc/passwd"),
        ({"type": tarfile.LNKTYPE, "linkname": "b.jpg"}, "b.jpg"),
        ({"type": tarfile.FIFOTYPE}, "a.jpg"),
        ({"type": tarfile.CHRTYPE}, "a.jpg"),
    ],
)
def test_members_that_lead_elsewhere_are_refused(tmp_path: Path, facts: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_images(write_entry(tmp_path / "x.tar", **facts))


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
        tar.addfile(tarfile.TarInfo("./a.jpg"))
    with pytest.raises(InputError, match=r"a\.jpg"):
        find_images(tmp_path / "x.tar")


def test_a_shard_that_was_cut_off_anywhere_is_noticed(tmp_path: Path) -> None:
    whole = write_shard(tmp_path / "x.tar", {f"{i}.jpg": b"x" * 700 for i in range(3)}).read_bytes()
    for length in range(0, 3 * 1536 + 512, 100):
        cut = tmp_path / f"cut-{length}.tar"
        cut.write_bytes(whole[:length])
        with pytest.raises(InputError, match=cut.name):
            find_images(cut)


@pytest.mark.parametrize("content", [b"no tar at all", b"\x1f\x8b" + bytes(600), bytes(100), b""])
def test_what_is_no_tar_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.tar"):
        find_images(tmp_path / "x.tar")


def test_a_header_cannot_ask_for_much_memory(tmp_path: Path) -> None:
    entry = tarfile.TarInfo("long")
    entry.type, entry.size = tarfile.GNUTYPE_LONGNAME, 1 << 31
    (tmp_path / "x.tar").write_bytes(entry.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(InputError, match="2,147,483,648"):
        find_images(tmp_path / "x.tar")


@pytest.mark.parametrize("name", ["x.tar.gz", "x.TGZ", "x.tar.zst"])
def test_a_compressed_shard_says_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InputError, match=name):
        find_images(tmp_path / name)


@pytest.mark.parametrize("pattern", ["none-*.tar", "x-{0..2}.tar", "x-{5..2}.tar", "x-{0..999999999999999999}.tar"])
def test_shards_that_are_not_there(tmp_path: Path, pattern: str) -> None:
    write_shard(tmp_path / "x-0.tar", {"a.jpg": b"x"})
    with pytest.raises(InputError) as caught:
        find_images(f"{tmp_path}/{pattern}")
    assert pattern in str(caught.value)


def test_all_damaged_shards_are_told_at_once(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        (tmp_path / name).write_bytes(b"?")
    with pytest.raises(InputError, match=r"(?s)a\.tar.*b\.tar"):
        find_images(tmp_path)


def test_a_root_holds_for_shards(tmp_path: Path) -> None:
    write_shard(tmp_path / "secret.tar", {"a.jpg": b"x"})
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link.tar").symlink_to(tmp_path / "secret.tar")
    with pytest.raises(InputError, match=r"link\.tar"):
        find_images(tmp_path / "root", tmp_path / "root")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("size", ["-1536", "-1024", "-512", "-1"])
def test_a_size_below_zero_in_an_extended_header_ends_with_an_error(tmp_path: Path, size: str) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("a.jpg", "b.jpg"):
            entry = tarfile.TarInfo(name)
            entry.pax_headers = {"size": size}
            tar.addfile(entry)
    with pytest.raises(InputError, match=r"x\.tar"):
        find_images(tmp_path / "x.tar")


def test_an_image_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "x.tar", {"a.jpg": b"x", "empty.jpg": b""})
    found = find_images(shard)
    for path in (shard / "b.jpg", found.paths[1]):
        with pytest.raises(UnreadableImageError):
            read_bytes(path)
    span = found.span(0)
    shard.write_bytes(shard.read_bytes()[:512])
    with pytest.raises(UnreadableImageError):
        read_bytes(found.paths[0], span)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_from_shards_are_those_of_the_folder(tmp_path: Path, workers: int) -> None:
    folder = write_images(tmp_path / "photos", 5)
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    write_shard(tmp_path / "s" / "0.tar", dict(list(files.items())[:3]))
    write_shard(tmp_path / "s" / "1.tar", dict(list(files.items())[3:]))
    view = WeakView(Preprocessing(8, 8, "bilinear", (0.5,) * 3, (0.5,) * 3))
    batches = [np.arange(3), np.arange(3, 5)]
    loaded = [
        list(load_batches(find_images(source), batches, view, workers=workers)) for source in (folder, tmp_path / "s")
    ]
    for mine, theirs in zip(*loaded, strict=True):
        assert np.array_equal(mine.pixels, theirs.pixels)
        assert np.array_equal(mine.keys, theirs.keys)
