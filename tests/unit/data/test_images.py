"""Collections from folders, manifests and lists: order, roots, and every problem named at once."""

from __future__ import annotations

import errno
import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import write_images

from captune.core.arrays import content_key
from captune.core.errors import InputError, MissingExtraError
from captune.data import images
from captune.data.images import ImageCollection, find_images
from captune.data.labels import read_labels
from captune.data.shards import is_shard


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def names(collection: ImageCollection) -> list[str]:
    return [collection.name(i) for i in range(len(collection))]


def test_a_folder_is_read_recursively_in_a_stable_order(tmp_path: Path) -> None:
    touch(tmp_path / "b" / "2.PNG", tmp_path / "a" / "deep" / "1.jpeg", tmp_path / "z.webp", tmp_path / "a" / "0.gif")
    touch(tmp_path / "notes.txt", tmp_path / ".hidden.jpg", tmp_path / ".git" / "x.jpg")
    assert names(find_images(tmp_path)) == ["z.webp", "a/0.gif", "a/deep/1.jpeg", "b/2.PNG"]


@pytest.mark.parametrize("column", ["path", "IMAGE", " filename "])
def test_a_csv_manifest_is_resolved_against_its_folder(tmp_path: Path, column: str) -> None:
    manifest = tmp_path / "lists" / "m.csv"
    touch(manifest)
    manifest.write_text(f"\ufeffid,{column}\n7, ../a.jpg \n\n8,b.jpg\n", encoding="utf-8")
    found = find_images(manifest)
    assert [os.path.normpath(path) for path in found.paths] == [str(tmp_path / "a.jpg"), str(tmp_path / "lists/b.jpg")]
    assert found.name(1) == "b.jpg"


def test_a_parquet_manifest_and_a_text_list(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"n": [1, 2], "Path": ["a.jpg", "b.jpg"]}), tmp_path / "m.parquet")
    (tmp_path / "list.txt").write_text("a.jpg\n\n  b.jpg\n", encoding="utf-8")
    assert names(find_images(tmp_path / "m.parquet")) == ["a.jpg", "b.jpg"]
    assert names(find_images(tmp_path / "list.txt")) == ["a.jpg", "b.jpg"]


def test_an_absolute_path_in_a_manifest_stays(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "list.txt").write_text(f"{tmp_path}/a.jpg\n", encoding="utf-8")
    assert names(find_images(tmp_path / "sub" / "list.txt")) == [f"{tmp_path}/a.jpg"]


@pytest.mark.parametrize("entry", ["../secret.jpg", "sub/../../secret.jpg", "/etc/passwd", "link/secret.jpg"])
def test_no_path_leads_out_of_the_root(tmp_path: Path, entry: str) -> None:
    root = tmp_path / "root"
    touch(root / "ok.jpg", tmp_path / "secret.jpg", root / "sub" / "x.jpg")
    (root / "link").symlink_to(tmp_path)
    (root / "m.csv").write_text(f"path\nok.jpg\n{entry}\n", encoding="utf-8")
    assert len(find_images(root / "m.csv")) == 2  # without a root, any path is allowed
    with pytest.raises(InputError, match=Path(entry).name) as caught:
        find_images(root / "m.csv", root)
    assert "ok.jpg" not in str(caught.value)


def test_paths_inside_the_root_are_allowed_and_named_as_without_it(tmp_path: Path) -> None:
    touch(tmp_path / "a" / "x.jpg")
    (tmp_path / "inside").symlink_to(tmp_path / "a")
    (tmp_path / "list.txt").write_text("a/x.jpg\ninside/../a/../inside/y.jpg\n", encoding="utf-8")
    assert names(find_images(tmp_path / "list.txt", tmp_path))[0] == "a/x.jpg"


