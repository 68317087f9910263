"""What people do about a run: suggest, find, label, estimate, accept and update."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from captune.commands import _shared
from captune.commands._shared import argument, command, flag, open_run, out, say, several, write_lines
from captune.core.errors import InputError

if TYPE_CHECKING:
    from captune.review.session import Session
    from captune.review.suggestions import Suggestion

FILL_IN = "Fill in the column 'answer' (a class, = if the label is right, ? if you cannot tell), then:"


@command(
    *_shared.RUN_AND_IMAGES,
    argument("--count", type=int, metavar="N", help="number of images (default: 20, or all with --for-precision)"),
    argument("--for-precision", type=float, metavar="P", help="the images to check before labels are accepted"),
    argument("--checks", type=float, default=0.2, metavar="SHARE", help="share drawn at random (default: 0.2)"),
    flag("--groups", help="list groups of images instead, to be named as a whole"),
    out(help="table to fill in (default: standard output)", metavar="CSV"),
    epilog=f"{FILL_IN} captune label RUN --from CSV",
)
def suggest(options: argparse.Namespace) -> None:
    """List the images, or groups of images, that a person should look at first."""
    from captune.review.answers import groups_table, suggestions_table
    from captune.review.suggestions import worth_of

    count, share = 20 if options.count is None else options.count, options.checks
    if count < 1 or not 0 <= share <= 1:
        raise InputError(f"Expected --count of at least 1 and --checks from 0 to 1, got {count} and {share}.")
    session = open_run(options)
    found: list[Suggestion] = []
    if options.groups:
        groups = sorted(session.groups(), key=lambda g: (not g.question, -len(g) * (1.0 - g.confidence)))[:count]
        told, lines = f"{len(groups)} groups", groups_table(groups, session.images)
    else:
        is_free = options.for_precision is None
        found = session.suggest(count, checks=share) if is_free else session.suggest_checks(options.for_precision)
        found = found[: options.count]
        told, lines = f"{len(found)} images", suggestions_table(found)
    write_lines(lines, options.out)
    if options.out is None:
        return
    say(f"{told} to look at: {options.out}")
    if found and options.for_precision is None:
        say(worth_of(session, found))
    say(f"{FILL_IN} captune label {options.run} --from {options.out}")


@command(
    *_shared.RUN_AND_IMAGES,
    argument("text", nargs="?", default="", metavar="WORDS", help="what the images show"),
    argument("--like", metavar="IMAGE", help="image that they resemble, instead of words"),
    argument("--class", dest="label", metavar="NAME", help="class that they are predicted as"),
    argument("--above", type=float, default=0.0, metavar="P", help="lowest confidence (default: 0)"),
    argument("--below", type=float, default=1.0, metavar="P", help="highest confidence (default: 1)"),
    several(
        "--only",
        help="changed (by answers that are not saved yet), unlabeled, outliers, duplicates, 'none of these' or "
        "disagreed; repeat for several",
        metavar="FILTER",
    ),
    argument("--count", type=int, default=20, metavar="N", help="number of images (default: 20)"),
    out(help="table to write (default: standard output)", metavar="CSV"),
    epilog="The table can be filled in and imported like that of captune suggest: captune label RUN --from CSV",
)
def find(options: argparse.Namespace) -> None:
    """List images by words, by an example, or by what is known about them."""
    from captune.core.files import table

    if options.count < 1:
        raise InputError(f"--count is {options.count}, expected at least 1.")
    found = open_run(options, quiet=True).find(
        options.text,
        like=options.like,
        label=options.label,
        confidence=(options.above, options.below),
        only=options.only,
        count=options.count,
    )
    rows = ((f.image, f.label, f"{f.confidence:.3f}", f"{f.similarity:.3f}", "") for f in found)
    write_lines(table(("path", "label", "confidence", "similarity", "answer"), rows), options.out)


@command(
    *_shared.RUN_AND_IMAGES,
    argument("answer", nargs="*", metavar="IMAGE CLASS", help="images and, last, their class"),
    argument("--from", dest="source", metavar="FILE", help="filled table, labels (CSV) or Label Studio JSON"),
    argument("--group", nargs=2, metavar=("N", "CLASS"), help="name a whole group (see: captune suggest --groups)"),
    argument("--except", dest="except_", nargs="+", default=[], metavar="IMAGE", help="images not in the group"),
    flag("--none", help="the images fit none of the classes"),
    argument("--not", dest="denied", metavar="CLASS", help="the images are not of this class"),
    several("--add", help="a class that was missing", metavar="CLASS"),
    several("--remove", help="a class that does not occur", metavar="CLASS"),
    several("--rename", help=f"rename a class; {_shared.RENAME_HELP}", metavar="OLD=NEW"),
    several("--merge", help="make one class of several", metavar="NEW=A,B"),
    argument("--corrections", nargs="+", default=[], metavar="JSONL", help="corrections of other people"),
    flag("--undo", help="undo your last answer"),
    _shared.METHOD,
    argument("--person", help="who answers (default: the user of this computer)"),
    argument("--export", metavar="FILE", help="write all labels as a CSV table"),
    open_ended="answer",
    epilog="examples:\n"
    "  captune label RUN cats/12.jpg siamese\n"
    "  captune label RUN --group 7 siamese --except cats/3.jpg cats/9.jpg\n"
    "  captune label RUN --from suggestions.csv\n"
    '  captune label RUN --merge "small dog=pug,chihuahua"',
)
def label(options: argparse.Namespace) -> None:
    """Record a person's answers about images, groups and classes of a run, and adapt again."""
    from captune.review.answers import write_answers

    settings = {} if options.method is None else {"method": options.method}
    session = open_run(options, person=options.person, **settings)
    before = len(session.corrections)
    for change in _apply(options, session):
        say(change)
    is_new = len(session.corrections) > before or settings
    if is_new:
        _save(session, options.run)
    if options.export:
        say(f"{write_answers(options.export, session.answers.used())} labels: {options.export}")
    elif not is_new:
        say(f"No answers were given. {session!r}")


