"""Stamps of files: as long as the stamp of a file is the same, its content is, so it need not be read again.

A stamp is a digest of the path and of what the file system says about the file: device, inode, size, and the times of
its last change. Nobody can set the time of the last status change (ctime), so a file that was written in place, or
replaced by one of the same size and modification time, has another stamp. A file that changed in the last seconds has
no stamp, because clocks of file systems are coarse: it could change again without a trace.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from captune.core.arrays import KEY_BYTES, Keys, content_key
from captune.core.files import digest
from captune.data.images import ImageCollection

SECONDS_UNTIL_SETTLED = 2.0


def stamp_images(images: ImageCollection) -> Keys | None:
    """Return the stamp of every image file, `(images, 16)`, zeros for those without; None if these are not files."""
    if images.kind != "files":
        return None
    stamps = np.zeros((len(images), KEY_BYTES), dtype=np.uint8)
    latest = _latest()
    facts_of_shard = lru_cache(maxsize=1024)(lambda shard: _facts(os.path.abspath(shard), latest))  # noqa: PTH100
    working_folder = os.getcwd()  # noqa: PTH109 (paths are joined as text: this runs once per image)
    for position in range(len(images)):
        span = images.span(position)
        if span is None:
            facts = _facts(os.path.join(working_folder, images.files[position]), latest)  # noqa: PTH118
        else:
            shard = facts_of_shard(span.shard)
            facts = f"{shard}\n{span.offset} {span.size}" if shard else ""
        if facts:
            stamps[position] = content_key(facts.encode("utf-8", "surrogateescape"))
    return stamps


def stamp_files(files: Sequence[Path], about: str) -> str | None:
    """Return one stamp of several files and a text that says what they are for; None if a file has none."""
    latest = _latest()
    facts = [_facts(str(file.absolute()), latest) for file in files]
    return digest("\n".join([about, *facts]).encode("utf-8", "surrogateescape")) if all(facts) else None


def _latest() -> int:
    """Return the time of the last change, in nanoseconds, up to which files have settled."""
    return time.time_ns() - int(SECONDS_UNTIL_SETTLED * 1e9)


def _facts(path: str, latest: int) -> str:
    """Return what a stamp depends on, or nothing for a file without one."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):  # a name with a NUL character is a ValueError
        return ""
    if not stat.S_ISREG(found.st_mode) or max(found.st_mtime_ns, found.st_ctime_ns) > latest:
        return ""
    return f"{path}\n{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"
