"""Memory that a training frees and needs again is kept meanwhile, and given back afterwards."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource
from captune.core._memory import kept_memory

def pages(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        b"x" * 2**26  # 64 MiB, all of it written
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

pages(1)
fresh = pages(4)
with kept_memory():
    pages(1)
    kept = pages(4)
print(fresh, kept, pages(4))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_freed_memory_is_used_again_and_given_back_at_the_end() -> None:
    shown = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    fresh, kept, afterwards = map(int, shown.split())
    assert fresh > 40_000
    assert kept < fresh / 100
    assert afterwards > 40_000


def test_elsewhere_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    from captune.core import _memory

    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(_memory.ctypes, "CDLL", lambda _: pytest.fail("asked for a library"))
    with _memory.kept_memory():
        pass