def _apply(options: argparse.Namespace, session: Session) -> list[object]:
    """Apply everything on the command line in the order: classes, people, images."""
    from captune.data.labels import by_new_name, parse_merges, parse_renames
    from captune.data.vocabulary import NONE
    from captune.review.answers import group_number

    changes: list[object] = [session.undo()] if options.undo else []
    for new, old in by_new_name(parse_renames(options.rename)).items():
        changes.append(session.merge(old, new) if len(old) > 1 else session.rename(old[0], new))
    changes += [session.merge(names, into) for into, names in parse_merges(options.merge).items()]
    changes += [session.add(name) for name in options.add]
    changes += [session.remove(name) for name in options.remove]
    if files := [Path(path) for path in (*options.corrections, options.source) if path]:
        changes.append(session.label(files))
    if options.group is not None:
        number = group_number(options.group[0], "--group")
        changes.append(session.name_group(number, options.group[1], except_=options.except_))
    elif options.answer and options.denied is not None:
        changes.append(session.exclude(options.answer, options.denied))
    elif options.answer and options.none:
        changes.append(session.label(options.answer, NONE))
    elif options.answer:
        *images, name = options.answer
        if not images:
            raise InputError(f"Which image is {name!r}? Expected: captune label RUN IMAGE CLASS")
        changes.append(session.label(images, name))
    return changes


@command(
    *_shared.RUN_AND_IMAGES,
    argument("--count", type=int, metavar="N", help="draw this many more images to check"),
    out(help="table of the drawn images, to fill in", metavar="CSV"),
    argument("--from", dest="source", metavar="CSV", help="filled table of checks"),
    _shared.JSON,
)
def estimate(options: argparse.Namespace) -> None:
    """Estimate the accuracy of a run from images that a person checked."""
    from captune.review.answers import suggestions_table

    if (options.count is None) != (options.out is None):
        raise InputError("--count and --out belong together: captune estimate RUN --count 30 --out checks.csv")
    session = open_run(options)
    if options.source:
        session.label(Path(options.source))
    if options.out:
        checks = session.suggest(options.count, checks=1.0)
        write_lines(suggestions_table(checks), options.out)
        say(f"{len(checks)} images to check: {options.out}")
        say(f"{FILL_IN} captune estimate {options.run} --from {options.out}")
        return
    found = session.estimate()
    if found:
        session.save()
    if options.json:
        say(json.dumps(found.as_dict(), indent=2))
        return
    say(session.verification())
    if found:
        say(
            f"Balanced accuracy over the {found.n_classes} classes among them: {100 * found.balanced_accuracy:.0f} % "
            f"({100 * found.balanced_low:.0f} to {100 * found.balanced_high:.0f})."
        )


@command(
    *_shared.RUN_AND_IMAGES,
    argument("--precision", type=float, default=0.95, metavar="P", help="share of right labels (default: 0.95)"),
    argument("--certainty", type=float, default=0.95, metavar="C", help="of the promise (default: 0.95)"),
    out(help="folder for accepted.csv and certificate.json"),
    _shared.JSON,
)
def accept(options: argparse.Namespace) -> None:
    """Keep the labels that are right with a given precision, certified by checked images."""
    from captune.core.files import table, write_json
    from captune.review.accept import accepted_rows

    session = open_run(options, quiet=True)
    found = session.accept(options.precision, options.certainty)
    if options.json:
        say(json.dumps(found.as_dict(), indent=2))
    else:
        say(found.sentence)
        if found.n_missing or found.n_more:
            words = f"{shlex.quote(options.run)} --for-precision {options.precision:g} --out checks.csv"
            say(f"Images to check: captune suggest {words}")
    if options.out and len(found):
        accepted = Path(options.out) / "accepted.csv"
        write_lines(table(("path", "label", "confidence", "source"), accepted_rows(session, found)), str(accepted))
        write_json(accepted.with_name("certificate.json"), found.as_dict())
        if not options.json:
            say(f"{len(found)} labels: {accepted}")


@command(
    *_shared.RUN_AND_IMAGES,
    argument("images", nargs="?", metavar="IMAGES", help="new images (default: new files in the folder of the run)"),
)
def update(options: argparse.Namespace) -> None:
    """Add new images to a run; answers, names and checks stay."""
    session = open_run(options, quiet=True)
    found = session.update(options.images or options.moved_images)
    say(found)
    if found.n_new or found.n_gone:
        _save(session, options.run)


def _save(session: Session, run: str) -> None:
    from captune.pipeline import write_report_of

    session.save()
    write_report_of(run)
    say(f"Saved: {run}. {session.verification()}")
