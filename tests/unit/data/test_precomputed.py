"""Files of arrays that are damaged or hold something else are refused in a sentence."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from captune.core.errors import InputError
from captune.data.precomputed import ArrayFile, ClassTexts, Embeddings

VECTORS = np.eye(6, 4, dtype=np.float32) + 0.1


def npy(shape: tuple[int, ...]) -> bytes:
    """Return the header of an array whose values are missing."""
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors", ".parquet"])
def test_flipped_bits_are_told_or_change_a_value(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"vectors{suffix}"
    if suffix == ".npz":
        np.savez_compressed(path, vectors=VECTORS, image_names=[f"{i}.png" for i in range(6)])
    elif suffix == ".npy":
        np.save(path, VECTORS)
    elif suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file({"vectors": VECTORS}, path)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"vectors": VECTORS.tolist()}), path)
    whole, generator, told = path.read_bytes(), random.Random(suffix), 0
    assert len(Embeddings.from_file(path)) == 6
    for _ in range(150):
        content = bytearray(whole)
        content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        path.write_bytes(content)
        try:
            found = Embeddings.from_file(path)
            assert np.isfinite(found.vectors).all()
        except InputError:
            told += 1
    assert told > 5


def test_arrays_that_would_not_fit_in_memory(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "vectors.npz", "w") as file:
        file.writestr("vectors.npy", npy((10**12, 512)))
    with pytest.raises(InputError, match="cannot be read"):
        Embeddings.from_file(tmp_path / "vectors.npz")


def test_an_array_with_the_suffix_of_an_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", VECTORS)
    shutil.move(tmp_path / "vectors.npy", tmp_path / "vectors.npz")
    assert len(Embeddings.from_file(tmp_path / "vectors.npz")) == 6


@pytest.mark.parametrize("scale", [[1.0, 2.0], "fast", np.nan, -1.0])
def test_a_logit_scale_is_one_positive_number(scale: object, tmp_path: Path) -> None:
    np.savez(tmp_path / "texts.npz", names=["cat", "dog"], texts=VECTORS[:2], logit_scale=scale)
    with pytest.raises(InputError, match="logit_scale"):
        ClassTexts.from_file(tmp_path / "texts.npz")


def test_names_of_images_are_text() -> None:
    with pytest.raises(InputError, match="not valid Unicode"):
        Embeddings(VECTORS, ["\ud800", "b", "c", "d", "e", "f"])


@pytest.mark.parametrize("suffix", ["npz", "parquet", "safetensors"])
def test_a_small_file_that_needs_more_memory_than_there_is(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("captune.data.precomputed.available_memory", lambda: 1_000_000)
    zeros = np.zeros((3000, 200), dtype=np.float32)
    path = tmp_path / f"vectors.{suffix}"
    if suffix == "npz":
        np.savez_compressed(path, vectors=zeros)
    elif suffix == "safetensors":  # of half precision, with a hole for the values
        header = {"vectors": {"dtype": "BF16", "shape": [3000, 200], "data_offsets": [0, 1_200_000]}}
        content = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(content)) + content)
        os.truncate(path, 8 + len(content) + 1_200_000)
    else:
        arrow = pytest.importorskip("pyarrow")
        column = arrow.FixedSizeListArray.from_arrays(zeros.ravel(), 200)
        pytest.importorskip("pyarrow.parquet").write_table(arrow.table({"embedding": column}), path)
    assert suffix == "safetensors" or path.stat().st_size < 50_000
    with pytest.raises(InputError, match="GB of memory"):
        Embeddings.from_file(path)


@pytest.mark.parametrize("factor", [1e19, 1e25, 1e38])
def test_embeddings_that_are_too_large_to_be_scaled(factor: float) -> None:
    with pytest.raises(InputError, match=r"too large.* in row 0, 1, 2"):
        Embeddings((VECTORS / np.abs(VECTORS).max() * factor * 3).clip(-3e38, 3e38).astype(np.float32))


def test_long_names_that_a_parquet_file_stores_once_are_in_memory_once(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    n_images, label = 20_000, "x" * 1_000_000  # 20 GB of text, and 80 GB as an array of text
    vectors = arrow.FixedSizeListArray.from_arrays(np.ones(2 * n_images, dtype=np.float32), 2)
    labels = arrow.DictionaryArray.from_arrays(np.zeros(n_images, dtype=np.int32), [label])
    parquet.write_table(arrow.table({"vector": vectors, "label": labels}), tmp_path / "e.parquet")
    found = ArrayFile(f"{tmp_path / 'e.parquet'}:label").choose((), "labels", n_axes=1)
    assert found.shape == (n_images,)
    assert found[0] is found[-1]
    assert found[0] == label
