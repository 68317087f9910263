"""One fit for every method: SGD with warm-up and cosine decay, checkpoints, and a stop at the first NaN."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from captune.core import distributed
from captune.core.errors import TrainingError
from captune.core.runtime import EARLIER, Runtime
from captune.training.checkpoint import Checkpoint, CheckpointFolder
from captune.training.interrupts import Interrupts


@dataclass(frozen=True)
class Optimization:
    """How long and how fast is trained; the values of the paper's settings table are the defaults of methods."""

    epochs: int
    iterations: int
    learning_rate: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    warmup_epochs: int = 1
    gradient_clip: float = 0.0


class StepResult(NamedTuple):
    """What an objective says of one batch: the loss to descend, and sums to show and record."""

    loss: Tensor
    sums: Mapping[str, Tensor]


class Course(ABC):
    """What a method does around the steps: it prepares each epoch and keeps the state that steps do not."""

    @abstractmethod
    def begin(self, epoch: int) -> None:
        """Prepare an epoch, from the student as it is now."""

    @abstractmethod
    def batches(self, epoch: int, first_step: int) -> Iterator[Any]:
        """Yield the batches of an epoch from a step on; the same ones whenever it is asked again."""

    @abstractmethod
    def end(self, epoch: int, sums: Mapping[str, Tensor]) -> None:
        """Take note of what the steps of an epoch added up to."""

    @abstractmethod
    def describe(self, epoch: int, sums: Mapping[str, Tensor]) -> str:
        """Return a few words for the progress bar."""

    @abstractmethod
    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and facts that `restore` needs to go on in the middle of an epoch."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""


def fit(
    objective: nn.Module,
    course: Course,
    optimization: Optimization,
    runtime: Runtime,
    checkpoints: CheckpointFolder | None = None,
) -> None:
    """Train the objective's parameters; an interrupted fit goes on from its last checkpoint, to the same bits."""
    trained = dict(objective.named_parameters())
    descent = torch.optim.SGD(
        parameter_groups(objective, optimization.weight_decay),
        lr=optimization.learning_rate,
        momentum=optimization.momentum,
    )
    wrapped, optimizer = runtime.fabric.setup(objective, descent)
    keeper = _Keeper(trained, descent, course, runtime, checkpoints)
    epoch, step = keeper.restore()
    total = optimization.epochs * optimization.iterations
    with runtime.progress("Training", total) as advance, Interrupts() as interrupts:
        advance(epoch * optimization.iterations + step)
        while epoch < optimization.epochs:
            if step == 0:
                objective.eval()
                course.begin(epoch)
                if distributed.size() > 1:  # all go on with exactly the margin and labels of the first
                    course.restore(*distributed.from_first(course.state))
            objective.train()
            for batch in course.batches(epoch, step):
                rate = learning_rate(optimization, epoch * optimization.iterations + step)
                _step(wrapped, optimizer, batch, rate, optimization.gradient_clip, keeper, runtime)
                step += 1
                advance(1, course.describe(epoch, keeper.sums))
                if distributed.is_any(interrupts.came):
                    interrupts.came = True
                    break
            if step == optimization.iterations:
                course.end(epoch, keeper.sums)
                keeper.sums = {}
                epoch, step = epoch + 1, 0
            if runtime.is_writer:
                keeper.save(epoch, step)
            if interrupts.came:
                where = "Nothing is lost; go on with the same command and --resume." if checkpoints else ""
                runtime.say(f"\nStopped in epoch {epoch + 1} after {step} steps. {where}")
                raise KeyboardInterrupt
    objective.eval()


def learning_rate(optimization: Optimization, step: int) -> float:
    """Return the rate of a step: linear warm-up over the first epochs, then a cosine down to zero."""
    warmup = optimization.warmup_epochs * optimization.iterations
    if step < warmup:
        return optimization.learning_rate * (step + 1) / warmup
    rest = optimization.epochs * optimization.iterations - warmup
    return optimization.learning_rate * 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(rest, 1)))


