"""A session that several windows share: answers are saved at once, and adaptation follows in the background."""

from __future__ import annotations

import dataclasses
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from captune.core.arrays import Floats, Ints
from captune.core.errors import CaptuneError, InputError
from captune.embeddings.projection import project, project_quickly
from captune.exports.base import export
from captune.review.changes import Change
from captune.review.corrections import Correction, Corrections
from captune.review.session import Session

MOST_CHOICES = 9
"""Classes that are offered for an image, one per number key."""
SECONDS_SHOWN = 600.0
"""An image that a window shows is not suggested to another one for so long."""
SECONDS_BETWEEN_LOOKS = 2.0
"""How often the file is checked for answers of other programs."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What is known at one moment; requests read it without waiting for the session."""

    version: int
    names: tuple[str, ...]
    origins: dict[str, tuple[str, ...]]
    """What the classes were called at the start of the session, by which renamed ones are recognized."""
    predicted: Ints
    confidence: Floats
    probabilities: Floats
    labeled: frozenset[int]
    descriptions: dict[str, tuple[str, ...]]
    estimate: dict[str, Any] | None
    n_answers: int
    change: dict[str, Any] | None
    problem: str = ""

    @cached_property
    def classes(self) -> list[dict[str, Any]]:
        """Return the classes with their most confident images; sorted once, however many windows ask."""
        counts = np.bincount(self.predicted, minlength=len(self.names))
        order = np.lexsort((-self.confidence, self.predicted))
        starts = np.searchsorted(self.predicted[order], np.arange(len(self.names)))
        return [
            {
                "name": name,
                "count": int(counts[c]),
                "descriptions": list(self.descriptions.get(name, ())),
                "images": order[starts[c] : starts[c] + min(int(counts[c]), 6)].tolist(),
            }
            for c, name in enumerate(self.names)
        ]

    def names_now(self, now: Snapshot) -> list[str]:
        """Return the names that the classes of this moment have at a later one."""
        renamed = {origin: name for name, origins in now.origins.items() for origin in origins}
        return [renamed.get(self.origins[name][0], name) for name in self.names]


