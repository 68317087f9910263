"""Actors on a Ray cluster, or on this machine without one; each loads the model once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from captune.core.errors import missing_extra
from captune.partitions.job import Outcome


def compute(out: str, pending: Sequence[int], workers: int) -> Iterator[Outcome]:
    """Yield outcomes as partitions are computed; an actor gets its next partition when it has finished one."""
    try:
        import ray
        from ray.exceptions import RayActorError
    except ImportError as error:
        raise missing_extra("ray", "ray") from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False, configure_logging=False, include_dashboard=False)
    has_devices = bool(ray.cluster_resources().get("GPU"))
    actor: Any = ray.remote(num_cpus=1, num_gpus=1 if has_devices else 0)(_Actor)
    remaining = iter(pending)
    actors = [actor.remote(out) for _ in range(min(workers, len(pending)))]
    running = {one.run.remote(number): (one, number) for one, number in zip(actors, remaining, strict=False)}
    lost = list[int]()
    while running:
        (ready,), _ = ray.wait(list(running), num_returns=1)
        one, number = running.pop(ready)
        try:
            yield Outcome(*ray.get(ready))
        except RayActorError:  # the actor was killed, so its next partitions go to the others
            lost.append(number)
            continue
        following = next(remaining, None)
        if following is not None:
            running[one.run.remote(following)] = (one, following)
    for number in (*lost, *remaining):
        yield Outcome(number, problem="its worker was killed; memory may have run out")


class _Actor:
    """A worker; its answers are plain tuples, which Ray sends as they are."""

    def __init__(self, out: str) -> None:
        from captune.partitions.worker import Worker

        self.worker = Worker(out)

    def run(self, number: int) -> tuple[Any, ...]:
        """Compute one partition."""
        return tuple(self.worker.run(number))
