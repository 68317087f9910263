"""A session that several windows share: answers are saved at once, adaptation and files follow in the background."""

from __future__ import annotations

import copy
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from captune.core.errors import CaptuneError, InputError
from captune.data.inputs import collect_images
from captune.data.vocabulary import NONE
from captune.embeddings.similarity import project, project_quickly
from captune.exports.base import export
from captune.report.page import write_report
from captune.review.accept import population_of, precision_curve
from captune.review.answers import Answer
from captune.review.changes import Change, join
from captune.review.corrections import Correction, Corrections, Kind
from captune.review.session import Session
from captune.review.suggestions import SECOND_OPINION, Group, disagreements, find_images, worth_of

MOST_CHOICES = 9
"""Classes that are offered for an image, one per number key."""
SECONDS_SHOWN = 600.0
"""An image that a window shows is not suggested to another one for so long."""
SECONDS_BETWEEN_CHECKS = 2.0
"""How often the file is checked for answers of other programs."""
SECONDS_BETWEEN_SAVES, SAVING_SHARE = 60.0, 0.1
"""Predictions, classifier and report are written so often, but saving takes at most this share of the time."""
NOT_SAVED = "Predictions, classifier and report could not be saved (answers are)"


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What is known at one moment; requests read it without waiting for a running adaptation."""

    version: int
    session: Session
    """The session as it was: a shallow copy, whose answers and predictions are replaced and never changed."""
    labels: dict[int, Answer]
    disagreed: dict[int, dict[str, str]]
    """Labels by person, for images that people gave different ones."""
    told: dict[str, Any]
    """The estimate, the number of answers, the last change and the last problem."""

    @cached_property
    def classes(self) -> list[dict[str, Any]]:
        """Return the classes with their most confident images; sorted once, however many windows ask."""
        names, predicted, described = self.session.names, self.session.predictions.labels, self.session.descriptions
        order = np.lexsort((-self.session.predictions.confidence, predicted))
        members = np.split(order, np.cumsum(np.bincount(predicted, minlength=len(names)))[:-1])
        return [
            {"name": name, "count": len(rows), "descriptions": described.get(name, ()), "images": rows[:6].tolist()}
            for name, rows in zip(names, members, strict=True)
        ]

    def names_now(self, now: Snapshot) -> list[str]:
        """Return the names that the classes of this moment have at a later one."""
        answers = now.session.answers
        renamed = {origin: name for name in answers.names for origin in answers.origins(name)}
        return [renamed.get(self.session.answers.origins(name)[0], name) for name in self.session.names]

    def is_none(self, position: int) -> bool:
        """Return whether somebody says that an image is of none of the classes."""
        return position in self.labels and self.labels[position].label == NONE


class SharedSession:
    """A session with a thread that adapts after every answer, and one that saves the run folder."""

    def __init__(self, session: Session) -> None:
        assert session.corrections.path is not None  # it was saved to a folder
        self.session = session
        self.is_busy, self.n_new_images = False, 0
        self.map_points, self.map_kind = project_quickly(session.engine.vectors), "quick"
        self._answers = Corrections(session.corrections.path, session.person)
        self._saving, self._adapting, self._reading = threading.Lock(), threading.Lock(), threading.Lock()
        self._new: list[str] = []
        self._shown: dict[int, tuple[str, float]] = {}
        self._version_saved = 0 if session.engine.last is None else -1
        self._grouped = threading.Event()
        self.current = self.previous = self.first = self._take_snapshot(0, None)
        self._wake, self._closed = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"captune-{name}", daemon=True)
            for name, work in (("adapt", self._follow), ("save", self._save_regularly))
        ]
        for thread in self._threads:
            thread.start()
        self._map_maker: threading.Thread | None = None

    # Answers

    def answer(
        self, kind: Kind, images: Sequence[int], label: str = "", suggestion: str = "", key: str = "", person: str = ""
    ) -> str:
        """Save an answer about images and return its id; when this returns, it survives a kill."""
        names = tuple(self.session.images.name(self.session.position(image)) for image in images)
        if not names:
            raise InputError("Expected at least one image.")
        with self._saving:
            if kind != "skip" and label not in (*self.current.session.names, NONE):
                raise InputError(f"There is no class {label!r} any more.")
            person = person.strip() or self.session.person
            answer = Correction(kind, label, names, suggestion=suggestion, person=person)
            answer = replace(answer, id=key) if key else answer
            self._answers.extend([answer])
            counted = f"{len(names)} image{'s' if len(names) != 1 else ''}"
            words = {"label": f"labeled {counted} as {label!r}", "not": f"{counted} not {label!r}"}
            self._new.append(words.get(kind, f"skipped {counted}"))
        self._wake.set()
        return answer.id

    def undo(self, key: str = "") -> dict[str, Any]:
        """Undo a correction, by default the last one of this person, and return it."""
        with self._saving:
            self._answers.refresh()
            active = {answer.id: answer for answer in self._answers.active()}
            last = active.get(key) if key else self._answers.last()
            if last is None:
                raise InputError("There is nothing to undo.")
            self._new.append(self._answers.undo(last))
        self._wake.set()
        return {**vars(last), "images": list(self.session.engine.here(dict.fromkeys(last.images)))}

    def change(self, work: Callable[[Session], Change]) -> dict[str, Any]:
        """Change classes or name a group, adapt, and return what changed."""
        with self._saving, self._adapting:
            self.is_busy = True
            try:
                self._publish(work(self.session))
            finally:
                self.is_busy = False
        return self.current.told["change"]

    def update(self) -> dict[str, Any]:
        """Add the new images in the folder of the run, and return what they brought."""
        with self._saving, self._adapting:
            found = self.session.update()
            self.session.groups()
            self.map_points, self.map_kind = project_quickly(self.session.engine.vectors), "quick"
            self._map_maker = None
            self.first = self.previous = self.current = self._take_snapshot(self.current.version + 1, found.change)
            self.n_new_images = 0
        return {"sentence": str(found)}

    def accept(self, precision: float) -> dict[str, Any]:
        """Return how many labels can be accepted, and the curve of coverage against precision."""
        with self._adapting:
            curve = precision_curve(population_of(self.session))
            return {**self.session.accept(precision).as_dict(), "curve": curve}

    # Questions

    def suggestions(self, window: str, count: int, precision: float = 0.0) -> list[dict[str, Any]]:
        """Return images worth an answer, or to check for a precision, that no other window shows."""
        self._grouped.wait()
        with self._reading:
            now, session = time.monotonic(), self.current.session
            others = [i for i, (who, when) in self._shown.items() if who != window and now - when < SECONDS_SHOWN]
            found, disagreed = [], {} if precision else self.current.disagreed
            for position in [row for row in disagreed if row not in others][: count // 2]:
                said = ", ".join(f"{who or 'somebody'} says {label}" for who, label in disagreed[position].items())
                reason = f"{said}: what do you say?"
                found.append({**self.facts(position), "kind": SECOND_OPINION, "reason": reason})
            checks = session.suggest_checks(precision, except_=others)[:count] if precision else []
            for one in checks or session.suggest(count - len(found), except_=others):
                found.append({**self.facts(one.position), "kind": one.kind, "reason": one.reason})
            self._shown |= {int(one["position"]): (window, now) for one in found}
        return found

    def worth(self, count: int) -> str:
        """Return in words what the next answers are worth, by a trial adaptation."""
        self._grouped.wait()
        with self._reading:
            session = self.current.session
            suggestions = session.suggest(count)
        return worth_of(session, suggestions)

    def facts(self, position: int) -> dict[str, Any]:
        """Return what is known about one image: its name, and the most probable classes."""
        now = self.current
        row = now.session.predictions.probabilities[self.session.position(position)]
        best = np.argsort(-row, kind="stable")[:MOST_CHOICES]
        choices = [[now.session.names[c], round(float(row[c]), 4)] for c in best]
        return {
            "position": position,
            "image": self.session.images.name(position),
            "choices": [[NONE, 1.0], *choices] if now.is_none(position) else choices,
            "is_labeled": position in now.labels,
        }

    def find(self, *query: Any) -> dict[str, Any]:  # noqa: ANN401 (arguments of `find_images`)
        """Return images that were searched for, and how many there are."""
        now = self.current
        found, total = find_images(now.session, *query)
        images = [{**asdict(one), "is_labeled": one.position in now.labels} for one in found]
        for one in images:
            if now.is_none(one["position"]):
                one |= {"label": NONE, "confidence": 1.0}
        return {"images": images, "total": total}

    def groups(self) -> list[dict[str, Any]]:
        """Return all groups, those first where one answer corrects most, with the reason."""
        self._grouped.wait()
        with self._reading:
            found = self.current.session.groups()
        # The images in doubt that one answer is expected to correct, if the group is of one class.
        worth = {group.number: len(group) * (1 - group.confidence) * group.share for group in found}
        found.sort(key=lambda group: (group.n_labeled > 0, not group.question, -worth[group.number]))
        return [
            {**vars(group), "images": group.images.tolist(), "size": len(group), "reason": _why(group)}
            for group in found
        ]

    def moves(self, since: str) -> list[dict[str, Any]]:
        """Return which images changed their class since the last adaptation or since the start, by classes."""
        then, now = (self.first if since == "start" else self.previous), self.current
        old = np.asarray(then.names_now(now), dtype=object)[then.session.predictions.labels]
        new = np.asarray(now.session.names, dtype=object)[now.session.predictions.labels]
        pairs: dict[tuple[str, str], list[int]] = {}
        for position in np.flatnonzero(old != new).tolist():
            pairs.setdefault((old[position], new[position]), []).append(position)
        listed = sorted(pairs.items(), key=lambda pair: -len(pair[1]))
        return [{"old": a, "new": b, "images": images} for (a, b), images in listed]

    def improve_map(self) -> None:
        """Start to compute better places, once."""
        if self._map_maker is None:
            self._map_maker = threading.Thread(target=self._draw_map, name="captune-map", daemon=True)
            self._map_maker.start()

    def progress(self) -> dict[str, Any]:
        """Return what changes without a request; windows read the state again if it does."""
        return {
            "version": self.current.version,
            "is_busy": self.is_busy,
            "map": self.map_kind,
            "is_saved": self.is_saved,
            "n_new_images": self.n_new_images,
        }

    def state(self) -> dict[str, Any]:
        """Return what the head of the page and the list of classes show."""
        now, session = self.current, self.session
        facts = {"n_images": len(session.images), "none": NONE, "person": session.person}
        return {**facts, **self.progress(), **now.told, "n_disagreed": len(now.disagreed), "classes": now.classes}

    # Files

    @property
    def is_saved(self) -> bool:
        """Return whether predictions, classifier and report know all answers."""
        return self._version_saved == self.current.version and not self._new

    def save(self) -> Path:
        """Write predictions and classifier, and then the report, if something is new."""
        with self._adapting:
            self._adapt()
            version = self.current.version
            folder = self.session.save()
        if version != self._version_saved:
            write_report([folder])
        self._version_saved = version
        if (now := self.current).told["problem"].startswith(NOT_SAVED):
            self.current = replace(now, told={**now.told, "problem": ""})
        return folder

    def export(self, format: str) -> tuple[str, bytes]:
        """Save the run and return an export of it: file name and content."""
        folder = self.save()
        with self._reading, tempfile.TemporaryDirectory() as temporary:
            target = Path(temporary) / f"{folder.name}-{format}.{format if format in ('onnx', 'csv') else 'json'}"
            export(folder, format, target)
            return target.name, target.read_bytes()

    def close(self) -> None:
        """Stop the threads, and save what they have not saved yet."""
        self._closed.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(timeout=60)
        if not self.is_saved:
            self._try_to_save()

    # Inside

    def _follow(self) -> None:
        """Adapt after every answer; several that arrive meanwhile are taken together."""
        with self._adapting:
            self.session.groups()  # takes a while the first time; the page will ask for it soon
            self.current = replace(self.current, session=copy.copy(self.session))
            self._grouped.set()
        while not self._closed.is_set():
            self._wake.wait(SECONDS_BETWEEN_CHECKS)
            self._wake.clear()
            with self._adapting:
                self._adapt()

    def _adapt(self) -> None:
        """Adapt to new answers; whoever calls this holds the lock."""
        new, self._new = self._new, []
        self.is_busy = bool(new)
        try:
            change = self.session.refresh()
            if change is not None:
                what = ", ".join(dict.fromkeys(new)) or change.what
                self._publish(replace(change, what=what))
            elif self.session.answers is not self.current.session.answers:  # read while the session was saved
                self._publish(None)
        except Exception as error:  # whatever happens, the next answer is followed
            self._report_problem(error, "Adaptation failed")
        finally:
            self.is_busy = False

    def _save_regularly(self) -> None:
        pause = SECONDS_BETWEEN_SAVES
        while not self._closed.wait(pause):
            known = self.session.engine.all_images
            with suppress(CaptuneError, OSError):
                if known.kind == "files" and not known.where.any():
                    self.n_new_images = len(join(known, collect_images(known.root, single=False))) - len(known)
            if not self.is_saved:
                started = time.monotonic()
                self._try_to_save()
                pause = max(SECONDS_BETWEEN_SAVES, (time.monotonic() - started) / SAVING_SHARE)

    def _try_to_save(self) -> None:
        try:
            self.save()
        except Exception as error:
            self._report_problem(error, NOT_SAVED)

    def _report_problem(self, error: Exception, what: str) -> None:
        problem = f"{what}: {error}"
        if not isinstance(error, CaptuneError):
            traceback.print_exc()
            problem = f"{what}; the details are where captune review was started."
        now = self.current
        self.current = replace(now, version=now.version + 1, told={**now.told, "problem": problem})

    def _draw_map(self) -> None:
        try:
            self.map_points = project(self.session.engine.vectors, self.session.seed)
            self.map_kind = "full"
        except (CaptuneError, MemoryError):  # no space in the cache: the quick map stays
            self.map_kind = "quick only"

    def _publish(self, change: Change | None) -> None:
        self.previous, self.current = self.current, self._take_snapshot(self.current.version + 1, change)

    def _take_snapshot(self, version: int, change: Change | None) -> Snapshot:
        session = self.session
        estimate, active = session.estimate(), session.corrections.active()
        told = {
            "estimate": estimate.as_dict() if estimate else None,
            "n_answers": sum(answer.kind in ("label", "not") for answer in active),
            "change": change.as_dict() if change else None,
            "problem": "",
        }
        return Snapshot(version, copy.copy(session), session.labels, session.engine.here(disagreements(active)), told)


def _why(group: Group) -> str:
    if group.question:
        return group.question
    doubtful = round(len(group) * (1 - group.confidence))
    if not doubtful:
        return "nearly certain"
    return f"{doubtful:,} of {len(group):,} in doubt" + ("" if group.share >= 0.5 else ", of several classes")
