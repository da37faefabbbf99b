"""The worker processes of the slots, as actors of Ray. Nothing else that runs in the driver calls Ray."""

import time
from collections.abc import Iterable
from threading import Event
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from trainyard.config.sweep import Slots
from trainyard.packing.time_limits import Clock
from trainyard.packing.worker import Worker
from trainyard.utils.errors import UserError

ENDED: Final = "the worker's process ended: it was killed, or it crashed"


class WorkerDiedError(Exception):
    """A worker sends no message any more; the text says why, in one line."""


class WorkerFailedError(WorkerDiedError):
    """A worker raised an error of which the text is one line; it would raise it again."""


class Workers:
    """Creates workers, and receives their answers. A worker answers one call after another."""

    clock: Clock = time  # by which they run

    def __init__(self, slots: Slots, ray_has_ended: Event) -> None:
        options = {"num_cpus": slots.cpus_per_trial, "num_gpus": slots.node_share, "max_restarts": 0}
        self._class = ray.remote(Worker).options(**options)  # once: Ray exports it each time
        self._ray_has_ended = ray_has_ended

    @property
    def have_ended(self) -> bool:
        """Whether Ray has ended on this node, and all workers with it."""
        return self._ray_has_ended.is_set()

    def has_node(self) -> bool:
        """Whether Ray has a node that is alive."""
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        return any(node["Alive"] for node in nodes)

    def create(self) -> Any:
        """A new worker; `worker.start.remote(setup)` calls it and returns a reference of its answer."""
        return self._class.remote()

    def kill(self, worker: Any) -> None:
        """End the process of a worker."""
        ray.kill(worker)

    def wait(self, answers: Iterable[Any], *, seconds: float, count: int = 1) -> list[Any]:
        """Wait until an answer has arrived, or more of them; returns those that have arrived in time."""
        ready, _ = ray.wait(list(answers), num_returns=count, timeout=seconds, fetch_local=False)
        return ready

    def receive(self, answer: Any) -> Any:
        """The value of an answer that has arrived.

        Raises:
            WorkerDiedError: there is none.
        """
        try:
            return ray.get(answer)
        except RayTaskError as error:
            cause = error.cause
            raise WorkerFailedError(str(cause) if isinstance(cause, UserError) else repr(cause)) from error
        except RayError as error:
            raise WorkerDiedError(_describe_death(error)) from error


def _describe_death(error: RayError) -> str:
    """Why a worker sent no message, in one line."""
    if not isinstance(error, RayActorError):
        return f"{type(error).__name__}: {error}".splitlines()[0]
    if "creation task" in str(error):  # it never started: the last line says why
        return str(error).strip().splitlines()[-1]
    return ENDED