def test_a_root_also_holds_for_links_in_a_folder(tmp_path: Path) -> None:
    touch(tmp_path / "secret.jpg", tmp_path / "root" / "ok.jpg")
    (tmp_path / "root" / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    with pytest.raises(InputError, match=r"link\.jpg"):
        find_images(tmp_path / "root", tmp_path / "root")


def test_all_problems_of_a_manifest_are_listed_at_once(tmp_path: Path) -> None:
    root = tmp_path / "root"
    touch(root / "a.jpg")
    (root / "m.csv").write_text('path,x\na.jpg,1\n"",2\n./a.jpg,3\n../b.jpg,4\nb\0c.jpg,5\n', encoding="utf-8")
    with pytest.raises(InputError) as caught:
        find_images(root / "m.csv", root)
    message = str(caught.value)
    for words in ("row 2", "row 5", "../b.jpg", "a.jpg' is listed 2 times"):
        assert words in message


def test_a_long_list_of_problems_is_shortened(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("path,x\n" + ",1\n" * 25, encoding="utf-8")
    with pytest.raises(InputError, match="and 15 more"):
        find_images(tmp_path / "m.csv")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("m.csv", b"", "no 'path' column"),
        ("m.csv", b"name,class\na,b\n", "found: name, class"),
        ("m.csv", b"id,path\n1,a.jpg\n2\n", "too few columns in line 3"),
        ("m.csv", b"path\n\xff\xfe\n", "m.csv"),
        ("m.parquet", b"not parquet", "m.parquet"),
        ("photo.jpg", b"\xff\xd8\xff\xe0", "photo.jpg"),
        ("list.txt", b"a\0b.jpg\n", "row 1"),
    ],
)
def test_a_file_that_is_no_manifest_is_one_clear_error(tmp_path: Path, file: str, content: bytes, words: str) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError, match=words):
        find_images(tmp_path / file)


@pytest.mark.parametrize("source", ["missing", "x" * 5000, "nul\0"])
def test_no_such_place_is_one_clear_error(source: str) -> None:
    with pytest.raises(InputError) as caught:
        find_images(source)
    assert repr(source) in str(caught.value)


def test_parquet_without_its_extra_answers_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "m.parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'captune\[parquet\]'"):
        find_images(tmp_path / "m.parquet")


def test_a_subset_keeps_order_and_names(tmp_path: Path) -> None:
    touch(*(tmp_path / f"{i}.png" for i in range(4)))
    assert names(find_images(tmp_path).subset([3, 1])) == ["3.png", "1.png"]


def test_the_fingerprint_knows_names_and_sizes(tmp_path: Path) -> None:
    touch(tmp_path / "a.png", tmp_path / "b.png")
    collection = find_images(tmp_path)
    before = collection.fingerprint
    assert before == find_images(tmp_path).fingerprint
    (tmp_path / "a.png").write_bytes(b"longer")
    assert collection.fingerprint != before
    assert collection.subset([0]).fingerprint != collection.subset([1]).fingerprint
    (tmp_path / "a.png").unlink()
    assert collection.fingerprint != before


