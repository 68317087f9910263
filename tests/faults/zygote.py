"""A process that has imported everything and forks one command after the other: a victim starts in milliseconds.

Run as `python -m faults.zygote`; orders come as JSON lines on standard input, answers go to standard output: the id of
the new process, then its exit code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
PATHS = (TESTS / "faults" / "site", TESTS, TESTS / "support", TESTS.parent / "src")


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of all processes of the harness."""
    paths = os.pathsep.join(map(str, PATHS))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **changes}


class Zygote:
    """Starts commands of captune one at a time, as forks of a process that is ready."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "faults.zygote"]
        self.process = subprocess.Popen(
            words, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._answer() == "ready"

    def start(
        self, words: Sequence[object], log: Path, cache: Path, steps: Sequence[tuple[str, Mapping[str, Any]]] = ()
    ) -> int:
        """Start a command and return its process's id; `steps` are functions of `dying` that it calls first."""
        order = {"words": [str(word) for word in words], "log": str(log), "cache": str(cache), "steps": list(steps)}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self._answer())

    def wait(self) -> int:
        """Wait until the command has ended and return its exit code, negative for a signal."""
        return int(self._answer())

    def run(
        self, words: Sequence[object], log: Path, cache: Path, steps: Sequence[tuple[str, Mapping[str, Any]]] = ()
    ) -> tuple[int, str, float]:
        """Run a command to its end and return its exit code, what it said and how long it took."""
        started = time.monotonic()
        self.start(words, log, cache, steps)
        code = self.wait()
        return code, log.read_text(encoding="utf-8", errors="replace"), time.monotonic() - started

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise RuntimeError("The zygote is gone.")
        return answer


def _be_ready() -> None:
    """Import what every command needs; nothing is computed, so that a fork is as good as a new process."""
    import matplotlib.figure  # noqa: F401
    import transformers
    from transformers import CLIPModel  # noqa: F401

    import captune.pipeline
    import captune.report.page  # noqa: F401
    from captune.core import registry

    for role in ("methods", "tuners", "backbones"):
        for name in registry.names(role):  # type: ignore[arg-type]
            if name != "open_clip":
                registry.load(role, name)  # type: ignore[arg-type]
    transformers.utils.logging.disable_progress_bar()


def _obey(order: Mapping[str, Any]) -> None:
    """Become the command of an order."""
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ["CAPTUNE_CACHE"] = order["cache"]
    code = 99
    try:
        from captune.cli import main
        from faults import dying

        for name, values in order["steps"]:
            getattr(dying, name)(**values)
        code = main(order["words"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Serve orders until standard input closes."""
    _be_ready()
    answers = os.fdopen(os.dup(1), "w")
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _obey(json.loads(line))
        answers.write(f"{pid}\n")
        answers.flush()
        _, status = os.waitpid(pid, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


if __name__ == "__main__":
    main()
