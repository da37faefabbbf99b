"""What runs in the process of a slot: one trial after another, in a process that has torch and the data ready."""

import math
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from trainyard import sharing, slurm
from trainyard.config import Data
from trainyard.spec import Train

if TYPE_CHECKING:  # here and below: importing torch takes seconds, which only a slot's process should spend
    from trainyard.sampling import Batch

# A trial keeps where it is at the first end of an epoch after so long: short ones never do, since shared file systems
# charge by the inode.
SAVE_SECONDS = 60.0


@dataclass(frozen=True)
class Order:
    """A trial for a slot to train."""

    spec: dict[str, Any]
    trial: str
    checkpoints: Path  # a folder of its own, which is there only while the trial has begun and not finished
    deadline: float = math.inf  # Unix seconds at which to stop
    looked_at: bool = False  # whether to measure what it takes of its GPU


class Worker:
    """Imports torch and opens the data once, then trains one trial after another."""

    def start(self, dataset: Path, how: Data, threads: int, share: float | None = None) -> dict[str, Any]:
        """Get ready; says where this slot is, and how many seconds importing torch, copying and opening the data took.

        With a `share`, no more of the GPU's memory is taken.

        Not `__init__`, whose errors Ray reports as the death of the process.
        """
        began = time.perf_counter()
        import torch

        from trainyard import training  # noqa: F401  (the first trial would have to import it)
        from trainyard.datasets import Staged
        from trainyard.distributed import alone
        from trainyard.loading import load
        from trainyard.localcopy import local_copy
        from trainyard.timing import device_name

        imported = time.perf_counter()
        torch.set_num_threads(threads)
        if share is not None:
            sharing.keep_to(share)
        self._group = alone()
        self._held = ExitStack()  # until the process ends
        copy = self._held.enter_context(local_copy(Staged(dataset), how.local))
        copied = time.perf_counter()
        self._data = load(copy.staged, self._group.device, how)
        gpus = ",".join(str(gpu) for gpu in ray.get_gpu_ids())
        spent = {
            "import_torch_seconds": imported - began,
            "copy_seconds": copy.seconds,
            "data_seconds": time.perf_counter() - copied,
            "copy": copy.words,
        }
        device = device_name(self._group.device)
        return {"job": slurm.job_id(), "node": slurm.node_name(), "gpu": gpus, "device": device, **spent}

    def run(self, order: Order) -> Iterator[dict[str, Any]]:
        """Train one trial, from where an earlier attempt has kept it.

        Yields `{"epoch": row}` for each epoch, `{"halved": ...}` where the memory was too small for a micro-batch, and
        at the end `{"finished": ...}`, `{"stopped": ...}` or `{"failed": ...}`.
        """
        from trainyard.training import Stopped

        started = time.perf_counter()
        try:
            yield from self._train(order, started)
        except Stopped as error:
            yield {"stopped": str(error)}
        except Exception as error:
            message = f"{type(error).__name__}: {error}".splitlines()[0]
            seconds = time.perf_counter() - started
            yield {"failed": message, "traceback": traceback.format_exc(), "seconds": seconds}

    def _train(self, order: Order, started: float) -> Iterator[dict[str, Any]]:
        from trainyard.checkpoints import CheckpointStore
        from trainyard.probing import warm_up
        from trainyard.sampling import batch_of
        from trainyard.training import Training

        halved = list[dict[str, int]]()

        def note(batch: "Batch") -> None:
            halved.append({"micro_batch": batch.micro, "accumulation": batch.accumulation})

        spec = Train.model_validate(order.spec)
        training = Training(
            spec,
            self._data,
            self._group,
            batch=batch_of(spec),
            store=CheckpointStore(order.checkpoints, {"trial": order.trial}),
            save_every_seconds=SAVE_SECONDS,
            deadline=order.deadline,
            on_halved=note,
        )
        earlier = sum(row.seconds for row in training.history) + training.state.progress.seconds
        yield from ({"epoch": asdict(row), "first_step_time": None} for row in training.history)
        if spec.compile:
            warm_up(training)
        with ExitStack() as looking:
            uses = looking.enter_context(sharing.looked_at()) if order.looked_at else []
            for row in training.epochs():
                yield from ({"halved": halved.pop(0)} for _ in list(halved))
                yield {"epoch": asdict(row), "first_step_time": training.first_step_time}
        metrics = asdict(training.history[-1])
        metrics["best_val_accuracy"] = max(row.val_accuracy for row in training.history)
        metrics |= {"micro_batch": training.batch.micro, "accumulation": training.batch.accumulation}
        seconds = earlier + time.perf_counter() - started
        use = asdict(uses[0]) if uses else None
        yield {"finished": metrics, "precision": training.precision, "seconds": seconds, "use": use}
