"""The cache: hits, repair, several processes at once, and keys that change with every input."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load, save
from toys import ToyBackbone, write_images

from captune.core import arrays, runtime
from captune.core.errors import CaptuneError
from captune.core.files import LEFTOVERS, digest, write_whole
from captune.data.images import find_images
from captune.embeddings import cache as cache_module
from captune.embeddings.cache import EmbeddingCache, KeySet, default_folder
from captune.embeddings.embed import EmbeddedImages, embed_images


def embed(photos: Path, cache: Path, backbone: ToyBackbone, batch_size: int = 4) -> EmbeddedImages:
    engine = runtime.start(workers=0, quiet=True)
    return embed_images(backbone, find_images(photos), EmbeddingCache(cache), engine, batch_size)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_images(tmp_path / "photos", 10)


def parts(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.safetensors"))


def leave_behind(folder: Path) -> Path:
    """Kill a process in the middle of a write and return what it leaves."""
    (child := multiprocessing.get_context("fork").Process(target=write_and_die, args=(folder,))).start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    return next(folder.glob(LEFTOVERS))


def write_and_die(folder: Path) -> None:
    def pieces() -> Iterator[str]:
        yield "half"
        os.kill(os.getpid(), signal.SIGKILL)

    write_whole(folder / "never", pieces())


def test_what_the_cache_holds_is_not_encoded_again(tmp_path: Path, photos: Path) -> None:
    first, again = ToyBackbone(), ToyBackbone()
    fresh = embed(photos, tmp_path / "cache", first)
    cached = embed(photos, tmp_path / "cache", again)
    assert (first.n_encoded, again.n_encoded) == (10, 0)
    assert np.array_equal(fresh.vectors, cached.vectors)
    assert np.allclose(np.linalg.norm(cached.vectors, axis=1), 1, atol=1e-5)


def test_only_new_contents_are_encoded(tmp_path: Path, photos: Path) -> None:
    before = embed(photos, tmp_path / "cache", ToyBackbone())
    (photos / "005.png").rename(photos / "renamed.png")
    write_images(tmp_path / "more", 1, seed=9)
    (tmp_path / "more" / "000.png").rename(photos / "000b.png")
    backbone = ToyBackbone()
    after = embed(photos, tmp_path / "cache", backbone)
    assert backbone.n_encoded == 1
    assert np.array_equal(after.vectors[-1], before.vectors[5])


@pytest.mark.parametrize("other", [ToyBackbone(seed=1), ToyBackbone(mean=0.4)], ids=["weights", "preprocessing"])
def test_other_weights_or_preprocessing_are_other_embeddings(tmp_path: Path, photos: Path, other: ToyBackbone) -> None:
    first = embed(photos, tmp_path / "cache", ToyBackbone())
    second = embed(photos, tmp_path / "cache", other)
    assert other.n_encoded == 10
    assert not np.allclose(first.vectors, second.vectors)
    other.n_encoded = 0


def test_other_content_under_the_same_name_is_encoded(tmp_path: Path, photos: Path) -> None:
    embed(photos, tmp_path / "cache", ToyBackbone())
    (photos / "000.png").write_bytes((photos / "001.png").read_bytes())
    copied, changed = ToyBackbone(), ToyBackbone()
    vectors = embed(photos, tmp_path / "cache", copied).vectors
    assert copied.n_encoded == 0  # the content is known, whatever its name
    assert np.array_equal(vectors[0], vectors[1])
    write_images(photos, 1, seed=5)
    embed(photos, tmp_path / "cache", changed)
    assert changed.n_encoded == 1


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_vectors_that_cannot_be_embeddings_are_damage(tmp_path: Path, photos: Path, value: float) -> None:
    fresh = embed(photos, tmp_path / "cache", ToyBackbone())
    (part,) = parts(tmp_path / "cache")
    tensors = load(part.read_bytes())
    tensors["vectors"][1] = value
    part.unlink()
    content = save(tensors)
    part.with_name(f"{digest(content)}.safetensors").write_bytes(content)
    backbone = ToyBackbone()
    assert np.array_equal(embed(photos, tmp_path / "cache", backbone).vectors, fresh.vectors)
    assert backbone.n_encoded == len(fresh.vectors)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
def test_a_damaged_part_repairs_itself(
    tmp_path: Path, photos: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "SECONDS_BETWEEN_PARTS", -1.0)  # a part for every batch
    cache = tmp_path / "cache"
    fresh = embed(photos, cache, ToyBackbone())
    assert len(parts(cache)) == 3
    part = next(
        path for path in parts(cache) if len(path.read_bytes()) == max(len(p.read_bytes()) for p in parts(cache))
    )
    content = bytearray(part.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
    elif damage == "swap":
        other = next(path for path in parts(cache) if path != part)
        content = bytearray(other.read_bytes())
    part.write_bytes({"cut": content[:-5], "empty": b""}.get(damage, bytes(content)))
    backbone = ToyBackbone()
    repaired = embed(photos, cache, backbone)
    assert backbone.n_encoded == 4  # one batch
    assert np.array_equal(repaired.vectors, fresh.vectors)
    assert len(parts(cache)) == 3
    final = ToyBackbone()
    embed(photos, cache, final)
    assert final.n_encoded == 0


def test_a_part_of_another_width_is_dropped(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    with cache.open("w", "p", 3) as shard:
        shard.add(np.zeros((1, 16), dtype=np.uint8), np.ones((1, 3), dtype=np.float32))
    assert len(cache.open("w", "p", 3).known) == 1
    assert len(cache.open("w", "p", 4).known) == 0


def test_a_part_that_vanishes_while_it_is_read_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = EmbeddingCache(tmp_path)
    with cache.open("w", "p", 3) as shard:
        shard.add(np.zeros((1, 16), dtype=np.uint8), np.ones((1, 3), dtype=np.float32))

    def gone(path: Path) -> bytes:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_bytes", gone)
    assert len(cache.open("w", "p", 3).known) == 0
    monkeypatch.undo()
    assert len(cache.open("w", "p", 3).known) == 1  # a hiccup does not cost the part


def test_leftovers_of_a_killed_write_are_ignored_and_dropped(tmp_path: Path, photos: Path) -> None:
    cache = tmp_path / "cache"
    embed(photos, cache, ToyBackbone())
    embed(photos, cache, ToyBackbone(seed=1))
    folders = [part.parent for part in parts(cache)]
    others = [cache / "descriptions" / "0a", cache / "backbones"]
    for folder in (*folders, *others):
        folder.mkdir(parents=True, exist_ok=True)
        leftover = leave_behind(folder)
        assert leftover.is_file()
        os.utime(leftover, (0, 0))  # long ago
    backbone = ToyBackbone()
    embed(photos, cache, backbone)
    assert backbone.n_encoded == 0
    assert len(folders) == 2
    assert sorted(cache.rglob("*.*")) == parts(cache)  # nowhere in the cache, whoever's they were


def test_work_before_an_interruption_is_kept(tmp_path: Path, photos: Path) -> None:
    class Interrupted(ToyBackbone):
        def image_features(self, pixels, edit=None):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            if self.n_encoded >= 8:
                raise KeyboardInterrupt
            return super().image_features(pixels, edit)

    with pytest.raises(KeyboardInterrupt):
        embed(photos, tmp_path / "cache", Interrupted())
    backbone = ToyBackbone()
    resumed = embed(photos, tmp_path / "cache", backbone)
    assert backbone.n_encoded == 2
    assert np.array_equal(resumed.vectors, embed(photos, tmp_path / "other", ToyBackbone()).vectors)


def test_large_collections_are_written_in_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "ROWS_PER_PART", 5)
    keys = np.random.default_rng(0).integers(0, 256, (12, 16), dtype=np.uint8)
    vectors = np.arange(36, dtype=np.float32).reshape(12, 3)
    with EmbeddingCache(tmp_path).open("w", "p", 3) as shard:
        for i in range(0, 12, 3):
            shard.add(keys[i : i + 3], vectors[i : i + 3])
    assert len(parts(tmp_path)) == 2
    assert np.array_equal(EmbeddingCache(tmp_path).open("w", "p", 3).find(keys), vectors)


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    with pytest.raises(CaptuneError, match="cache"):
        embed(photos, tmp_path / "cache", ToyBackbone())


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPTUNE_CACHE", "/some/where")
    assert default_folder() == Path("/some/where")
    monkeypatch.delenv("CAPTUNE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_folder() == Path("/x/captune")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == Path.home() / ".cache" / "captune"


@given(hnp.arrays(np.uint8, st.tuples(st.integers(0, 30), st.just(16)), elements=st.integers(0, 2), unique=False))
def test_a_key_set_finds_what_a_list_finds(keys: np.ndarray) -> None:
    stored = np.unique(keys[::2], axis=0)
    rows = [row.tobytes() for row in stored]
    found = KeySet(stored).find(keys)
    for key, place in zip(keys, found, strict=True):
        assert (rows[place] == key.tobytes()) if place >= 0 else (key.tobytes() not in rows)
        assert (key in KeySet(stored)) == (key.tobytes() in rows)
    assert len(KeySet(stored)) == len(stored)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), unique=True, max_size=12))
def test_contents_that_share_half_a_key_are_told_apart(halves: list[tuple[int, int]]) -> None:
    stored = np.array(halves, dtype=np.uint64).reshape(-1, 2).view(np.uint8).reshape(-1, 16)
    assert KeySet(stored).find(stored).tolist() == list(range(len(stored)))


@pytest.mark.parametrize("large_bytes", [0, 1 << 20])
def test_a_large_shard_is_in_a_mapped_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large_bytes: int) -> None:
    monkeypatch.setattr(cache_module, "ROWS_PER_PART", 5)
    monkeypatch.setattr(arrays, "LARGE_BYTES", large_bytes)
    keys = np.random.default_rng(0).integers(0, 256, (23, 16), dtype=np.uint8)
    vectors = np.random.default_rng(1).normal(size=(23, 3)).astype(np.float32)
    with EmbeddingCache(tmp_path).open("w", "p", 3) as shard:
        for i in range(0, 23, 5):
            shard.add(keys[i : i + 5], vectors[i : i + 5])
    order = np.random.default_rng(2).permutation(23)
    found = EmbeddingCache(tmp_path).open("w", "p", 3)
    for part in parts(tmp_path):  # another process may delete it now
        part.unlink()
    assert np.array_equal(found.find(keys[order]), vectors[order])
    assert len(found.find(keys[:0])) == 0


def test_a_large_collection_is_embedded_to_the_same_bits(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "004.png").write_bytes(b"damaged")
    small = embed(photos, tmp_path / "cache", ToyBackbone())
    monkeypatch.setattr(arrays, "LARGE_BYTES", 0)
    for cache in ("cache", "other"):
        large = embed(photos, tmp_path / cache, ToyBackbone())
        assert np.array_equal(large.vectors, small.vectors)
        assert large.image_index.tolist() == small.image_index.tolist()
