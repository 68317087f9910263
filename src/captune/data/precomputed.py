"""Embeddings that exist already: of images (`Embeddings`) and of class texts (`ClassTexts`), in memory or in files."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Floats, available_memory, fill_rows, row_parts, take_rows
from captune.core.errors import CaptuneError, InputError, import_extra
from captune.core.files import is_file
from captune.core.text import is_unicode, shown
from captune.data.decoding import ImageData
from captune.data.images import PATH_COLUMNS, ImageCollection
from captune.data.partition_folder import PartitionFolder, read_sample
from captune.data.tables import first_few, text_columns, values_of

VECTOR_KEYS = ("vectors", "images", "embeddings", "image_embeddings", "vector", "embedding")
SECOND_KEYS = ("second", "second_vectors", "second_embeddings", "second_images")
NAME_KEYS = ("image_names", "paths", *PATH_COLUMNS, "names", "name", "id")
TEXT_KEYS = ("texts", "class_texts", "text_embeddings", "vectors")
BYTES_OF_VALUE = 8
ARRAY_FILE = re.compile(r"(?P<file>.*\.(?:npy|npz|safetensors|parquet))(?::(?P<key>[^/\\:]+))?", re.IGNORECASE)


class Embeddings(ImageCollection):
    """Embeddings of images `(images, width)`, to be used instead of the images.

    They are scaled to length one. `names` are shown in tables and matched with labels; by default images are numbered.
    `second` are embeddings of the same images by a second encoder, which may have another width.
    """

    kind: ClassVar[str] = "embeddings"
    items: Floats
    second_items: Floats | None
    was_scaled: bool
    """Whether the embeddings were not of length one."""
    made_by: str = ""
    """Id of the backbone, if it is known."""

    def __init__(self, vectors: Any, names: Iterable[str] | None = None, second: Any = None) -> None:  # noqa: ANN401
        scaled, was_scaled = unit_vectors(vectors, "embeddings")
        super().__init__(check_names(names, len(scaled)), Path(), where=np.arange(len(scaled)), items=scaled)
        others = None if second is None else unit_vectors(second, "second embeddings")[0]
        if others is not None and len(others) != len(scaled):
            raise InputError(f"Expected {len(scaled)} second embeddings, one per image, got {len(others)}.")
        self.was_scaled, self.second_items = was_scaled, others

    @classmethod
    def from_file(cls, path: str | Path) -> Embeddings:
        """Read embeddings from .npy, .npz, .safetensors or Parquet; `file:key` names the array or column."""
        stored = ArrayFile(path)
        vectors = stored.choose(VECTOR_KEYS, "embeddings", n_axes=2)
        second = next((stored[key] for key in SECOND_KEYS if key in stored), None)
        # In a file that also has class texts, `names` are those of the classes.
        keys = [key for key in NAME_KEYS if key in stored and not (key == "names" and "texts" in stored)]
        arrays = [array for array in map(stored.__getitem__, keys) if array.shape == vectors.shape[:1]]
        return cls(vectors, next((array.tolist() for array in arrays if array.dtype.kind in "UO"), None), second)

    @classmethod
    def from_partitions(cls, address: str) -> Embeddings:
        """Read a folder that `captune embed` wrote; of more than a million images, a random sample."""
        vectors, names, total = read_sample(address)
        left = total - len(names)
        rest = f"{left:,} of {total:,} images in {address!r} are not in the sample; captune predict classifies all."
        job = PartitionFolder(address).plan()["job"]
        made_by = job["model"] if job["task"] == "embed" else ""
        return cls(vectors, names)._with(unused=rest if left else "", made_by=made_by)

    @cached_property
    def vectors(self) -> Floats:
        """Return the embeddings of these images, `(images, width)`."""
        return take_rows(self.items, self.where)

    @cached_property
    def second(self) -> Floats | None:
        """Return the embeddings by the second encoder, if there are any, `(images, second width)`."""
        return None if self.second_items is None else take_rows(self.second_items, self.where)

    @property
    def width(self) -> int:
        """Return the width of the embeddings."""
        return int(self.items.shape[1])

    def _facts(self) -> Iterator[Any]:
        """Yield all names and embeddings."""
        yield from (f"{self.name(position)}\0".encode() for position in range(len(self)))
        for rows in row_parts(len(self), self.width):
            yield np.ascontiguousarray(self.vectors[rows]).data
            if self.second is not None:
                yield np.ascontiguousarray(self.second[rows]).data

    def read(self, position: int) -> ImageData:
        """Raise an error: there are no pixels."""
        raise InputError("This needs the images themselves, but only their embeddings were given. Pass the images.")

    def __repr__(self) -> str:
        return f"Embeddings({len(self)} images, width {self.width})"


@dataclass(frozen=True, eq=False)
class ClassTexts:
    """Text embeddings of the classes, `(classes, width)`, scaled to length one.

    `logit_scale` is the factor of the cosine similarities: the exponential of CLIP's parameter, usually 100.
    """

    names: tuple[str, ...]
    vectors: Floats
    logit_scale: float = 100.0

    def __post_init__(self) -> None:
        scale = math.nan
        with suppress(TypeError, ValueError):
            scale = float(self.logit_scale)
        if not 0 < scale < math.inf:
            raise InputError(f"logit_scale is {scale}, expected a positive number such as 100.")
        object.__setattr__(self, "logit_scale", scale)
        object.__setattr__(self, "names", tuple(str(name).strip() for name in self.names))
        object.__setattr__(self, "vectors", unit_vectors(self.vectors, "class texts")[0])
        if len(self.names) != len(self.vectors):
            sizes = f"got {len(self.vectors)} for {len(self.names)} names"
            raise InputError(f"Expected one text embedding per class, {sizes}.")

    @classmethod
    def from_file(cls, path: str | Path) -> ClassTexts:
        """Read an .npz file with `names`, `texts` (or `vectors`) and, optionally, `logit_scale`."""
        stored = ArrayFile(path)
        if stored.suffix != ".npz" or "names" not in stored:
            raise InputError(
                f"No class names in {str(path)!r}: expected an .npz file with 'names' (classes), 'texts' "
                "(classes, width) and, optionally, 'logit_scale'."
            )
        scale: Any = stored["logit_scale"] if "logit_scale" in stored else 100.0  # noqa: SIM401 (it has no get)
        return cls(tuple(stored["names"].tolist()), stored.choose(TEXT_KEYS, "class texts", n_axes=2), scale)

    @property
    def width(self) -> int:
        """Return the width of the embeddings."""
        return int(self.vectors.shape[1])

    def __repr__(self) -> str:
        return f"ClassTexts({len(self.names)} classes, width {self.width}, logit_scale {self.logit_scale:g})"


def unit_vectors(vectors: Any, what: str) -> tuple[Floats, bool]:  # noqa: ANN401 (any array)
    """Return vectors of length one in float32, and whether they had another length before."""
    array: NDArray[Any] = np.empty(0)
    with suppress(ValueError):  # rows of different lengths
        array = np.asarray(vectors.detach().cpu().float().numpy() if hasattr(vectors, "detach") else vectors)
    if array.ndim != 2 or array.dtype.kind not in "fiu" or not array.size:
        raise InputError(f"Expected {what} as numbers (rows, width), got shape {array.shape}, type {array.dtype}.")
    largest, wrong = 0.0, list[str]()

    def scale(rows: slice) -> Floats:
        nonlocal largest
        with np.errstate(over="ignore"):
            part = array[rows].astype(np.float32)
            lengths = np.linalg.norm(part, axis=1, keepdims=True)
        is_usable = np.isfinite(lengths) & (lengths > 0)  # values above 1e19 have no finite length
        wrong.extend(str(rows.start + row) for row in np.flatnonzero(~is_usable).tolist())
        largest = max(largest, float(np.abs(lengths[is_usable] - 1).max(initial=0.0)))
        # Vectors that were scaled before keep their bits, so that saved ones have the same fingerprint.
        is_scaled = (np.abs(lengths - 1) < 1e-5) | ~is_usable
        return np.asarray(part / np.where(is_scaled, 1, lengths), dtype=np.float32)

    scaled = fill_rows(len(array), array.shape[1], scale)
    if wrong:
        raise InputError(
            f"The {what} have values that are not finite or too large, or only zeros, in row "
            f"{', '.join(first_few(wrong))}. Remove these rows or compute them again."
        )
    return scaled, largest > 0.01


def check_names(names: Iterable[str] | None, n_images: int) -> Sequence[str]:
    """Return the names of images that are not files, numbered if there are none."""
    digits = len(str(max(0, n_images - 1)))
    listed = [f"image-{i:0{digits}d}" for i in range(n_images)] if names is None else [str(name) for name in names]
    if len(listed) != n_images:
        raise InputError(f"Expected {n_images} names, one per image, got {len(listed)}.")
    problems = [f"{shown(name)} is not valid Unicode" for name in listed if not is_unicode(name)]
    problems += [f"{shown(name)} ({n} times)" for name, n in Counter(listed).items() if n > 1]
    problems += ["a name is empty"] * (not all(map(str.strip, listed)))
    if problems:
        raise InputError(f"Expected distinct names, one per image: {', '.join(first_few(problems))}.")
    return listed


def split_key(path: str | Path) -> tuple[Path, str]:
    """Split `file.npz:key` into the file and the key, which may be missing."""
    match = None if is_file(path) else ARRAY_FILE.fullmatch(str(path))
    return (Path(path), "") if match is None else (Path(match["file"]), match["key"] or "")


def is_array_file(path: str | Path) -> bool:
    """Return whether a path names a file of arrays; a Parquet file does if it has a column of vectors."""
    file, key = split_key(path)
    suffix = file.suffix.lower()
    has_vectors = suffix == ".parquet" and (key or (is_file(file) and _vector_columns(_parquet_schema(file))))
    return bool(has_vectors) or suffix in (".npy", ".npz", ".safetensors")


def check_memory(n_bytes: int, what: str) -> None:
    """Raise an InputError if an array needs more memory than is available."""
    available = available_memory()
    if n_bytes > available:
        advice = f"only {available / 1e9:.1f} GB are available. Save it as a plain .npy file, which is read in parts"
        raise InputError(f"{what} needs {n_bytes / 1e9:.1f} GB of memory, but {advice}.")


class ArrayFile:
    """The arrays of a file by name, vectors first; each is read when it is asked for."""

    def __init__(self, path: str | Path) -> None:
        self.file, self.key = split_key(path)
        self.suffix = self.file.suffix.lower()
        if not is_file(self.file):
            raise InputError(f"No file {str(self.file)!r}.")
        with _reading(f"{str(self.file)!r} is not a readable {self.suffix} file"):
            if self.suffix == ".parquet":
                schema = _parquet_schema(self.file)
                self._stored: Any = dict.fromkeys([*_vector_columns(schema), *schema.names])
            elif self.suffix == ".safetensors":
                from safetensors.torch import load_file  # NumPy has no bfloat16

                self._stored = load_file(str(self.file))
            else:
                stored = np.load(self.file, mmap_mode="r", allow_pickle=False)
                is_one = isinstance(stored, np.ndarray)
                # A few compressed megabytes may hold gigabytes of zeros.
                for entry in () if is_one else stored.zip.infolist():
                    check_memory(entry.file_size, f"{entry.filename.removesuffix('.npy')!r} in {str(self.file)!r}")
                self._stored = {"vectors": stored} if is_one else stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __getitem__(self, name: str) -> NDArray[Any]:
        with _reading(f"{name!r} in {str(self.file)!r} cannot be read", hint=True):
            if self.suffix == ".parquet":
                return _read_column(self.file, name)
            found = self._stored[name]
            if self.suffix == ".safetensors":
                if found.element_size() < 4:  # half precision is read in place, but becomes single precision here
                    check_memory(4 * found.numel(), f"{name!r} in {str(self.file)!r}")
                found = found.float().numpy()
            return np.asarray(found)

    def choose(self, keys: Sequence[str], what: str, n_axes: int) -> NDArray[Any]:
        """Return the array that the path names, the first with a usual name, or the only one that fits."""
        if self.key and self.key not in self:
            raise InputError(f"No {self.key!r} in {str(self.file)!r}. It has: {', '.join(self)}.")
        chosen = self.key or next((name for name in keys if name in self), "")
        if not chosen:
            kinds = "f" if n_axes == 2 else "iuUSf"
            others = [name for name in self if name not in SECOND_KEYS]
            fitting = [name for name in others if self[name].ndim == n_axes and self[name].dtype.kind in kinds]
            if len(fitting) != 1:
                found = ", ".join(fitting or self) or "nothing"
                example = f"{self.file}:{fitting[0] if fitting else keys[0]}"
                raise InputError(
                    f"Which array of {str(self.file)!r} has the {what}? Found: {found}. Name it, as in {example}"
                )
            chosen = fitting[0]
        array = self[chosen]
        if array.ndim != n_axes:
            raise InputError(f"{chosen!r} in {str(self.file)!r} has shape {array.shape}, expected {n_axes} axes.")
        return array


@contextmanager
def _reading(problem: str, hint: bool = False) -> Iterator[None]:
    """Turn the errors of damaged files, which may be anything from zlib.error to MemoryError, into one sentence."""
    try:
        yield
    except CaptuneError:
        raise
    except Exception as error:
        advice = " Save plain arrays, for example np.array(names, dtype=str) instead of Python objects." if hint else ""
        raise InputError(f"{problem}: {str(error).rstrip('.') or type(error).__name__}.{advice}") from error


def _parquet_schema(file: Path) -> Any:  # noqa: ANN401
    try:
        return import_extra("pyarrow.parquet", "parquet").read_schema(file)
    except (OSError, ValueError) as error:  # errors of Arrow are ValueErrors
        raise InputError(f"{str(file)!r} is not a readable Parquet file: {error}.") from error


def _vector_columns(schema: Any) -> list[str]:  # noqa: ANN401
    """Return the columns with lists of numbers; beside paths, only those with a usual name."""
    from pyarrow import types

    lists = {field.name: field.type.value_type for field in schema if hasattr(field.type, "value_type")}
    found = [name for name, kind in lists.items() if types.is_floating(kind) and name.lower() not in SECOND_KEYS]
    has_paths = any(name.lower() in PATH_COLUMNS for name in schema.names)
    return [name for name in found if name.lower() in VECTOR_KEYS] or ([] if has_paths else found)


def _read_column(file: Path, name: str) -> NDArray[Any]:
    """Return a column of a Parquet file; one of lists has two axes."""
    from pyarrow import parquet, types

    facts = parquet.read_metadata(file)
    chunks = (facts.row_group(i).column(j) for i in range(facts.num_row_groups) for j in range(facts.num_columns))
    n_values = sum(chunk.num_values for chunk in chunks if chunk.path_in_schema.split(".")[0] == name)
    check_memory(BYTES_OF_VALUE * n_values, f"{name!r} in {str(file)!r}")
    texts = text_columns(facts.schema.to_arrow_schema(), [name])
    column = parquet.read_table(file, columns=[name], read_dictionary=texts).column(0)
    if not types.is_nested(column.type):
        found = [value for chunk in column.chunks for value in values_of(chunk)]
        is_text = any(isinstance(value, str) for value in found)
        return np.asarray(found, dtype=object if is_text else None)  # as text, each would be as long as the longest
    column = column.combine_chunks()
    values = column.flatten().to_numpy(zero_copy_only=False)
    if len(column) == 0 or column.null_count or len(values) % len(column):
        raise ValueError("its vectors are missing or differ in length")
    return np.asarray(values).reshape(len(column), -1)