class Desk:
    """A session with a thread that adapts whenever something new was said."""

    def __init__(self, session: Session) -> None:
        if session.corrections.path is None:
            raise InputError("The session has no corrections file: save it to a folder first.")
        self.session = session
        self.is_busy = False
        self._map_points, self.map_kind = project_quickly(session.engine.vectors), "quick"
        self._answers = Corrections(session.corrections.path, session.person)
        self._saving, self._thinking = threading.Lock(), threading.Lock()
        self._said: list[str] = []
        self._shown: dict[int, tuple[str, float]] = {}
        self.current = self.previous = self.first = self._take_snapshot(0, None)
        self._wake, self._is_closed = threading.Event(), False
        self._follower = threading.Thread(target=self._follow, name="captune-adapt", daemon=True)
        self._follower.start()
        self._map_maker: threading.Thread | None = None

    # What people say

    def answer(self, kind: str, images: Sequence[int], label: str, suggestion: str, key: str) -> str:
        """Save an answer about images and return its id; when this returns, it survives a kill."""
        names = tuple(self.session.images.name(self.session.position(image)) for image in images)
        if not names:
            raise InputError("Expected at least one image.")
        with self._saving:
            if kind != "skip" and label not in self.current.names:
                raise InputError(f"There is no class {label!r} any more.")
            told: dict[str, Any] = {"id": key} if key else {}
            said = Correction(
                kind,  # type: ignore[arg-type]
                label,
                names,
                suggestion=suggestion,
                person=self.session.person,
                **told,
            )
            self._answers.extend([said])
            self._said.append(_in_words(kind, len(names), label))
        self._wake.set()
        return said.id

    def undo(self, key: str = "") -> dict[str, Any]:
        """Take back a correction, by default the last one of this person, and return it."""
        with self._saving:
            self._answers.refresh()
            active = {said.id: said for said in self._answers.active()}
            last = active.get(key) if key else self._answers.last()
            if last is None:
                raise InputError("There is nothing to undo.")
            self._said.append(self._answers.undo(last))
        self._wake.set()
        shown = {key: getattr(last, key) for key in ("id", "kind", "label", "suggestion")}
        return {**shown, "images": self._positions(last.images)}

    def change(self, work: Callable[[Session], Change]) -> dict[str, Any]:
        """Change classes or name a group, adapt, and return what changed."""
        with self._saving, self._thinking:
            self.is_busy = True
            try:
                change = work(self.session)
                self._publish(change)
            finally:
                self.is_busy = False
        return self.current.change or {}

    # What captune says

    def looks(self, window: str, count: int) -> list[dict[str, Any]]:
        """Return images worth a look that no other window shows."""
        with self._thinking:
            now = time.monotonic()
            others = [i for i, (who, when) in self._shown.items() if who != window and now - when < SECONDS_SHOWN]
            found = self.session.suggest(count, except_=others)
            for one in found:
                self._shown[one.position] = window, now
        return [{**self.facts(one.position), "kind": one.kind, "reason": one.reason} for one in found]

    def facts(self, position: int) -> dict[str, Any]:
        """Return what is known about one image: its name, and the most probable classes."""
        now = self.current
        row = now.probabilities[self.session.position(position)]
        best = np.argsort(-row, kind="stable")[:MOST_CHOICES]
        return {
            "position": position,
            "image": self.session.images.name(position),
            "choices": [[now.names[c], round(float(row[c]), 4)] for c in best],
            "is_labeled": position in now.labeled,
        }

    def groups(self) -> list[dict[str, Any]]:
        """Return all groups, those whose names are least certain first."""
        with self._thinking:
            found = self.session.groups()
        found.sort(key=lambda group: (group.n_labeled > 0, -len(group) * (1 - group.confidence)))
        return [
            {
                "number": group.number,
                "name": group.name,
                "size": len(group),
                "share": round(group.share, 4),
                "confidence": round(group.confidence, 4),
                "alternatives": [[name, round(share, 4)] for name, share in group.alternatives],
                "n_labeled": group.n_labeled,
                "images": group.images.tolist(),
            }
            for group in found
        ]

    def moves(self, since: str) -> list[dict[str, Any]]:
        """Return which images changed their class since the last adaptation or since the start, by classes."""
        then, now = (self.first if since == "start" else self.previous), self.current
        old = np.asarray(then.names_now(now), dtype=object)[then.predicted]
        new = np.asarray(now.names, dtype=object)[now.predicted]
        pairs: dict[tuple[str, str], list[int]] = {}
        for position in np.flatnonzero(old != new).tolist():
            pairs.setdefault((old[position], new[position]), []).append(position)
        listed = sorted(pairs.items(), key=lambda pair: -len(pair[1]))
        return [{"old": a, "new": b, "images": images} for (a, b), images in listed]

    def map(self) -> Floats:
        """Return the places of all images, `(images, 2)`; the first call starts to compute better ones."""
        if self._map_maker is None:
            self._map_maker = threading.Thread(target=self._draw_map, name="captune-map", daemon=True)
            self._map_maker.start()
        return self._map_points

    def state(self) -> dict[str, Any]:
        """Return what the head of the page and the list of classes show."""
        now = self.current
        return {
            "version": now.version,
            "is_busy": self.is_busy,
            "map": self.map_kind,
            "n_images": len(now.predicted),
            "n_answers": now.n_answers,
            "estimate": now.estimate,
            "change": now.change,
            "problem": now.problem,
            "classes": now.classes,
        }

    def export(self, format: str) -> tuple[str, bytes]:
        """Save the run, and return an export of it: its file name and content."""
        with self._thinking, tempfile.TemporaryDirectory() as temporary:
            folder = self.session.save()
            suffix = {"onnx": ".onnx", "csv": ".csv"}.get(format, ".json")
            target = Path(temporary) / f"{folder.name}-{format}{suffix}"
            export(folder, format, target)
            return target.name, target.read_bytes()

    def close(self) -> None:
        """Stop the threads; everything that was said is saved already."""
        self._is_closed = True
        self._wake.set()
        self._follower.join(timeout=30)

    # Inside

    def _follow(self) -> None:
        """Adapt after every answer; several that arrive meanwhile are taken together."""
        with self._thinking:
            self.session.groups()  # takes a while the first time; the page will ask for it soon
        while not self._is_closed:
            self._wake.wait(SECONDS_BETWEEN_LOOKS)
            self._wake.clear()
            with self._thinking:
                said, self._said = self._said, []
                self.is_busy = bool(said)
                try:
                    change = self.session.refresh()
                    if change is not None:
                        what = ", ".join(dict.fromkeys(said)) or change.what
                        self._publish(dataclasses.replace(change, what=what))
                except Exception as error:  # whatever happens, the next answer is followed
                    problem = str(error)
                    if not isinstance(error, CaptuneError):
                        traceback.print_exc()
                        problem = "Adaptation failed; the details are where captune review was started."
                    self.current = dataclasses.replace(self.current, version=self.current.version + 1, problem=problem)
                finally:
                    self.is_busy = False

    def _draw_map(self) -> None:
        try:
            self._map_points = project(self.session.engine.vectors, self.session.seed)
            self.map_kind = "full"
        except (CaptuneError, MemoryError):  # no space in the cache: the quick map stays
            self.map_kind = "quick only"

    def _publish(self, change: Change) -> None:
        self.previous, self.current = self.current, self._take_snapshot(self.current.version + 1, change)

    def _take_snapshot(self, version: int, change: Change | None) -> Snapshot:
        session = self.session
        estimate = session.estimate()
        answers = session.labels
        return Snapshot(
            version=version,
            names=session.names,
            origins={name: session.answers.origins(name) for name in session.names},
            predicted=session.predictions.labels,
            confidence=session.predictions.confidence,
            probabilities=session.predictions.probabilities,
            labeled=frozenset(answers),
            descriptions=session.descriptions,
            estimate=estimate.as_dict() if estimate else None,
            n_answers=len([said for said in session.corrections.active() if said.kind in ("label", "not")]),
            change=None if change is None else change.as_dict(),
        )

    def _positions(self, images: Sequence[str]) -> list[int]:
        return [self.session.position(image) for image in images if self.session.knows(image)]


def _in_words(kind: str, count: int, label: str) -> str:
    images = f"{count} image{'s' if count != 1 else ''}"
    return {"label": f"labeled {images} as {label!r}", "not": f"{images} not {label!r}"}.get(kind, f"skipped {images}")