def test_a_name_that_is_no_utf8_is_shown_escaped(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jpg"))
    touch(path)
    collection = find_images(tmp_path)
    assert names(collection) == ["caf\\xe9.jpg"]
    assert collection.fingerprint


@given(st.lists(st.text(st.characters(blacklist_characters="\0\r\n/", blacklist_categories=("Cs",)), min_size=1)))
def test_any_list_of_names_is_read_back_or_refused(entries: list[str]) -> None:
    rows = [f"x{entry}" for entry in entries]
    try:
        collection = images.from_paths(rows)
    except InputError:
        is_repeated = len({os.path.normpath(row.strip()) for row in rows}) < len(rows)
        assert is_repeated or any(is_shard(row.strip()) for row in rows)  # x.tar is no readable shard
    else:
        assert [str(path) for path in collection.paths] == [str(Path(row.strip())) for row in rows]


def test_collections_can_be_added_and_read(tmp_path: Path) -> None:
    touch(tmp_path / "a" / "0.png", tmp_path / "b" / "1.png")
    first, second = find_images(tmp_path / "a"), find_images(tmp_path / "b")
    both = first + second
    assert [path.name for path in both.paths] == ["0.png", "1.png"]
    assert both.root == first.root
    assert both.read(1).key.tobytes() == content_key(b"x").tobytes()


def test_linked_folders_are_followed_and_loops_end(tmp_path: Path) -> None:
    photos = write_images(tmp_path / "photos" / "cat", 2).parent
    write_images(tmp_path / "elsewhere" / "deep", 1)
    (photos / "dog").symlink_to(tmp_path / "elsewhere")
    (photos / "again").symlink_to(photos / "cat")
    (tmp_path / "elsewhere" / "loop").symlink_to(photos)
    (photos / "gone").symlink_to(tmp_path / "nowhere")
    found = find_images(photos)
    assert names(found) == ["cat/000.png", "cat/001.png", "dog/deep/000.png"]
    assert "links to folders that are used already: 2 (the first is 'again')" in found.unused
    assert "files that are not images: 1 (the first is 'gone')" in found.unused


def test_everything_that_is_not_used_is_accounted_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = write_images(tmp_path / "photos", 2)
    for name in ("notes.txt", "a.json", ".hidden.png", "old.tar"):
        (photos / name).write_text("x")
    write_images(photos / "locked", 1)
    for folder, card in (("run", "run.json"), ("audit", "audit.json"), ("export", "captune-export.json")):
        write_images(photos / folder / "figures", 1)
        (photos / folder / card).write_text(json.dumps({"format": f"captune-{folder}"}))
    write_images(photos / "theirs", 1)
    (photos / "theirs" / "run.json").write_text("{}")
    listed = os.scandir

    def scandir(path: Path) -> Any:
        if str(path).endswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = find_images(photos)
    assert names(found) == ["000.png", "001.png", "theirs/000.png"]
    assert found.unused == (
        f"Not used in '{photos}': hidden files and folders: 1 (the first is '.hidden.png'); files that are not images: "
        "3 (the first is 'a.json'); results of captune: 3 (the first is 'audit'); folders that cannot be read "
        "(Permission denied): 1 (the first is 'locked'); tar files beside images: 1 (the first is 'old.tar')."
    )
    photos = photos / "nowhere"
    monkeypatch.setattr("captune.data.images.is_folder", lambda path: True)
    with pytest.raises(InputError, match="cannot be read"):
        find_images(photos)


def test_one_file_is_not_listed_twice_under_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = write_images(tmp_path / "photos", 2)
    (tmp_path / "link").symlink_to(photos)
    monkeypatch.chdir(tmp_path)
    Path("m.csv").write_text(f"path\nphotos/000.png\n{photos / '000.png'}\nlink/001.png\nphotos/../photos/001.png\n")
    with pytest.raises(InputError) as error:
        find_images("m.csv")
    assert str(error.value).count("is listed 2 times") == 2


def test_parquet_tables_of_other_types(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    entries = ["a.png", "b.png"]
    found = write_images(tmp_path, 2)
    for kind in (arrow.large_string(), arrow.binary(), arrow.dictionary(arrow.int8(), arrow.string())):
        column = arrow.array([name.encode() for name in entries] if kind == arrow.binary() else entries).cast(kind)
        parquet.write_table(arrow.table({"path": column}), tmp_path / "m.parquet")
        assert names(find_images(tmp_path / "m.parquet")) == entries
    for column in (arrow.array([["a.png"], []]), arrow.array([{"a": 1}, None])):
        parquet.write_table(arrow.table({"path": column}), tmp_path / "m.parquet")
        with pytest.raises(InputError, match="expected text or numbers"):
            find_images(tmp_path / "m.parquet")
    parquet.write_table(arrow.table({"path": arrow.nulls(2)}), tmp_path / "m.parquet")
    with pytest.raises(InputError, match="empty path"):
        find_images(tmp_path / "m.parquet")
    labels = arrow.table({"path": ["000.png", "001.png"], "label": [1.0, float("nan")]})
    parquet.write_table(labels, tmp_path / "labels.parquet")
    assert read_labels(tmp_path / "labels.parquet", find_images(found), ("0", "1")).tolist() == [1, -1]


def test_a_pickle_of_embeddings_is_told_from_an_image(tmp_path: Path) -> None:
    for name, hint in (("vectors.pt", r"\.safetensors"), ("cat.raw", "captune predict")):
        (tmp_path / name).write_bytes(b"\x80\xff\xfe")
        with pytest.raises(InputError, match=hint):
            find_images(tmp_path / name)


NAMES = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), min_size=1, max_size=12)


