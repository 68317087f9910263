"""One task of a job: `python -m captune.partitions FOLDER --task 3 --of 8`; with `--collect`, what is missing."""

from __future__ import annotations

import argparse
import sys

from captune.core.errors import CaptuneError
from captune.core.runtime import say
from captune.data.partition_folder import PartitionFolder
from captune.partitions.job import read_plan, summarize, write_shards


def main() -> int:
    """Compute the partitions of one task, or check those of all."""
    parser = argparse.ArgumentParser(prog="python -m captune.partitions", description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--task", type=int, default=0)
    parser.add_argument("--of", type=int, default=1)
    parser.add_argument("--collect", action="store_true", help="tell how much is finished")
    parser.add_argument("--webdataset", metavar="OUT", help="write the partitions as WebDataset shards")
    options = parser.parse_args()
    folder = PartitionFolder(options.folder)
    try:
        n_partitions = len(read_plan(folder)[1])
        if options.webdataset:
            say(f"{len(write_shards(options.folder, options.webdataset))} shards in {options.webdataset!r}.")
            return 0
        if options.collect:
            facts = summarize(folder)
            say(", ".join(f"{name}: {value:,}" for name, value in facts.items()))
            return 0 if facts["finished"] == n_partitions else 2
        from captune.partitions.worker import Worker

        outcomes = map(Worker(options.folder).run, range(options.task, n_partitions, options.of))
        problems = [outcome.problem for outcome in outcomes if outcome.problem]
    except CaptuneError as error:
        problems = [str(error)]
    for problem in problems:
        say(f"error: {problem}")
    return 2 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
