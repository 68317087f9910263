"""Corrections: people's answers about images, groups and classes, in a file that only grows.

One JSON object per line, synced before an answer counts as given. Nothing is ever changed or removed: a later line
undoes an earlier one. A line that was cut off by a kill or a power failure was never confirmed, and is removed before
the next one is written. Order is logical, not by the clock: every correction has a number that is larger than all
numbers its writer knew.
"""

from __future__ import annotations

import errno
import getpass
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any, Literal

from captune.core.errors import CaptuneError, InputError, RunFolderError, raise_all
from captune.core.files import build_card, parse_json
from captune.core.text import invalid_character, one_form, shown
from captune.data.tables import first_few
from captune.data.vocabulary import MOST_CHARACTERS

try:
    import fcntl
except ImportError:  # without POSIX locks, two processes must not answer at the same time
    fcntl = None  # type: ignore[assignment]

FILE = "corrections.jsonl"
Kind = Literal["label", "not", "skip", "rename", "merge", "add", "remove", "describe", "undo"]
CHECK = "check"
"""The suggestion of an image that was drawn at random to estimate accuracy."""
PRECISION = "precision"
"""The suggestion of an image that was drawn at random among confident predictions, to certify their precision."""
LONGEST_SENTENCE = 2000
LONGEST_IMAGE_NAME = 8192


