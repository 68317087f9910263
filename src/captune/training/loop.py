"""The training loop of every method: SGD with warm-up and cosine decay, checkpoints, and a stop at the first NaN."""

from __future__ import annotations

import math
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from captune.core import distributed
from captune.core.errors import TrainingError
from captune.core.runtime import EARLIER, Runtime
from captune.core.settings import NonNegative, NonNegativeFloat, Positive, Rate, Share
from captune.core.text import option, speaks_flags
from captune.training.checkpoint import Checkpoint, CheckpointFolder, with_prefix


@dataclass(frozen=True)
class Optimization:
    """The settings of SGD, which every method that trains has.

    Attributes:
        epochs: Number of epochs.
        learning_rate: Peak learning rate of SGD.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        warmup_epochs: Number of epochs until the peak learning rate is reached.
        gradient_clip: Maximum gradient norm; 0 turns clipping off.
    """

    epochs: Positive = 50
    learning_rate: Rate = 0.01
    momentum: Share = 0.9
    weight_decay: NonNegativeFloat = 0.0
    warmup_epochs: NonNegative = 1
    gradient_clip: NonNegativeFloat = 0.0


class StepResult(NamedTuple):
    """The loss of one batch, and sums to show and record."""

    loss: Tensor
    sums: Mapping[str, Tensor]


class Schedule(ABC):
    """A training schedule: its batches, what happens before and after each epoch, and the state it needs."""

    iterations: int
    """Number of steps per epoch."""

    def begin_epoch(self, epoch: int) -> None:  # noqa: B027 (nothing by default)
        """Prepare an epoch with the current student."""

    @abstractmethod
    def batches(self, epoch: int, first_step: int) -> Iterator[Any]:
        """Yield the batches of an epoch from a step on; every call yields the same batches."""

    def end_epoch(self, epoch: int, sums: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Record the sums over the steps of an epoch."""

    def progress(self, epoch: int, sums: Mapping[str, Tensor]) -> str:
        """Return a short text for the progress bar."""
        return ""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and JSON facts that `restore` needs to continue in the middle of an epoch."""
        return {}, {}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:  # noqa: B027
        """Restore what `state` returned."""


def fit(
    objective: nn.Module,
    schedule: Schedule,
    optimization: Optimization,
    runtime: Runtime,
    checkpoints: CheckpointFolder | None = None,
) -> None:
    """Train the objective's parameters; an interrupted fit continues from its last checkpoint, bit for bit."""
    groups = parameter_groups(objective, optimization.weight_decay)
    sgd = torch.optim.SGD(groups, lr=optimization.learning_rate, momentum=optimization.momentum)
    spread = runtime.spread(objective)
    state = _TrainingState(dict(objective.named_parameters()), sgd, schedule, runtime, checkpoints)
    epoch, step = state.restore()
    iterations = schedule.iterations
    with runtime.progress("Training", optimization.epochs * iterations) as advance, Interrupts() as interrupts:
        advance(epoch * iterations + step)
        while epoch < optimization.epochs:
            if step == 0:
                objective.eval()
                schedule.begin_epoch(epoch)
                if distributed.size() > 1:  # all processes continue with the margin and labels of the first
                    schedule.restore(*distributed.from_first(schedule.state))
            objective.train()
            for batch in schedule.batches(epoch, step):
                rate = learning_rate(optimization, iterations, epoch * iterations + step)
                _step(spread, batch, rate, optimization.gradient_clip, state)
                step += 1
                advance(1, schedule.progress(epoch, state.sums))
                if distributed.is_any(interrupts.received):
                    interrupts.received = True
                    break
            if step == iterations:
                schedule.end_epoch(epoch, state.sums)
                state.sums = {}
                epoch, step = epoch + 1, 0
            if runtime.is_writer:
                state.save(epoch, step)
            if interrupts.received:
                distributed.gather(None)  # no process ends before the checkpoint is written
                again = f"the same {'command' if speaks_flags() else 'call'} and {option('resume', True)}"
                hint = f" Nothing is lost: continue with {again}." if checkpoints else ""
                runtime.say(f"\nStopped in epoch {epoch + 1} after {step} steps.{hint}")
                raise KeyboardInterrupt
    objective.eval()


def learning_rate(optimization: Optimization, iterations: int, step: int) -> float:
    """Return the learning rate of a step: linear warm-up over the first epochs, then cosine decay to zero."""
    warmup = optimization.warmup_epochs * iterations
    if step < warmup:
        return optimization.learning_rate * (step + 1) / warmup
    rest = optimization.epochs * iterations - warmup
    return optimization.learning_rate * 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(rest, 1)))


