"""An array job of Slurm: every task computes its share of the partitions, and a last job checks that all are there."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from captune.core.errors import CaptuneError, InputError
from captune.core.files import write_whole
from captune.core.progress import say
from captune.data.partition_folder import PartitionFolder
from captune.partitions.job import Outcome

ARRAY, COLLECT = "_slurm-array.sh", "_slurm-collect.sh"
OPTIONS = "_slurm-options.txt"
"""Lines for the head of both scripts, such as `#SBATCH --partition=gpu`, if the file is in the folder."""


def compute(out: str, pending: Sequence[int], workers: int) -> Iterator[Outcome]:
    """Write the scripts and submit them; what they compute is known when they have run."""
    folder = PartitionFolder(out)
    if not folder.is_local:
        raise InputError(f"{out!r} is not a folder: the scripts of Slurm need a shared file system.")
    options = (folder.read(OPTIONS) or b"").decode()
    n_tasks = min(workers, len(pending))
    command = f"{shlex.quote(sys.executable)} -m captune.partitions {shlex.quote(out)}"
    head = f"#!/bin/sh\n#SBATCH --job-name=captune\n#SBATCH --output={out}/_slurm-%A-%a.log\n{options}"
    task = f"#SBATCH --array=0-{n_tasks - 1}\nexec {command} --task $SLURM_ARRAY_TASK_ID --of {n_tasks}\n"
    scripts = {ARRAY: head + task, COLLECT: head + f"exec {command} --collect\n"}
    for name, text in scripts.items():
        write_whole(Path(out) / name, text)
    submit = shutil.which("sbatch")
    if submit is None:
        say(f"No sbatch here. Submit {ARRAY} in {out!r} with sbatch, then {COLLECT} with --dependency=afterany:ID.")
        return
    number = _submit(submit, out, ARRAY)
    _submit(submit, out, COLLECT, f"--dependency=afterany:{number}")
    say(f"Submitted as job {number} with {n_tasks} tasks; {COLLECT} follows and tells what is missing.")
    yield from ()


def _submit(submit: str, out: str, script: str, *options: str) -> str:
    done = subprocess.run(
        [submit, "--parsable", *options, script], cwd=out, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CaptuneError(f"sbatch refused {script!r}: {done.stderr.strip() or done.stdout.strip()}.")
    return done.stdout.strip().split(";")[0]
