"""captune label: record a person's answers about images, groups and classes of a run, and adapt again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from captune.commands._shared import add_images_option
from captune.core.errors import InputError

if TYPE_CHECKING:
    from captune.review.session import Session


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "examples:\n"
        "  captune label RUN cats/12.jpg siamese\n"
        "  captune label RUN --group 7 siamese --except cats/3.jpg cats/9.jpg\n"
        "  captune label RUN --from suggestions.csv\n"
        '  captune label RUN --merge "small dog=pug,chihuahua"'
    )
    parser.add_argument("run", metavar="RUN", help="run folder")
    add_images_option(parser)
    parser.add_argument("answer", nargs="*", metavar="IMAGE CLASS", help="images and, last, their class")
    parser.set_defaults(open_ended="answer")
    parser.add_argument("--from", dest="source", metavar="FILE", help="filled table, labels (CSV) or Label Studio JSON")
    parser.add_argument(
        "--group", nargs=2, metavar=("N", "CLASS"), help="name a whole group (see: captune suggest --groups)"
    )
    parser.add_argument(
        "--except", dest="except_", nargs="+", default=[], metavar="IMAGE", help="images that are not in the group"
    )
    parser.add_argument("--none", action="store_true", help="the images fit none of the classes")
    parser.add_argument("--not", dest="denied", metavar="CLASS", help="the images are not of this class")
    parser.add_argument("--add", action="append", default=[], metavar="CLASS", help="a class that was missing")
    parser.add_argument("--remove", action="append", default=[], metavar="CLASS", help="a class that does not occur")
    parser.add_argument(
        "--rename",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="rename a class; or a CSV file with the columns old and new",
    )
    parser.add_argument("--merge", action="append", default=[], metavar="NEW=A,B", help="make one class of several")
    parser.add_argument("--corrections", nargs="+", default=[], metavar="JSONL", help="corrections of other people")
    parser.add_argument("--undo", action="store_true", help="undo your last answer")
    parser.add_argument("--method", help="adapt with this method (default: transductive)")
    parser.add_argument("--person", help="who answers (default: the user of this computer)")
    parser.add_argument("--export", metavar="FILE", help="write all labels as CSV, or for Label Studio as .json")


def run(options: argparse.Namespace) -> None:
    """Record the answers, adapt, save the run, and print what changed."""
    from captune.commands._screen import Screen
    from captune.review.answer_files import write_answers
    from captune.review.opening import open_session

    screen = Screen(highlight=False, soft_wrap=True)
    settings = {} if options.method is None else {"method": options.method}
    session = open_session(options.run, images=options.moved_images, person=options.person, **settings)
    before = len(session.corrections)
    for line in _apply(options, session):
        screen.print(line, markup=False)
    if len(session.corrections) > before or settings:
        session.save()
        write_report_of(options.run)
        screen.print(f"Saved: {options.run}. {session.verification()}", markup=False)
    if options.export:
        n_written = write_answers(options.export, session.answers.used().items())
        screen.print(f"{n_written} labels: {options.export}", markup=False)
    elif len(session.corrections) == before and not settings:
        screen.print(f"No answers were given. {session!r}", markup=False)


def _apply(options: argparse.Namespace, session: Session) -> list[str]:
    """Apply everything on the command line in the order: classes, people, images."""
    from captune.data.labels import by_new_name, parse_merges, parse_renames
    from captune.data.vocabulary import NONE
    from captune.review.answer_files import group_number

    changes: list[object] = []
    if options.undo:
        changes.append(session.undo())
    for new, old in by_new_name(parse_renames(options.rename)).items():
        changes.append(session.merge(old, new) if len(old) > 1 else session.rename(old[0], new))
    changes += [session.merge(names, into) for into, names in parse_merges(options.merge).items()]
    changes += [session.add(name) for name in options.add]
    changes += [session.remove(name) for name in options.remove]
    files = [Path(path) for path in (*options.corrections, *([options.source] if options.source else []))]
    if files:
        changes.append(session.label(files))
    images, name = options.answer[:-1], options.answer[-1] if options.answer else ""
    if options.group is not None:
        number = group_number(options.group[0], "--group")
        changes.append(session.name_group(number, options.group[1], except_=options.except_))
    elif options.denied is not None and options.answer:
        changes.append(session.exclude(options.answer, options.denied))
    elif options.none and options.answer:
        changes.append(session.label(options.answer, NONE))
    elif options.answer:
        if not images:
            raise InputError(f"Which image is {name!r}? Expected: captune label RUN IMAGE CLASS")
        changes.append(session.label(images, name))
    return [str(change) for change in changes]


def write_report_of(folder: str) -> None:
    """Write the report of a saved run; without it, the run is still complete."""
    from captune.core.errors import CaptuneError
    from captune.report.page import write_report

    try:
        write_report([folder])
    except CaptuneError as error:
        sys.stderr.write(f"The run is saved, but the report could not be written: {error}\n")
