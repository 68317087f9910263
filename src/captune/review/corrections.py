"""Corrections: what people said about images, groups and classes, in a file that only grows.

One JSON object per line, synced before an answer counts as given. Nothing is ever changed or removed: a later line
takes back an earlier one. A line that was cut off by a kill or a power failure was never confirmed, and is removed
before the next one is written.
"""

from __future__ import annotations

import getpass
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any, Literal, get_args

from captune.core.cards import build_card, parse_json
from captune.core.errors import CaptuneError, InputError, RunFolderError
from captune.core.text import one_form

try:
    import fcntl
except ImportError:  # without POSIX locks, two processes must not answer at the same time
    fcntl = None  # type: ignore[assignment]

FILE = "corrections.jsonl"
Kind = Literal["label", "not", "skip", "rename", "merge", "add", "remove", "describe", "undo"]
KINDS: tuple[str, ...] = get_args(Kind)
CHECK = "check"
"""The suggestion of an image that was drawn at random to estimate accuracy."""


def now() -> str:
    """Return the time in UTC, such that text order is time order."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def current_person() -> str:
    """Return the name of the person at the keyboard: CAPTUNE_PERSON, or the user of the operating system."""
    with suppress(Exception):  # a container may have no user names
        return os.environ.get("CAPTUNE_PERSON") or getpass.getuser()
    return ""


@dataclass(frozen=True)
class Correction:
    """One thing that a person said.

    Attributes:
        kind: `label` (images are of a class), `not` (they are not), `skip` (cannot tell), `rename`, `merge`, `add`,
            `remove`, `describe` (changes of classes) or `undo`.
        label: The class; for `rename` and `merge`, the new name.
        images: Names of images, for `label`, `not` and `skip`.
        names: Old names, for `rename` and `merge`.
        sentences: Descriptions of a class, for `add` and `describe`.
        group: Number of the group that was named as a whole, -1 for single images.
        suggestion: Why the image was shown, such as `check`; empty if the person chose it.
        undoes: Id of the correction that is taken back, for `undo`.
        person: Who said it.
        time: When, in UTC.
        id: Unique id, by which files of several people are merged.
    """

    kind: Kind
    label: str = ""
    images: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    group: int = -1
    suggestion: str = ""
    undoes: str = ""
    person: str = ""
    time: str = field(default_factory=now)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", one_form(self.label))
        object.__setattr__(self, "names", tuple(map(one_form, self.names)))

    def line(self) -> bytes:
        """Return the correction as a line of its file, without fields that say nothing."""
        values = asdict(self)
        said = {f.name: values[f.name] for f in fields(self) if f.name == "kind" or values[f.name] != f.default}
        return (json.dumps(said, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


class Corrections:
    """An append-only list of corrections, in a file or, without a path, in memory.

    Several processes may append to the same file; `refresh` reads what others wrote.
    """

    def __init__(self, path: str | Path | None = None, person: str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.person = current_person() if person is None else person
        self._entries: list[Correction] = []
        self._known: set[str] = set()
        self._position = 0
        self.refresh()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Correction]:
        return iter(self._entries)

    def add(self, kind: Kind, label: str = "", **details: Any) -> Correction:  # noqa: ANN401 (fields of Correction)
        """Record a correction; when this returns, it survives a kill or a power failure."""
        said = Correction(kind, label, **{"person": self.person, **details})
        self.extend([said])
        return said

    def extend(self, corrections: Iterable[Correction]) -> int:
        """Record those of the corrections that are not known yet, each synced before the next; return how many."""
        new = [said for said in {said.id: said for said in corrections}.values() if said.id not in self._known]
        if self.path is None:
            self._take(new)
            return len(new)
        with _opened_for_append(self.path) as file:
            self._take(self._read_from(file))
            for said in new:
                file.seek(0, os.SEEK_END)
                file.write(said.line())
                file.flush()
                os.fsync(file.fileno())
            self._position = file.tell()
        self._take(new)
        return len(new)

    def refresh(self) -> int:
        """Read what other processes appended; return the number of new corrections."""
        if self.path is None or not self.path.exists():
            return 0
        before = len(self)
        try:
            with self.path.open("rb") as file:
                self._take(self._read_from(file))
        except OSError as error:
            raise RunFolderError(f"{str(self.path)!r} cannot be read: {error.strerror}.") from error
        return len(self) - before

    def merge(self, others: Iterable[str | Path]) -> int:
        """Add the corrections in other files of the same kind; those that are known already are not repeated."""
        added = 0
        for path in others:
            if not Path(path).is_file():
                raise InputError(f"No corrections at {str(path)!r}: expected a {FILE} file of another run.")
            added += self.extend(Corrections(path))
        return added

    def active(self) -> list[Correction]:
        """Return what holds now, in the order in which it was said: without what was taken back."""
        undone: set[str] = set()
        for said in reversed(self._in_order()):  # an undo may itself be taken back
            if said.kind == "undo" and said.id not in undone:
                undone.add(said.undoes)
        return [said for said in self._in_order() if said.id not in undone and said.kind != "undo"]

    def last(self) -> Correction | None:
        """Return what an undo takes back: this person's last correction that still holds."""
        own = [said for said in self.active() if said.person == self.person]
        return own[-1] if own else None

    def undo(self, said: Correction) -> None:
        """Take a correction back; the marks of a named group ("these not") go with its name."""
        place = (said.person, said.group, said.label)
        marks = [
            other
            for other in self.active()
            if said.kind == "label"
            and said.group >= 0
            and other.kind == "not"
            and (other.person, other.group, other.label) == place
        ]
        self.extend([Correction("undo", undoes=one.id, person=self.person) for one in (said, *marks)])

    def _in_order(self) -> list[Correction]:
        return sorted(self._entries, key=lambda said: (said.time, said.id))

    def _take(self, corrections: Iterable[Correction]) -> None:
        for said in corrections:
            if said.id not in self._known:
                self._known.add(said.id)
                self._entries.append(said)

    def _read_from(self, file: IO[bytes]) -> list[Correction]:
        """Return the complete lines after the last position; a line that is cut off is left for later."""
        size = os.fstat(file.fileno()).st_size
        if size < self._position:  # the file was replaced
            self._position = 0
        file.seek(self._position)
        content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._position += len(complete)
        first = self._position - len(complete)
        return [parse(line, f"{self.path} (byte {first})") for line in complete.split(b"\n") if line.strip()]