@given(st.lists(NAMES), st.sampled_from([".", "data", "/data", "data/x"]))
def test_names_are_the_paths_relative_to_the_root(names: list[str], root: str) -> None:
    paths = tuple(Path(root) / name for name in names)
    collection = ImageCollection(paths, Path(root))
    assert collection.paths == paths
    for i, path in enumerate(paths):
        shown = path.relative_to(root) if path.is_relative_to(root) else path
        assert collection.name(i) == shown.as_posix()


def test_subsets_sums_and_copies_are_collections_of_the_same_files() -> None:
    first, second = (ImageCollection([f"{folder}/{i}.png" for i in range(3)], Path(folder)) for folder in "ab")
    joined = first.subset([1]) + second + first + ImageCollection((), Path())
    assert joined.files == ("a/1.png", *second.files, *first.files)
    assert joined.paths[-1] == Path("a/2.png")
    assert pickle.loads(pickle.dumps(joined)) == joined
    assert {first: 1}[ImageCollection(first.paths, Path("a"))] == 1
    assert first != second
    assert first.subset(np.array([2, 0])).subset([1]).files == ("a/0.png",)
    with pytest.raises(IndexError):
        first.name(3)


def test_members_of_shards_and_files_can_be_joined(tmp_path: Path) -> None:
    write_images(tmp_path / "photos", 1)
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(tmp_path / "photos" / "000.png", "000.png")
    files, members = find_images(tmp_path / "photos"), find_images(tmp_path / "x.tar")
    joined = (files + members).subset([1, 0])
    assert [joined.span(i) is None for i in range(2)] == [False, True]
    assert joined.read(0).key.tobytes() == joined.read(1).key.tobytes()


def test_a_few_bytes_of_parquet_cannot_hold_endless_text(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    column = arrow.DictionaryArray.from_arrays(np.zeros(100_000, dtype=np.int32), ["x" * 1_000_000 + ".jpg"])
    parquet.write_table(arrow.table({"path": column}), tmp_path / "x.parquet")  # 100 GB as plain text
    with pytest.raises(InputError, match="1,000,004 characters"):
        find_images(tmp_path / "x.parquet")


def test_more_names_than_memory_is_meant_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_NAMES", 3)
    (tmp_path / "list.txt").write_text("".join(f"{i}.jpg\n" for i in range(5)), encoding="utf-8")
    with pytest.raises(InputError, match="captune embed"):
        find_images(tmp_path / "list.txt")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_of_ten_thousand_columns_is_one_short_error(tmp_path: Path, suffix: str) -> None:
    names = [f"column {i}" for i in range(10_000)]
    if suffix == "csv":
        (tmp_path / "x.csv").write_text(",".join(names) + "\n")
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({name: [1] for name in names}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="no 'path' column") as error:
        find_images(tmp_path / f"x.{suffix}")
    assert len(str(error.value)) < 1000


def test_a_parquet_manifest_with_two_columns_of_one_name_is_an_error(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = [arrow.array(["a.png"]), arrow.array(["b.png"])]
    parquet.write_table(arrow.Table.from_arrays(names, names=["path", "path"]), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"x\.parquet"):
        find_images(tmp_path / "x.parquet")