@dataclass(frozen=True)
class Correction:
    """One answer of a person.

    Attributes:
        kind: `label` (images are of a class), `not` (they are not), `skip` (cannot tell), `rename`, `merge`, `add`,
            `remove`, `describe` (changes of classes) or `undo`.
        label: The class, or `captune.NONE` for none of them; for `rename` and `merge`, the new name.
        images: Names of images, for `label`, `not` and `skip`.
        names: Old names, for `rename` and `merge`.
        sentences: Descriptions of a class, for `add` and `describe`.
        group: Number of the group that was named as a whole, -1 for single images.
        suggestion: Why the image was shown, such as `check`; empty if the person chose it.
        undoes: Id of the correction that is undone, for `undo`.
        person: Who answered.
        time: When, in UTC; nothing depends on it.
        number: Logical time: one more than the largest number that the writer knew; 0 until it is recorded.
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
    time: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="microseconds"))
    number: int = 0
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", one_form(self.label))
        object.__setattr__(self, "names", tuple(map(one_form, self.names)))

    def line(self) -> bytes:
        """Return the correction as a line of its file, without fields that have their default."""
        values = asdict(self)
        told = {f.name: values[f.name] for f in fields(self) if f.name == "kind" or values[f.name] != f.default}
        return (json.dumps(told, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")

    def problems(self) -> list[str]:
        """Return why this cannot be recorded: texts that a later step could not read, or no images."""
        texts = (self.label, *self.names, self.suggestion, self.undoes, self.person, self.time, self.id)
        limits = ((texts, MOST_CHARACTERS), (self.sentences, LONGEST_SENTENCE), (self.images, LONGEST_IMAGE_NAME))
        found = []
        for listed, longest in limits:
            found += [f"{shown(text)} has more than {longest:,} characters" for text in listed if len(text) > longest]
        for text in (*texts, *self.sentences):
            if (letter := invalid_character(text)) is not None:
                found.append(f"{shown(text)} contains {letter}, which is not text")
        if self.kind in ("label", "not", "skip") and not self.images:
            found.append(f"{self.kind!r} without images")
        return found


class Corrections:
    """An append-only list of corrections, in a file or, without a path, in memory.

    Several processes may append to the same file; `refresh` reads what others wrote. Lines that are not corrections
    are left in the file and listed in `problems`.
    """

    def __init__(self, path: str | Path | None = None, person: str | None = None) -> None:
        self.path = None if path is None else Path(path)
        if person is None:
            person = os.environ.get("CAPTUNE_PERSON", "")
            with suppress(Exception):  # a container may have no user names
                person = person or getpass.getuser()
        self.person = person
        self.problems: list[str] = []
        self._entries: dict[str, Correction] = {}
        self._position = self._n_lines = self._latest = 0
        self.refresh()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Correction]:
        return iter(self._entries.values())

    def add(self, kind: Kind, label: str = "", **details: Any) -> Correction:  # noqa: ANN401 (fields of Correction)
        """Record a correction; when this returns, it survives a kill or a power failure."""
        made = Correction(kind, label, **{"person": self.person, **details})
        self.extend([made])
        return self._entries[made.id]

    def extend(self, corrections: Iterable[Correction]) -> int:
        """Record those of the corrections that are not known yet, each synced before the next; return how many."""
        new = [made for made in {made.id: made for made in corrections}.values() if made.id not in self._entries]
        raise_all(first_few(problem for made in new for problem in made.problems()), "Cannot record this answer")
        with nullcontext() if self.path is None else _opened_for_append(self.path) as file:
            if file is not None:
                self._read_from(file)
                file.truncate(self._position)  # a line that was cut off was never confirmed
            for made in new:
                numbered = made if made.number else replace(made, number=self._latest + 1)
                if file is not None:
                    line = numbered.line()
                    try:
                        if file.write(line) < len(line):
                            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                        os.fsync(file.fileno())
                    except OSError:  # told as not saved, so it must not count later
                        file.truncate(self._position)
                        raise
                    self._position += len(line)
                    self._n_lines += 1
                self._entries[numbered.id] = numbered
                self._latest = max(self._latest, numbered.number)
        return len(new)

    def refresh(self) -> int:
        """Read what other processes appended; return the number of new corrections."""
        if self.path is None or not self.path.exists():
            return 0
        before = len(self)
        try:
            with self.path.open("rb") as file:
                self._read_from(file)
        except OSError as error:
            raise RunFolderError(f"{str(self.path)!r} cannot be read: {error.strerror}.") from error
        return len(self) - before

    def merge(self, others: Iterable[str | Path]) -> int:
        """Add the corrections in other files of the same kind; those that are known already are not repeated."""
        added = 0
        for path in others:
            if not Path(path).is_file():
                raise InputError(f"No corrections at {str(path)!r}: expected a {FILE} file of another run.")
            theirs = Corrections(path)
            added += self.extend(theirs)
            self.problems += theirs.problems
        return added

    def active(self) -> list[Correction]:
        """Return what holds now, without what was undone, in logical order: after everything its writer knew."""
        ordered, undone = sorted(self, key=lambda made: (made.number, made.id)), set[str]()
        for made in reversed(ordered):  # an undo may itself be undone
            if made.kind == "undo" and made.id not in undone:
                undone.add(made.undoes)
        return [made for made in ordered if made.id not in undone and made.kind != "undo"]

    def last(self) -> Correction | None:
        """Return what an undo concerns: this person's last correction that still holds."""
        return next((made for made in reversed(self.active()) if made.person == self.person), None)

    def undo(self, made: Correction) -> str:
        """Undo a correction and say which; the marks of a named group ("these not") go with its name."""
        place = (made.person, made.group, made.label)
        is_group = made.kind == "label" and made.group >= 0
        marks = [m for m in self.active() if is_group and m.kind == "not" and (m.person, m.group, m.label) == place]
        self.extend([Correction("undo", undoes=one.id, person=self.person) for one in (made, *marks)])
        whose = "" if made.person == self.person else f" of {made.person or 'somebody'}"
        return f"undid {made.kind} {made.label!r}".removesuffix(" ''") + whose

    def _read_from(self, file: IO[bytes]) -> None:
        """Include the complete lines after the last position; a line that is cut off is left for later."""
        size = os.fstat(file.fileno()).st_size
        if size < self._position:  # the file was replaced
            self._position = self._n_lines = 0
        file.seek(self._position)
        content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._position += len(complete)
        for line in complete.split(b"\n")[:-1]:
            self._n_lines += 1
            if not line.strip():
                continue
            try:
                made = build_card(Correction, parse_json(line.decode("utf-8")), f"line {self._n_lines}")
                raise_all(made.problems(), "It cannot be used")
            except (CaptuneError, ValueError) as error:
                self.problems.append(f"{str(self.path)!r}: line {self._n_lines} was skipped. {error}")
                continue
            # Whoever wrote the n-th line knew at most n - 1 others: a larger number is not true.
            number = max(1, min(made.number or self._n_lines, self._n_lines))
            self._entries.setdefault(made.id, replace(made, number=number))
            self._latest = max(self._latest, number)


@contextmanager
def _opened_for_append(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for this process alone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+", buffering=0) as file:
            if fcntl is not None:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
            yield file
    except OSError as error:
        raise CaptuneError(
            f"The answer could not be saved in {str(path)!r}: {error.strerror or error}. Check permissions and free "
            "space, and answer again."
        ) from error
