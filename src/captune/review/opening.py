"""Opening a session: on images and class names, or on a finished run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from captune.core.errors import InputError
from captune.core.files import build_card, is_file, is_folder, parse_json
from captune.core.text import option
from captune.core.typed_settings import AdaptSettings
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


def open_session(
    run_or_images: Images | Run,
    classes: str | Path | Sequence[str | Mapping[str, str]] | Mapping[str, Any] | ClassTexts | None = None,
    *,
    images: Images | None = None,
    labels: Any = None,  # noqa: ANN401 (a path, a mapping or one label per image)
    corrections: str | Path | None = None,
    person: str | None = None,
    quiet: bool = False,
    **settings: Unpack[AdaptSettings],
) -> Session:
    """Open a session on a run, or on images and classes.

    A run is a folder or what `captune.adapt` returned; pass its `images` if they moved, changed or were in memory. The
    session begins with the classifier of the run, unless there are corrections that it does not know. Settings are
    those of `captune.adapt`; the default method is `transductive`. What people say is appended to the file
    `corrections`: by default `corrections.jsonl` in a run folder, and otherwise memory only, until `save`.
    """
    if found := [name for name in ("out", "overwrite", "resume", "progress") if name in settings]:
        raise InputError(f"A session has no argument {found[0]!r}: it is written by session.save(folder).")
    if classes is None and isinstance(run_or_images, (str, Path)):
        run_or_images = Run.read(run_or_images)
    if isinstance(run_or_images, Run):
        return _open_run(run_or_images, images, person, quiet, settings)
    if classes is None:
        raise InputError("Expected class names as the second argument, or a run folder as the first.")
    plan = make_plan(run_or_images, classes, labels, {"method": METHOD, **settings})
    plan.check_backbone()
    return Session(Engine(plan, quiet=quiet), Corrections(corrections, person), plan.settings.seed)


def _open_run(run: Run, images: Images | None, person: str | None, quiet: bool, settings: Mapping[str, Any]) -> Session:
    classifier, folder = run.classifier, run.saved_in
    corrections = Corrections(None if folder is None else folder / FILE, person)
    source = run.images if folder is None else _images_of(run, images)
    start = _start_of(run, classifier, source)
    # The method of the run is replaced by one that takes a second.
    built, method = change_settings(run.settings, {"method": METHOD, **settings})
    task = AdaptationTask(Vocabulary(start.names, (built.template,)), source)
    plan = Plan(built, method, task, source, run.sources, classifier.backbone)
    engine = Engine(plan, classifier.backbone, start, quiet)
    engine.folder, engine.review = folder, dict(run.review or {})
    engine.known = {run.readable.name(i) for i in range(len(run.readable))}
    engine.is_theirs = folder is not None and images is None and not run.is_own
    begun, now = (
        applied(collect_answers(made, start.names, start.descriptions, start.labels))
        for made in ((), corrections.active())
    )
    before = str(run.choice.get("method", run.method))  # what `auto` chose
    if before != built.method and "method" not in settings:
        keep = option("method", before)
        engine.notes = [f"Adapted with {built.method}, which takes seconds, instead of {before} ({keep})"]
    if engine.review.get("applied", begun) == now and not settings:
        engine.adopt(classifier)
    return Session(engine, corrections, built.seed)


def _start_of(run: Run, classifier: Classifier, images: ImageCollection) -> Start:
    """Return the classes and labels that a run began with, before anybody corrected them."""
    if run.review is not None and (stored := run.review.get("start")) is not None:
        return build_card(Start, stored, f"{CARD} of the run")
    offered: dict[str, tuple[str, ...]] = {}
    for facts in run.rounds:
        if facts.get("step") == "descriptions":
            offered = {name: tuple(sentences) for name, sentences in facts["descriptions"].items()}
    plain, explicit = Vocabulary(run.names, classifier.vocabulary.templates), dict[str, tuple[str, ...]]()
    for c, texts in classifier.vocabulary.descriptions.items():
        own = tuple(text for text in texts if text not in offered.get(run.names[c], ()))
        if own and own != plain.texts(c):
            explicit[run.names[c]] = own
    labels, source = dict[str, str](), run.sources.get("labels")
    if source is not None and run.saved_in is not None:
        if source != "folders" and not is_file(source):
            raise InputError(f"The labels of this run, {source!r}, cannot be found: put them back.")
        ids = read_labels(source, images, run.names, parse_json(run.sources.get("renamed", "{}")))
        labels = {images.name(i): run.names[ids[i]] for i in range(len(images)) if ids[i] >= 0}
    return Start(run.names, explicit, labels, offered)


def _images_of(run: Run, images: Images | None) -> ImageCollection:
    """Return the images of a run, and no others: where they were, or where the user says that they are now."""
    kind, source = run.card.get("image_source", "files"), run.sources.get("images", "")
    wanted = [run.images.name(position) for position in range(len(run.images))]
    if images is not None or is_folder(source) or is_file(split_key(source)[0]):
        found = collect_images(source if images is None else images, single=False)
        rows = {found.name(position): position for position in range(len(found))}
        known = [rows[name] for name in wanted if name in rows]
        # A folder of the same name may be another one, if the command is started elsewhere.
        is_same = images is not None or kind != "files" or found.root.absolute() == run.images.root
        if is_same and len(known) >= len(run.readable):
            chosen = found.subset(known), found.subset(sorted(known))  # in the order of the run, and of the folder
            before = run.environment.get("data_fingerprint")
            if images is None and len(known) == len(wanted) and before not in [one.fingerprint for one in chosen]:
                now = f"To use them as they are now: {option('images', str(found.root))}"
                raise InputError(f"The images in {found.place} have changed since the run was made. {now}")
            return chosen[0]
        if images is not None and known and kind == "files":  # those that are gone are marked as skipped
            return ImageCollection((found.root / name for name in wanted), found.root)
        if images is not None:
            raise InputError(f"{len(wanted) - len(known)} images of the run are not in {found.place}.")
    if kind == "files" and is_folder(run.images.root):
        return run.images
    where = str(run.images.root) if kind == "files" else source or "in memory"
    raise InputError(f"The images of this run were {where}. Say where they are now: {option('images', '...')}")