def parameter_groups(objective: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameters in groups with and without weight decay; `no_decay` on a parameter exempts it."""
    groups: dict[float, list[nn.Parameter]] = {weight_decay: [], 0.0: []}
    for parameter in objective.parameters():
        if parameter.requires_grad:
            groups[0.0 if getattr(parameter, "no_decay", False) else weight_decay].append(parameter)
    return [{"params": chosen, "weight_decay": decay} for decay, chosen in groups.items() if chosen]


def _step(objective: nn.Module, batch: Any, rate: float, gradient_clip: float, state: _TrainingState) -> None:  # noqa: ANN401
    optimizer, runtime, scaler = state.optimizer, state.runtime, state.runtime.scaler
    for group in optimizer.param_groups:
        group["lr"] = rate
    with runtime.autocast():
        result: StepResult = objective(batch)
    loss = distributed.add_up(result.loss.detach()) / distributed.size()
    if not torch.isfinite(loss):
        saved = f" The last good state is in {state.last_saved}." if state.last_saved else ""
        raise TrainingError(
            f"The loss became {float(loss)}: the training diverged.{saved} "
            f"Try again with a lower learning rate, for example {option('learning_rate', 0.003)}."
        )
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(result.loss).backward()  # type: ignore[no-untyped-call]
    if gradient_clip > 0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(list(objective.parameters()), gradient_clip)
    scaler.step(optimizer)
    scaler.update()
    sums = {name: distributed.add_up(value) for name, value in result.sums.items()}
    for name, value in (("loss", loss), *sums.items()):
        state.sums[name] = state.sums[name] + value if name in state.sums else value.clone()


@dataclass(eq=False)
class _TrainingState:
    """Saves and restores everything that makes a resumed training the same as an uninterrupted one."""

    parameters: dict[str, nn.Parameter]
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    runtime: Runtime
    folder: CheckpointFolder | None
    sums: dict[str, Tensor] = field(default_factory=dict)
    last_saved: str = ""

    def save(self, epoch: int, step: int) -> None:
        if self.folder is None:
            return
        own, facts = self.schedule.state()
        tensors: dict[str, Tensor] = {f"schedule.{name}": tensor for name, tensor in own.items()}
        for name, parameter in self.parameters.items():
            tensors[f"parameter.{name}"] = parameter
            momentum = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum.{name}"] = momentum
        tensors |= {f"sum.{name}": tensor for name, tensor in self.sums.items()}
        tensors |= {f"scale.{name}": torch.tensor(float(x)) for name, x in self.runtime.scaler.state_dict().items()}
        tensors["time.seconds"] = torch.tensor(self.runtime.seconds(), dtype=torch.float64)
        self.last_saved = str(self.folder.save(Checkpoint(epoch, step, tensors, facts)))

    def restore(self) -> tuple[int, int]:
        tensors, (epoch, step, facts) = distributed.from_first(self._newest)
        if not tensors:
            return 0, 0
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(tensors[f"parameter.{name}"])
        for name, tensor in with_prefix(tensors, "momentum.").items():
            parameter = self.parameters[name]
            self.optimizer.state[parameter]["momentum_buffer"] = tensor.to(parameter.device)
        self.sums = {name: tensor.to(self.runtime.device) for name, tensor in with_prefix(tensors, "sum.").items()}
        if scale := {name: float(tensor) for name, tensor in with_prefix(tensors, "scale.").items()}:
            counters = {name: int(value) for name, value in scale.items() if value == int(value)}
            self.runtime.scaler.load_state_dict({**scale, **counters})
        self.runtime.spent[EARLIER] = float(tensors["time.seconds"])
        self.schedule.restore(with_prefix(tensors, "schedule."), facts)
        self.runtime.say(f"Continuing from epoch {epoch + 1}, step {step + 1}.")
        return epoch, step

    def _newest(self) -> distributed.Payload:
        """Return the newest checkpoint, which only the first process reads."""
        found = self.folder.newest() if self.folder is not None else None
        return ({}, (0, 0, None)) if found is None else (dict(found.tensors), (found.epoch, found.step, found.facts))


class Interrupts:
    """While active, the first SIGINT or SIGTERM only sets `received`, so that a step can end; a second interrupts."""

    def __init__(self) -> None:
        self.received = False
        self._old: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True
