"""Opening a session: on images and class names, or on a finished run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from captune.core.cards import build_card, parse_json
from captune.core.errors import InputError
from captune.core.files import is_file, is_folder
from captune.core.wording import option
from captune.data.images import ImageCollection
from captune.data.inputs import Images, collect_images
from captune.data.labels import read_labels
from captune.data.precomputed import ClassTexts, split_key
from captune.data.task import AdaptationTask
from captune.data.vocabulary import Vocabulary
from captune.plan import Plan, change_settings, make_plan
from captune.results.classifier import Classifier
from captune.results.run import Run
from captune.results.run_folder import CARD
from captune.review.answers import collect_answers
from captune.review.corrections import FILE, Corrections
from captune.review.engine import METHOD, Engine, Start, applied
from captune.review.session import Session


def open(
    images: Images,
    classes: str | Path | Sequence[str] | Mapping[str, Any] | ClassTexts | None = None,
    *,
    labels: Any = None,  # noqa: ANN401 (a path, a mapping or one label per image)
    corrections: str | Path | None = None,
    person: str | None = None,
    quiet: bool = False,
    **settings: Any,  # noqa: ANN401 (checked against the settings dataclasses)
) -> Session:
    """Open a session on images and classes, or on a run folder, and return it.

    Settings are those of `captune.adapt`; the default method is `transductive`. What people say is appended to the
    file `corrections`: by default `corrections.jsonl` in a run folder, and otherwise memory only, until `save`.
    """
    if classes is None and isinstance(images, (str, Path)) and is_file(Path(images) / CARD):
        return open_run(images, person=person, quiet=quiet, **settings)
    if classes is None:
        raise InputError("Expected class names as the second argument, or a run folder as the first.")
    _check_arguments(settings)
    plan = make_plan(images, classes, labels, {"method": METHOD, **settings})
    plan.check_backbone()
    return Session(Engine(plan, quiet=quiet), Corrections(corrections, person), plan.settings.seed)


def open_run(
    folder: str | Path,
    images: Images | None = None,
    *,
    person: str | None = None,
    quiet: bool = False,
    **settings: Any,  # noqa: ANN401
) -> Session:
    """Open a session on a finished run; pass its images if they were in memory.

    The session begins with the classifier of the run, unless there are corrections that it does not know.
    """
    _check_arguments(settings)
    record = Run.read(folder)
    classifier = record.classifier
    corrections = Corrections(Path(folder) / FILE, person)
    source = _images_of(record, images)
    start = _start_of(record, classifier, source)
    plan = _plan_of(record.card["settings"], record.card.get("sources", {}), classifier, source, start, settings)
    engine = Engine(plan, classifier.backbone, start, quiet)
    engine.folder, engine.review = Path(folder), dict(record.card.get("review", {}))
    begun, now = (
        applied(collect_answers(made, start.names, start.descriptions, start.labels))
        for made in ((), corrections.active())
    )
    is_current = record.card.get("review", {}).get("applied", begun) == now
    if record.method != engine.method and "method" not in settings:
        keep = option("method", record.method)
        engine.explanation = f"Adapted with {engine.method}, which takes seconds, instead of {record.method} ({keep})"
    if is_current and not settings:
        engine.adopt(classifier)
    return Session(engine, corrections, plan.settings.seed)


def session_of(run: Run) -> Session:
    """Open a session on a run, in its folder or in memory; it begins with the classifier of the run."""
    if run.is_saved:
        return open_run(run.folder, quiet=True)
    names, used = run.classifier.names, run.classifier.vocabulary.descriptions
    start = Start(names, {names[c]: tuple(sentences) for c, sentences in used.items()})
    plan = _plan_of(run.settings, run.sources, run.classifier, run.images, start, {})
    engine = Engine(plan, run.classifier.backbone, start)
    engine.adopt(run.classifier)
    return Session(engine, Corrections(), plan.settings.seed)


def _check_arguments(settings: Mapping[str, Any]) -> None:
    """Raise an error for arguments of `captune.adapt` that a session has no use for."""
    found = [name for name in ("out", "overwrite", "resume", "progress") if name in settings]
    if found:
        raise InputError(
            f"A session has no argument {found[0]!r}. It writes nothing until it is saved: "
            "session.save(folder, overwrite=False)."
        )


def _plan_of(
    run_settings: Mapping[str, Any],
    sources: Mapping[str, str],
    classifier: Classifier,
    images: ImageCollection,
    start: Start,
    settings: Mapping[str, Any],
) -> Plan:
    """Return the settings of a run as a plan; its method is replaced by one that takes a second."""
    built, method = change_settings(run_settings, {"method": METHOD, **settings})
    task = AdaptationTask(Vocabulary(start.names, (built.template,)), images)
    return Plan(built, method, task, images, sources, classifier.backbone)


def _start_of(record: Run, classifier: Classifier, images: ImageCollection) -> Start:
    """Return the classes and labels that a run began with, before anybody corrected them."""
    stored = record.card.get("review", {}).get("start")
    if stored is not None:
        return build_card(Start, stored, str(record.folder / CARD))
    offered: dict[str, tuple[str, ...]] = {}
    for facts in record.card["rounds"]:
        if facts.get("step") == "descriptions":
            offered = {name: tuple(sentences) for name, sentences in facts["descriptions"].items()}
    used = classifier.vocabulary.descriptions
    explicit = {} if offered else {record.names[c]: tuple(sentences) for c, sentences in used.items()}
    labels: dict[str, str] = {}
    source = record.card.get("sources", {}).get("labels")
    if source is not None:
        if source != "folders" and not is_file(source):
            raise InputError(
                f"The labels of this run, {source!r}, cannot be found. Put them back, or open the images instead: "
                "captune.open(images, classes, labels=...)"
            )
        renamed = parse_json(record.card["sources"].get("renamed", "{}"))
        ids = read_labels(source, images, record.names, renamed)
        labels = {images.name(i): record.names[ids[i]] for i in range(len(images)) if ids[i] >= 0}
    return Start(record.names, explicit, labels, offered)


def _images_of(record: Run, images: Images | None) -> ImageCollection:
    """Return the images of a run, and no others: where they were, or where the user says that they are now."""
    kind, source = record.card.get("image_source", "files"), record.card.get("sources", {}).get("images", "")
    wanted = [record.images.name(position) for position in range(len(record.images))]
    if images is not None or is_folder(source) or is_file(split_key(source)[0]):
        found = collect_images(source if images is None else images, single=False)
        rows = {found.name(position): position for position in range(len(found))}
        known = [rows[name] for name in wanted if name in rows]
        # A folder of the same name may be another one, if the command is started elsewhere.
        is_same = images is not None or kind != "files" or found.root.absolute() == record.images.root
        if is_same and len(known) >= len(record.readable):
            return found.subset(known)
        if images is not None and known and kind == "files":  # those that are gone are marked as skipped
            return ImageCollection((found.root / name for name in wanted), found.root)
        if images is not None:
            raise InputError(f"{len(wanted) - len(known)} images of the run are not in {found.place}.")
    if kind == "files" and is_folder(record.images.root):
        return record.images
    where = str(record.images.root) if kind == "files" else source or "in memory"
    raise InputError(f"The images of this run were {where}. Say where they are now: {option('images', '...')}")