def parameter_groups(objective: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split parameters by whether they decay; a parameter with `no_decay` set is kept at its own scale."""
    chosen = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    kept = [parameter for parameter in chosen if getattr(parameter, "no_decay", False)]
    decayed = [parameter for parameter in chosen if not getattr(parameter, "no_decay", False)]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _step(
    objective: Any,  # noqa: ANN401 (Fabric wraps it)
    optimizer: Any,  # noqa: ANN401 (Fabric wraps it)
    batch: Any,  # noqa: ANN401 (each course has its own batches)
    rate: float,
    gradient_clip: float,
    keeper: _Keeper,
    runtime: Runtime,
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    result: StepResult = objective(batch)
    loss = distributed.mean(result.loss.detach())
    if not torch.isfinite(loss):
        kept = keeper.last_saved()
        where = f" The state before is kept in {kept}." if kept else ""
        raise TrainingError(
            f"The loss became {float(loss)}: the training diverged.{where} "
            "Try again with a lower learning_rate, e.g. --set learning_rate=0.003."
        )
    optimizer.zero_grad(set_to_none=True)
    runtime.fabric.backward(result.loss)
    if gradient_clip > 0:
        runtime.clip_gradients(objective, optimizer, gradient_clip)
    optimizer.step()
    sums = {name: distributed.add_up(value) for name, value in result.sums.items()}
    for name, value in (("loss", loss), *sums.items()):
        keeper.sums[name] = keeper.sums[name] + value if name in keeper.sums else value.clone()


class _Keeper:
    """Gathers and gives back everything that makes a resumed training the same as an uninterrupted one."""

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        course: Course,
        runtime: Runtime,
        folder: CheckpointFolder | None,
    ) -> None:
        self.parameters, self.optimizer, self.course, self.folder = parameters, optimizer, course, folder
        self.runtime = runtime
        self.sums: dict[str, Tensor] = {}
        self._last = ""

    def save(self, epoch: int, step: int) -> None:
        if self.folder is None:
            return
        own, facts = self.course.state()
        tensors: dict[str, Tensor] = {f"parameter.{name}": parameter for name, parameter in self.parameters.items()}
        for name, parameter in self.parameters.items():
            momentum = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum.{name}"] = momentum
        tensors |= {f"course.{name}": tensor for name, tensor in own.items()}
        tensors |= {f"sum.{name}": tensor for name, tensor in self.sums.items()}
        tensors |= {f"scale.{name}": torch.tensor(float(x)) for name, x in self.runtime.scale_state().items()}
        tensors["time.seconds"] = torch.tensor(self.runtime.seconds(), dtype=torch.float64)
        self._last = str(self.folder.save(Checkpoint(epoch, step, tensors, facts)))

    def restore(self) -> tuple[int, int]:
        tensors, (epoch, step, facts) = distributed.from_first(self._newest)
        if not tensors:
            return 0, 0
        kinds = ("parameter", "momentum", "course", "sum", "scale", "time")
        parts: dict[str, dict[str, Tensor]] = {kind: {} for kind in kinds}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(".")
            parts[kind][rest] = tensor
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(parts["parameter"][name])
        for name, tensor in parts["momentum"].items():
            parameter = self.parameters[name]
            self.optimizer.state[parameter]["momentum_buffer"] = tensor.to(parameter.device)
        self.sums = {name: tensor.to(self.runtime.device) for name, tensor in parts["sum"].items()}
        self.runtime.restore_scale({name: float(tensor) for name, tensor in parts["scale"].items()})
        self.runtime.spent[EARLIER] = float(parts["time"].get("seconds", 0.0))
        self.course.restore(parts["course"], facts)
        self.runtime.say(f"Going on from epoch {epoch + 1}, step {step + 1}.")
        return epoch, step

    def _newest(self) -> distributed.Parcel:
        """Return the newest checkpoint; only the first process needs to see the run folder."""
        found = self.folder.newest() if self.folder is not None else None
        return ({}, (0, 0, None)) if found is None else (dict(found.tensors), (found.epoch, found.step, found.facts))

    def last_saved(self) -> str:
        return self._last
