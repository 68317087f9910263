"""A folder of links to the images, sorted by class: class/name, as many trainers read it."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from captune.core.errors import InputError
from captune.core.files import is_file, table, write_whole
from captune.data.paths import SUFFIXES
from captune.exports._labels import TAKES, choose_labels
from captune.exports.base import ExportFormat, ExportSettings, FinishedRun

LONGEST = 120
"""Bytes that a name may have; file systems allow 255, and some tools add to it."""
TABLE = "classes.csv"
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


class ImageLinks(ExportFormat):
    """Symbolic links; the images stay where they are. classes.csv tells which folder is which class."""

    target: ClassVar[str] = "links"
    is_folder: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = TAKES

    def write(self, run: FinishedRun, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Make the folders and links."""
        chosen = choose_labels(run, settings)
        paths = [run.record.images.paths[int(row)].absolute() for row in chosen.rows]
        there = [i for i, path in enumerate(paths) if is_file(path)]
        if not there:
            raise InputError(
                f"None of the {len(chosen)} images is a file in {str(run.record.images.root)!r} (any more). Put them "
                "back, or unpack the shards."
            )
        folders = safe_names(chosen.class_names, taken=[TABLE])
        links = _link_names([(folders[chosen.labels[i]], chosen.names[i]) for i in there])
        try:
            for folder in folders:
                (target / folder).mkdir()
            for i, link in zip(there, links, strict=True):
                (target / link).symlink_to(paths[i])
        except OSError as error:
            raise InputError(f"Links cannot be made in {str(target)!r}: {error.strerror}. Use --format csv.") from error
        write_whole(target / TABLE, table(("folder", "label"), zip(folders, chosen.class_names, strict=True)))
        missing = len(chosen) - len(there)
        gone = [f"{missing} images are left out: they are gone, or inside a tar shard."] if missing else []
        return [f"{len(there)} of {len(run.record.images)} images are linked in {len(folders)} folders.", *gone]


def safe_names(names: Sequence[str], taken: Iterable[str] = ()) -> list[str]:
    """Return a name for each that every file system takes, all different even where case does not count."""
    used, found = set(taken), []
    for name in names:
        stem, suffix = _split(_safe(name))
        candidate, number = stem + suffix, 1
        while candidate.casefold() in used:
            number += 1
            candidate = f"{stem}-{number}{suffix}"
        used.add(candidate.casefold())
        found.append(candidate)
    return found


def _safe(name: str) -> str:
    """Replace what a path cannot hold; a name that is too long is cut and told apart by a digest."""
    replaced = re.sub(r'[\x00-\x1f\x7f<>:"/\\|?*]', "_", name).strip(" ")
    replaced = re.sub(r"^\.+|\.+$", lambda dots: "_" * len(dots.group()), replaced) or "_"
    if RESERVED.fullmatch(replaced):
        replaced += "_"
    if len(os.fsencode(replaced)) <= LONGEST:
        return replaced
    digest = hashlib.blake2b(os.fsencode(name), digest_size=4).hexdigest()
    stem, suffix = _split(replaced)
    shortened = os.fsencode(stem)[: LONGEST - 16].decode("utf-8", "ignore")
    return f"{shortened}-{digest}{suffix}"


def _split(name: str) -> tuple[str, str]:
    """Split off the suffix of an image; other dots belong to the name."""
    suffix = Path(name).suffix
    return (name.removesuffix(suffix), suffix) if suffix.lower() in SUFFIXES else (name, "")


def _link_names(wanted: Sequence[tuple[str, str]]) -> list[str]:
    """Return folder/name for each; a name that a folder would have twice is told apart by its path."""
    last = [(folder, name.rsplit("/", 1)[-1]) for folder, name in wanted]
    counts = Counter((folder, name.casefold()) for folder, name in last)
    flat = [
        (folder, short if counts[folder, short.casefold()] == 1 else name.replace("/", "__"))
        for (folder, name), (_, short) in zip(wanted, last, strict=True)
    ]
    by_folder: dict[str, list[int]] = {}
    for i, (folder, _) in enumerate(flat):
        by_folder.setdefault(folder, []).append(i)
    links = [""] * len(flat)
    for folder, members in by_folder.items():
        for i, name in zip(members, safe_names([flat[i][1] for i in members]), strict=True):
            links[i] = f"{folder}/{name}"
    return links