def parse(line: bytes, source: str) -> Correction:
    """Return the correction in a line of JSON."""
    try:
        content = parse_json(line.decode("utf-8"))
    except ValueError as error:
        raise RunFolderError(
            f"{source} has a line that is not a correction: {line[:80]!r} ({error}). Restore the file, or remove the "
            "line if it cannot be repaired."
        ) from error
    if not isinstance(content, dict):
        raise RunFolderError(f"{source} has a line that is not a correction: {line[:80]!r}.")
    known = {entry.name for entry in fields(Correction)}
    said = build_card(Correction, {key: value for key, value in content.items() if key in known}, source)
    if said.kind in ("label", "not", "skip") and not said.images:
        raise RunFolderError(f"{source} has a {said.kind!r} without images.")
    return said


@contextmanager
def _opened_for_append(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for this process alone, without the end of a line that was cut off."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            if fcntl is not None:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
            _drop_torn_line(file)
            yield file
    except OSError as error:
        raise CaptuneError(
            f"The answer could not be saved in {str(path)!r}: {error.strerror or error}. Check permissions and free "
            "space, and answer again."
        ) from error


def _drop_torn_line(file: IO[bytes]) -> None:
    size = file.seek(0, os.SEEK_END)
    end = size
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        end = start + found + 1 if found >= 0 else start
        if found >= 0:
            break
    if end < size:
        file.truncate(end)
