"""The straight line from images and class names to a saved classifier with a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from captune.core import distributed, runtime
from captune.core.runtime import say, unchanged
from captune.core.text import shown
from captune.core.typed_settings import AdaptSettings
from captune.data.inputs import Images
from captune.data.labels import read_labels
from captune.data.precomputed import ClassTexts, Embeddings
from captune.embeddings.embed import classes_read_alike
from captune.methods.base import Context
from captune.plan import Plan, make_plan
from captune.results.finishing import environment_of, finish
from captune.results.run import Run
from captune.results.run_folder import CHECKPOINTS, claim_folder
from captune.training.checkpoint import CheckpointFolder, digest_of, drop_checkpoints, holds_checkpoints


@unchanged()
def adapt(
    images: Images,
    classes: str | Path | Sequence[str | Mapping[str, str]] | Mapping[str, Any] | ClassTexts,
    *,
    labels: Any = None,  # noqa: ANN401 (a path, a mapping or one label per image)
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    quiet: bool = False,
    progress: bool = True,
    **settings: Unpack[AdaptSettings],
) -> Run:
    """Adapt a backbone to images without labels and return the run; with `out`, also save it as a folder.

    `images` are a path, a sequence of paths, Pillow images or arrays, an array, a dataset, a table or `Embeddings`.
    `classes` are names, a table, a mapping from names to descriptions, or `ClassTexts`. `labels` are a path, a mapping
    or one label per image. Keyword settings are those of every run (method, backbone, seed, ...) and those of the
    method; the backbone may be a model in memory (`wrap`), the describer a mapping or a function. `progress=False`
    hides progress bars, `quiet=True` also messages. Random states, flags and loggers are afterward as before.
    """
    plan = make_plan(images, classes, labels, settings)
    return carry_out(plan, out=out, overwrite=overwrite, resume=resume, quiet=quiet, progress=progress)


@unchanged()
def audit(
    images: Images,
    classes: str | Path | Sequence[str | Mapping[str, str]] | Mapping[str, Any] | ClassTexts,
    *,
    labels: Any = None,  # noqa: ANN401
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    progress: bool = True,
    **settings: Unpack[AdaptSettings],
) -> Run:
    """Find misleading class names and confused classes without training; with labels, the report measures accuracy."""
    own = {name: value for name, value in settings.items() if name not in ("method", "preset")}
    plan = make_plan(images, classes, None, {**own, "method": "audit"})
    truth = None if labels is None else read_labels(labels, plan.images, plan.task.vocabulary.names)
    run = carry_out(plan, out=out, overwrite=overwrite, quiet=quiet, progress=progress, report=truth is None)
    if truth is not None and out is not None:
        from captune.report.page import write_report

        write_report([out], labels=truth[run.predictions.image_index])
    return run


@unchanged()
def carry_out(
    plan: Plan,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    quiet: bool = False,
    progress: bool = True,
    report: bool = True,
    keep_checkpoints: bool = False,
) -> Run:
    """Carry out a plan and return the run; with `out`, also save it as a folder with a report."""
    plan.check_backbone()
    engine = runtime.start(plan.settings, quiet=quiet, progress=progress)
    folder = None if out is None else Path(out)
    with distributed.together():
        with ExitStack() as stack:  # the first process keeps the folder locked until the run is saved
            if folder is not None:
                if distributed.is_restarted() and holds_checkpoints(folder / CHECKPOINTS):
                    overwrite, resume = False, True
                claim = claim_folder(folder, overwrite, resume)
                distributed.from_first(lambda: ({}, str(stack.enter_context(claim))))
            run = _adapt(plan, engine, folder)
            if folder is not None and engine.is_writer:
                run.write(folder)  # the folder is claimed already
                if report:
                    write_report_of(folder, engine.say)
        if folder is not None and engine.is_writer and not keep_checkpoints:
            try:
                drop_checkpoints(folder / CHECKPOINTS)  # last, so that a killed process never loses its training
            except OSError as error:
                engine.say(f"The run is saved, but its checkpoints could not be deleted: {error}")
    return run


def _adapt(plan: Plan, engine: runtime.Runtime, folder: Path | None) -> Run:
    describer = plan.open_describer()
    backbone = plan.open_backbone(engine)
    backbone.texts_at_once = plan.settings.class_chunk
    environment = environment_of(plan.images, backbone, engine)
    inputs = ("data_fingerprint", "backbone_fingerprint", "versions")
    # Only the same run resumes from a checkpoint.
    key = digest_of({**plan.training_facts(), **{name: environment[name] for name in inputs}})
    context = Context(
        runtime=engine,
        cache=plan.cache,
        batch_size=plan.settings.batch_size,
        describer=describer,
        domain=plan.settings.domain,
        checkpoints=None if folder is None else CheckpointFolder(folder / CHECKPOINTS, key),
    )
    method, preset = plan.settings.method, plan.settings.preset
    if preset and method != "auto":  # which says what it chose
        meaning = "which needs no GPU" if preset == "quick" else "which trains as published and suits a GPU"
        engine.say(f"Method {method}, preset {preset}, {meaning}.")
    if plan.images.unused:
        engine.say(plan.images.unused)
    if plan.class_texts is None:
        for names in classes_read_alike(backbone, plan.task.vocabulary):
            engine.say(
                f"The text encoder reads {' and '.join(shown(name) for name in names[:3])} as the same text, so these "
                "classes cannot be told apart by their names. Use other or shorter names, or describe them."
            )
    if isinstance(plan.images, Embeddings) and plan.images.was_scaled:
        engine.say("The embeddings were not of length one and have been normalized.")
    return finish(plan, backbone, context).run(environment)


def write_report_of(folder: str | Path, say: Callable[[str], None] = say) -> None:
    """Write the report of a saved run; if this fails, the run is still complete."""
    try:
        from captune.report.page import write_report

        write_report([folder])
    except Exception as error:
        say(f"The run is saved, but the report could not be written: {type(error).__name__}: {error}")
