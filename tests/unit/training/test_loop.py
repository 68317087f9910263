"""The one training loop: rates, decay groups, interrupts, resumption to the same bits, and a stop at NaN."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captune.core import runtime
from captune.core.errors import TrainingError
from captune.core.files import LEFTOVERS
from captune.training.checkpoint import CheckpointFolder
from captune.training.loop import Optimization, Schedule, StepResult, fit, learning_rate, parameter_groups

PLAN = Optimization(epochs=4, learning_rate=0.1, weight_decay=0.01)


class Line(nn.Module):
    """Fits a line, so that every number can be followed."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([0.3]))
        self.shift = nn.Parameter(torch.tensor([-0.2]))
        self.shift.no_decay = True

    def forward(self, batch: Tensor) -> StepResult:
        loss = ((self.slope * batch + self.shift - (2 * batch + 1)) ** 2).mean()
        return StepResult(loss, {"seen": torch.tensor(len(batch))})


class Steps(Schedule):
    """Batches by epoch and step; keeps a number of its own between them."""

    iterations = 5

    def __init__(self, kill_at: tuple[int, int] | None = None, poison: bool = False) -> None:
        self.kill_at, self.poison = kill_at, poison
        self.own = torch.zeros(1)
        self.begun: list[int] = []
        self.ended: list[float] = []

    def begin_epoch(self, epoch: int) -> None:
        self.begun.append(epoch)
        self.own = self.own + 0.1 * epoch

    def batches(self, epoch: int, first_step: int) -> Iterator[Tensor]:
        for step in range(first_step, self.iterations):
            if self.kill_at == (epoch, step):
                os.kill(os.getpid(), signal.SIGINT)
            batch = torch.randn(8, generator=torch.Generator().manual_seed(100 * epoch + step)) + self.own
            yield batch * math.nan if self.poison and epoch == 2 else batch

    def end_epoch(self, epoch: int, sums: Mapping[str, Tensor]) -> None:
        self.ended.append(float(sums["loss"]))
        assert int(sums["seen"]) == 8 * self.iterations

    def progress(self, epoch: int, sums: Mapping[str, Tensor]) -> str:
        return f"loss {float(sums['loss']):.2f}"

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"own": self.own}, {"ended": self.ended}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.own, self.ended = tensors["own"], list(facts["ended"])


@pytest.fixture(scope="module")
def engine() -> runtime.Runtime:
    return runtime.start(quiet=True)


def bits(line: Line) -> bytes:
    return torch.cat([line.slope, line.shift]).detach().numpy().tobytes()


def test_it_learns(engine: runtime.Runtime) -> None:
    line, schedule = Line(), Steps()
    fit(line, schedule, PLAN, engine)
    assert schedule.begun == [0, 1, 2, 3]
    assert schedule.ended[-1] < schedule.ended[0]


@pytest.mark.parametrize("moment", [(0, 0), (1, 3), (2, 4), (3, 1)])
def test_an_interrupted_fit_ends_with_the_same_bits(
    engine: runtime.Runtime, tmp_path: Path, moment: tuple[int, int]
) -> None:
    whole, schedule = Line(), Steps()
    fit(whole, schedule, PLAN, engine)
    folder = CheckpointFolder(tmp_path, "key")
    with pytest.raises(KeyboardInterrupt):
        fit(Line(), Steps(kill_at=moment), PLAN, engine, folder)
    resumed, rest = Line(), Steps()
    fit(resumed, rest, PLAN, engine, folder)
    assert bits(resumed) == bits(whole)
    assert rest.ended == schedule.ended


@pytest.mark.parametrize("n_synced", [0, 1])
def test_a_second_interrupt_while_the_checkpoint_is_saved_loses_only_that_one(
    engine: runtime.Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_synced: int
) -> None:
    whole, resumed = Line(), Line()
    fit(whole, Steps(), PLAN, engine)
    folder, sync, saving = CheckpointFolder(tmp_path, "key"), os.fsync, Steps(kill_at=(2, 3))

    def fsync(file: int) -> None:
        if len(saving.begun) == 3:  # the first interrupt was in the third epoch, whose checkpoint is being written
            fsync.left -= 1
            if fsync.left < 0:
                os.kill(os.getpid(), signal.SIGINT)
        sync(file)

    fsync.left = n_synced  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(KeyboardInterrupt):
            fit(Line(), saving, PLAN, engine, folder)
    assert not list(tmp_path.rglob(LEFTOVERS))
    rest = Steps()
    fit(resumed, rest, PLAN, engine, folder)
    assert bits(resumed) == bits(whole)
    assert rest.begun[0] == 2 + n_synced  # the second sync is that of the folder, after the file was renamed


def test_the_time_before_an_interruption_counts(engine: runtime.Runtime, tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "key")
    first = replace(engine, started=engine.started - 5000)
    with pytest.raises(KeyboardInterrupt):
        fit(Line(), Steps(kill_at=(1, 3)), PLAN, first, folder)
    second = runtime.start(quiet=True)
    assert second.seconds() < 5000
    fit(Line(), Steps(), PLAN, second, folder)
    assert 5000 <= second.spent[runtime.EARLIER] <= first.seconds()
    assert 5000 <= second.seconds() < first.seconds() + 5000


def test_a_loss_that_is_no_number_stops_with_the_last_good_state(engine: runtime.Runtime, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"00002-000000.*learning_rate"):
        fit(Line(), Steps(poison=True), PLAN, engine, CheckpointFolder(tmp_path, "key"))


def test_the_rate_rises_and_falls() -> None:
    rates = [learning_rate(PLAN, 5, step) for step in range(20)]
    assert rates[:5] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])
    assert rates[5] == pytest.approx(0.1)
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert 0 < rates[-1] < 0.002
    no_warmup = Optimization(epochs=1, learning_rate=0.5, warmup_epochs=0)
    assert learning_rate(no_warmup, 1, 0) == 0.5


def test_what_must_not_decay_does_not() -> None:
    groups = parameter_groups(Line(), 0.01)
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.01), (1, 0.0)]
