"""Kills without warning at random moments of every command that takes long: resumed, the result is the same."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from toys import write_images

from captune.core.files import LEFTOVERS
from captune.results.run_folder import read_rows
from captune.review.corrections import FILE, Corrections
from faults.records import FACTS, record
from faults.wholeness import halves, result_of, timeless
from faults.zygote import Zygote, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
KILLS = int(os.environ.get("CAPTUNE_FAULTS_KILLS", "30"))
TRAINING = {
    "epochs": 6,
    "iterations": 12,
    "warmup_epochs": 0,
    "strong_views": 1,
    "k": 4,
    "grow_every": 2,
}
FLUSH: tuple[str, dict[str, Any]] = ("flush_often", {})


def settings(values: dict[str, Any]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(params=["adapt", "embed"])
def command(request: pytest.FixtureRequest, photos: Path, backbone: str, tmp_path: Path) -> tuple[str, list[str]]:
    """Return a long training, or an embedding of many images, without the words of its output."""
    folder, more = str(photos), ["--method", "cap", "--preset", "quick", *settings(TRAINING)]
    if request.param == "embed":
        folder = str(write_images(tmp_path / "many", 400, side=36, seed=9))
        more = ["--method", "zero_shot", "--set", "batch_size=8"]
    common = ["--classes", "cat,dog,bird", "--backbone", backbone, "--workers", "0"]
    return request.param, ["adapt", folder, *common, *more]


def test_a_killed_run_ends_with_the_same_bits_when_it_is_resumed(
    command: tuple[str, list[str]], zygote: Zygote, tmp_path: Path
) -> None:
    what, words = command
    generator = random.Random(f"kills of {what}")
    log, whole = tmp_path / "log", tmp_path / "whole"
    count = tmp_path / "count"
    steps = (FLUSH, ("count_changes", {"folder": str(whole), "target": str(count)}))
    code, said, duration = zygote.run([*words, "--out", whole / "run"], log, whole / "cache", steps)
    assert code == 0, said
    reference, n_changes = result_of(whole / "run"), count.stat().st_size
    assert {"predictions.csv", "classifier/classifier.safetensors", "run.json"} <= set(reference)
    landed = 0
    for number in range(KILLS):
        base = tmp_path / f"{number}"
        base.mkdir()
        # Every other kill is at a random time, the others before a random change of a file, spread over all of them.
        moment = (number + generator.random()) / KILLS
        steps = (FLUSH,)
        if number % 2:
            steps = (FLUSH, ("die_at_change", {"n": 1 + int(moment * n_changes), "folder": str(base)}))
        pid = zygote.start([*words, "--out", base / "run"], log, base / "cache", steps)
        if number % 2 == 0:
            time.sleep(moment * duration)
            with suppress(ProcessLookupError):  # it may have ended
                os.kill(pid, signal.SIGKILL)
        code = zygote.wait()
        landed += code == -signal.SIGKILL
        assert halves(base / "run", base / "cache", reference) == []
        was_finished = (base / "run" / "run.json").exists()
        again = [*words, "--out", base / "run", "--resume"]
        code, said, _ = zygote.run(again, log, base / "cache", (FLUSH,))
        is_told = code == 2 and was_finished and "is finished: there is nothing to resume" in said
        is_same = (code == 0 or is_told) and result_of(base / "run") == reference
        record(f"kill -9 in {what}, then --resume", "same result" if is_same else "lost")
        assert is_same, (number, moment, code, said)
        assert (base / "run" / "report.html").exists()
        assert not list(base.rglob(LEFTOVERS)), "unfinished files stay behind"
    FACTS.append(
        f"{what}: a run took {duration:.1f} s and {n_changes} changes of files; {landed} of {KILLS} kills came "
        "before its end."
    )
    assert landed >= KILLS * 0.8


def test_a_killed_suite_ends_with_the_same_cells(tmp_path: Path, photos: Path, backbone: str) -> None:
    data = tmp_path / "data"
    for part, n_images in (("train", 10), ("test", 4)):
        for number, name in enumerate(("cat", "dog", "owl")):
            write_images(data / part / name, n_images, seed=100 * number + n_images)
    suite = tmp_path / "suite.yaml"
    content = {
        "datasets": ["folder"],
        "settings": ["ul"],
        "seeds": [0],
        "defaults": {"backbone": backbone},
        "methods": {"zero_shot": None, "cap": {"preset": "quick", **TRAINING, "k": 2}},
    }
    suite.write_text(yaml.safe_dump(content), encoding="utf-8")

    def start(out: Path, **changes: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "captune.cli", "benchmark", suite, "--data", data, "--out", out, "--workers", 0]
        variables = environment(CAPTUNE_CACHE=str(out / "cache"), **changes)
        with (tmp_path / "log").open("wb") as log:
            return subprocess.Popen(
                [str(word) for word in words], env=variables, stdout=log, stderr=log, start_new_session=True
            )

    def cells(out: Path) -> dict[str, Any]:
        return {path.name: timeless(json.loads(path.read_text())) for path in out.glob("cells/*.json")}

    started = time.monotonic()
    counting = {"CAPTUNE_CHANGES_IN": str(tmp_path / "whole"), "CAPTUNE_COUNT_TO": str(tmp_path / "count")}
    assert start(tmp_path / "whole", **counting).wait() == 0
    duration, reference = time.monotonic() - started, cells(tmp_path / "whole")
    assert len(reference) == 2
    n_changes = max(path.stat().st_size for path in tmp_path.glob("count-*"))
    generator, landed = random.Random("kills of a suite"), 0
    for number in range(KILLS):
        out = tmp_path / f"{number // 3}"  # three kills, each of what the last one left, and then to the end
        who = ("suite", "all", "cell")[number % 3]
        moment = {"CAPTUNE_DIE_AT": str(generator.randint(1, n_changes)), "CAPTUNE_CHANGES_IN": str(out)}
        changes = moment if who == "cell" else {}
        victim = start(out, **changes)
        if who == "cell":
            landed += victim.wait() == 1
        else:
            time.sleep(generator.random() * duration)
            landed += victim.poll() is None
            with suppress(ProcessLookupError):  # it may have ended
                os.kill(victim.pid, signal.SIGKILL) if who == "suite" else os.killpg(victim.pid, signal.SIGKILL)
            victim.wait()
        found = cells(out)
        is_same = all(reference[name] == cell for name, cell in found.items())
        assert halves(tmp_path / "none", out / "cache", {}) == []
        if number % 3 == 2 or number == KILLS - 1:
            code = start(out).wait()
            is_same = is_same and code == 0 and cells(out) == reference
            assert not list(out.glob("runs/*")), "run folders stay behind"
            assert not list(out.rglob(LEFTOVERS)), "unfinished files stay behind"
        record("kill -9 in a suite (suite, all, cell), then again", "same result" if is_same else "lost")
        assert is_same, (number, who, (tmp_path / "log").read_text())
    FACTS.append(
        f"suite: a run took {duration:.1f} s and {n_changes} changes of files by its two cells; "
        f"{landed} of {KILLS} kills came before its end."
    )
    assert landed >= KILLS * 0.5


def test_of_two_people_in_one_run_one_is_killed(zygote: Zygote, tmp_path: Path, photos: Path, backbone: str) -> None:
    made, log, cache, second = tmp_path / "made", tmp_path / "log", tmp_path / "cache", Zygote()
    words = ["adapt", photos, "--classes", "cat,dog,bird", "--backbone", backbone, "--workers", 0]
    code, said, _ = zygote.run([*words, "--method", "transductive", "--out", made], log, cache)
    assert code == 0, said
    shutil.copytree(made, tmp_path / "counted")
    count = ("count_changes", {"folder": str(tmp_path / "counted"), "target": str(tmp_path / "count")})
    code, said, _ = zygote.run(["label", tmp_path / "counted", "cat/000.png", "dog"], log, cache, (count,))
    assert code == 0, said
    n_changes, n_kills = (tmp_path / "count").stat().st_size, max(6, KILLS // 3)
    for number in range(n_kills):
        run = tmp_path / f"{number}"
        shutil.copytree(made, run)
        step = ("die_at_change", {"n": 1 + number * n_changes // n_kills, "folder": str(run)})
        zygote.start(["label", run, "cat/000.png", "dog", "--person", "ann"], log, cache, (step,))
        code, said, _ = second.run(["label", run, "dog/001.png", "cat", "--person", "ben"], tmp_path / "log 2", cache)
        assert code == 0 or "Another captune is writing" in said, said
        assert zygote.wait() in (-signal.SIGKILL, 0, 2), log.read_text()
        code, said, _ = zygote.run(["label", run, "bird/002.png", "dog", "--person", "ann"], log, cache)
        answers = {made.images[0]: made.label for made in Corrections(run / FILE)}
        predicted = {row["path"]: row["label"] for row in read_rows(run / "predictions.csv")}
        is_kept = code == 0 and answers["dog/001.png"] == "cat" and answers["bird/002.png"] == "dog"
        is_kept = is_kept and all(predicted[image] == label for image, label in answers.items())
        record("two people in one run, one is killed", "same result" if is_kept else "lost")
        assert is_kept, (number, said, answers)
        assert not list(run.rglob(LEFTOVERS)), "unfinished files stay behind"
    second.close()
