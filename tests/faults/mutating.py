"""A seeded mutator of bytes and of text, and the files that it starts from."""

from __future__ import annotations

import csv
import io
import json
import random
import shutil
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

BYTES = (b"\0", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80", b"\0\0\0\0\0\0\0\0", b"\xef\xbb\xbf")
WORDS = (
    *("../../../etc/passwd", "/dev/zero", "/proc/self/mem", "\0", "\n", "\r\n", '"', "'", ",", ":", "{", "}", "[", "]"),
    *("- ", "? ", "&a [*a, *a]", "*a", "!!python/object/apply:os.system [id]", "%s%n", "{}", "{0.__class__}", "|", "~"),
    *("1e999", "-1", "99999999999999999999", "nan", "null", "true", "2024-99-99", "0x1f", "\u202e", "𐀀", "é"),
    *("[" * 400, "{" * 400, "a" * 3000, "<script>", ".tar", ".png", "\t", "#", "file:", "hf:", "zero_shot", "cap"),
)


def mutate(content: bytes, generator: random.Random) -> bytes:
    """Return a content with one to four changes: bytes flipped, cut, doubled, moved, or replaced by awkward ones."""
    changed = bytearray(content)
    for _ in range(generator.randint(1, 4)):
        at, length = generator.randrange(len(changed) + 1), generator.choice((1, 1, 2, 4, 8, 32, 200))
        kind = generator.randrange(7)
        if kind == 0 and changed:
            changed[at % len(changed)] ^= 1 << generator.randrange(8)
        elif kind == 1:
            changed[at : at + length] = generator.randbytes(length)
        elif kind == 2:
            del changed[at : at + length]
        elif kind == 3:
            changed[at:at] = changed[at : at + length] * generator.choice((1, 2, 50))
        elif kind == 4:
            del changed[at:]
        elif kind == 5:
            changed[at : at + generator.choice((0, 1, 4))] = generator.choice(BYTES)
        else:
            changed[at : at + generator.choice((0, 1, 8))] = generator.choice(WORDS).encode()
    return bytes(changed)


def mutate_json(content: bytes, generator: random.Random) -> bytes:
    """Return JSON in which a value anywhere is another one, so that it still parses; sometimes only its bytes."""
    if generator.random() < 0.3:
        return mutate(content, generator)
    values = (None, -1, 1e308, "", "x" * 500, [], {}, True, ["a"], {"a": 1}, "../../x", 99999999999999999999)
    tree = json.loads(content)
    for _ in range(generator.randint(1, 3)):
        place = tree
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = generator.choice(keys)
            if isinstance(place[key], (dict, list)) and place[key] and generator.random() < 0.7:
                place = place[key]
                continue
            if generator.random() < 0.25:
                del place[key]
            else:
                place[key] = generator.choice(values)
            break
    return json.dumps(tree).encode()


def write_seeds(folder: Path, run: Path, backbone: str) -> None:
    """Write a good file of every kind below a folder; a run that was made before is copied."""
    images = folder / "images"
    images.mkdir(parents=True)
    for i, (suffix, options) in enumerate(_formats()):
        noise = np.random.default_rng(i).integers(0, 256, (24, 20, 3), dtype=np.uint8)
        Image.fromarray(noise).save(images / f"{i}{suffix}", **options)
    names = [f"images/{path.name}" for path in sorted(images.iterdir())]
    labels = ["cat" if i % 2 else "dog" for i in range(len(names))]
    rows = list(zip(names, labels, strict=True))
    (folder / "manifest.csv").write_text(_csv(rows), encoding="utf-8")
    (folder / "list.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    _parquet(folder / "manifest.parquet", names, labels)
    with tarfile.open(folder / "shard.tar", "w") as tar:
        for name in names:
            tar.add(folder / name, arcname=name)
    (folder / "settings.yaml").write_text(
        "method: cap\npreset: quick\ntau: 0.8\nseed: 3\nepochs: 4\ntemplate: 'a photo of a {}'\nbatch_size: 8\n"
        f"keep_better: false\ndescriber: none\nbackbone: {backbone}\nworkers: 0\nk: 4\n",
        encoding="utf-8",
    )
    (folder / "descriptions.yaml").write_text(
        "cat:\n- a small animal with whiskers\n- a pet that purrs\ndog:\n- a loyal animal\n", encoding="utf-8"
    )
    (folder / "classes.yaml").write_text("classes:\n- cat\n- dog\n- 'no'\n", encoding="utf-8")
    shutil.copytree(run, folder / "run")


def _formats() -> tuple[tuple[str, dict[str, object]], ...]:
    return (
        *((".png", {}), (".jpg", {}), (".jpg", {"progressive": True}), (".webp", {}), (".webp", {"lossless": True})),
        *((".tiff", {}), (".tiff", {"compression": "tiff_lzw"}), (".bmp", {}), (".gif", {})),
    )


def _csv(rows: list[tuple[str, str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([("path", "label"), *rows])
    return text.getvalue()


def _parquet(path: Path, names: list[str], labels: list[str]) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"path": names, "label": labels}), path)
