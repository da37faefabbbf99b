"""What runs in the process of a slot: one trial after another, in a process that has all that they need ready."""

import math
import os
import threading
import time
import traceback
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from trainyard.cluster import host, slurm_allocation
from trainyard.config.config import Data
from trainyard.config.train import Train
from trainyard.config.user_programs import Metrics, UserProgram
from trainyard.packing import gpu_health, gpu_sharing
from trainyard.planning.task import output_name
from trainyard.programs import command, function
from trainyard.programs.process import Claim, Guard, claim
from trainyard.utils.errors import Diverged, UserError

if TYPE_CHECKING:  # here and below: importing torch takes seconds, which only a process that trains should spend
    from trainyard.training.sampler import BatchSizes

# A trial keeps where it is at the first end of an epoch after so long: short ones never do, since shared file systems
# charge by the inode.
SAVE_SECONDS = 60.0
Messages = Generator[dict[str, Any], bool | None, None]


@dataclass(frozen=True)
class Setting:
    """What all trials of a sweep have in common."""

    folder: Path  # the sweep's, absolute
    how: Data
    threads: int
    trains: bool = True  # whether trials are trainings by Trainyard's own loop
    dataset: Path | None = None
    share: float | None = None  # of the GPU's memory, and no more
    metrics: Metrics | None = None
    checkpoint: str | None = None  # files that a command can go on from
    resume: str | None = None  # what a command is then given
    resumes: bool = True  # whether a trial that was interrupted continues where it was
    timeout_seconds: float | None = None
    grace_seconds: float = 0.0  # from SIGTERM to SIGKILL, for a command
    cwd: str = ""  # where users' programs run


@dataclass(frozen=True)
class Order:
    """A trial for a slot to run."""

    spec: dict[str, Any]
    trial: str
    attempt: int
    folder: Path  # its own, for what a user's program is to leave; another one when it is trained anew on purpose
    checkpoints: Path  # a folder of its own, which is there only while the trial has begun and not finished
    deadline: float = math.inf  # Unix seconds at which to stop
    bad_checkpoints: tuple[command.Kept, ...] = ()  # attempts that went on from these have failed
    looked_at: bool = False  # whether to measure what it takes of its GPU


class Worker:
    """Gets ready once, then runs one trial after another, each message of which waits for an answer."""

    def start(self, setting: Setting) -> dict[str, Any]:
        """Get ready; says where this slot is, and how many seconds that took of what.

        Not `__init__`, whose errors Ray reports as the death of the process.
        """
        self._setting, self._held = setting, ExitStack()  # until the process ends
        self._messages: Messages | None = None
        self._told_to_end = threading.Event()
        os.chdir(setting.cwd or ".")  # where users' modules and files are looked for
        spent = self._start_training() if setting.trains else self._start_own()
        gpus = ",".join(str(gpu) for gpu in ray.get_gpu_ids())
        return {"job": slurm_allocation.job_id(), "node": host.node_name(), "gpu": gpus, **spent}

    def begin(self, order: Order) -> dict[str, Any]:
        """Run a trial until it has something to say: `{"epoch": row}` or `{"halved": ...}`, after which it waits.

        At its end it says `{"finished": ...}`, `{"pruned": ...}`, `{"diverged": ...}`, `{"stopped": ...}`,
        `{"unreadable": ...}` or `{"failed": ...}`.
        """
        self._told_to_end.clear()
        self._messages = self._run(order)
        return next(self._messages)

    def go_on(self, prune: bool) -> dict[str, Any]:
        """Let the trial go on until it has something to say again, or with `prune` end it, since others are better."""
        assert self._messages is not None
        return self._messages.send(prune)

    def wake(self) -> None:
        """Answers only if this process and its node are still there."""

    def check_gpu(self) -> tuple[bool, str]:
        """Whether this slot's GPU is broken, and what a check of it has found, in words."""
        return gpu_health.checked()

    def tell_to_end(self) -> None:
        """Have a command end now, with its grace: called beside `begin` and `go_on`, in a thread of its own."""
        self._told_to_end.set()

    # ---- getting ready

    def _start_training(self) -> dict[str, Any]:
        """Import torch and open the data."""
        began = time.perf_counter()
        import torch

        from trainyard.training import trainer  # noqa: F401  (the first trial would have to import it)
        from trainyard.training.loaders import load_input_data
        from trainyard.training.process_group import single_process
        from trainyard.training.step_timing import device_name

        imported = time.perf_counter()
        torch.set_num_threads(self._setting.threads)
        if self._setting.share is not None:
            gpu_sharing.keep_to(self._setting.share)
        self._group = single_process()
        copied = self._copy()
        opened = time.perf_counter()
        assert self._dataset is not None
        self._data = load_input_data(self._dataset, self._group.device, self._setting.how)
        spent = {"import_torch_seconds": imported - began, "data_seconds": time.perf_counter() - opened}
        return {**spent, **copied, "device": device_name(self._group.device)}

    def _start_own(self) -> dict[str, Any]:
        """Nothing is imported for users' programs; a function is, when it is first called."""
        self._guard = Guard()
        return {**self._copy(), "device": gpu_sharing.gpu_name() or "cpu"}

    def _copy(self) -> dict[str, Any]:
        self._dataset = None
        if self._setting.dataset is None:
            return {"copy_seconds": 0.0, "copy": ""}
        from trainyard.data.node_copy import local_copy
        from trainyard.data.staged import Staged

        copy = self._held.enter_context(local_copy(Staged(self._setting.dataset), self._setting.how.local))
        self._dataset = copy.staged
        return {"copy_seconds": copy.seconds, "copy": copy.message}

    # ---- one trial

    def _run(self, order: Order) -> Messages:
        """One trial, from where an earlier attempt has kept it."""
        started = time.perf_counter()
        try:
            if self._setting.trains:
                yield from self._train(order, started)
            elif order.spec.get("command"):
                yield from self._command(order)
            else:
                yield from self._function(order)
        except Diverged as error:
            yield {"diverged": str(error), "seconds": time.perf_counter() - started}
        except Exception as error:
            message = f"{type(error).__name__}: {error}".splitlines()[0]
            if isinstance(error, UserError):
                message = str(error)
            seconds = time.perf_counter() - started
            yield {"failed": message, "traceback": traceback.format_exc(), "seconds": seconds}

    def _command(self, order: Order) -> Messages:
        setting, folder = self._setting, order.folder
        folder.mkdir(parents=True, exist_ok=True)
        with claim(folder, what=f"trial {order.trial}", grace_seconds=setting.grace_seconds) as claimed:
            kept = command.resumable(folder, setting.checkpoint, bad=order.bad_checkpoints)
            left = folder / kept.name if kept and order.attempt > 1 else None
            if kept and left:
                yield {"resumed": kept}
            end = yield from _until_end(command.run(self._call(order, left, claimed), self._guard))
        yield end  # when nothing is held any more

    def _call(self, order: Order, left: Path | None, claimed: Claim) -> command.Call:
        setting, folder = self._setting, order.folder
        words = {"trial": order.trial, "attempt": order.attempt, "trial_dir": str(folder), "cpus": setting.threads}
        words |= {"resume_from": str(left or ""), "dataset": str(self._dataset.folder) if self._dataset else ""}
        return command.Call(
            UserProgram.model_validate(order.spec),
            words,
            folder,
            setting.cwd,
            folder / output_name(order.attempt),
            setting.metrics,
            setting.resume if left else None,
            setting.timeout_seconds,
            order.deadline,
            setting.grace_seconds,
            claimed,
            self._told_to_end,
        )

    def _function(self, order: Order) -> Messages:
        from trainyard.utils.import_path import import_object

        spec = UserProgram.model_validate(order.spec)
        assert spec.function is not None
        for folder in (order.folder, order.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        dataset = self._dataset.folder if self._dataset else None
        context = function.Context(order.trial, order.attempt, order.folder, order.checkpoints, dataset, order.deadline)
        with claim(order.folder, what=f"trial {order.trial}", grace_seconds=0.0):
            end = yield from _until_end(function.run(import_object(spec.function, role="function"), spec.args, context))
        yield end

    def _train(self, order: Order, started: float) -> Messages:
        from trainyard.training.trainer import Stopped
        from trainyard.training.warmup import warm_up

        halved = list[dict[str, int]]()
        trainer = self._training(order, halved)
        earlier = sum(row.seconds for row in trainer.history) + trainer.state.progress.seconds
        earlier += trainer.checkpoints.total_seconds
        for row in trainer.history:
            yield {"epoch": asdict(row), "first_step_time": None}
        if trainer.spec.compile:
            warm_up(trainer)
        pruned = False
        try:
            with ExitStack() as looking:
                uses = looking.enter_context(gpu_sharing.measure_gpu()) if order.looked_at else []
                for row in trainer.epochs():
                    for each in list(halved):
                        yield {"halved": each}
                        halved.remove(each)
                    pruned = bool((yield {"epoch": asdict(row), "first_step_time": trainer.first_step_time}))
                    if pruned:
                        break
        except Stopped as error:
            yield {"stopped": str(error)}
            return
        metrics = asdict(trainer.history[-1])
        metrics["best_val_accuracy"] = max(row.val_accuracy for row in trainer.history)
        metrics |= {"micro_batch": trainer.batch.micro, "accumulation": trainer.batch.accumulation}
        seconds = earlier + time.perf_counter() - started
        use = asdict(uses[0]) if uses else None
        end = "pruned" if pruned else "finished"
        yield {end: metrics, "precision": trainer.precision, "seconds": seconds, "use": use}

    def _training(self, order: Order, halved: list[dict[str, int]]) -> Any:
        """The training of an order; micro-batches that turn out not to fit are noted in `halved`."""
        from trainyard.training.checkpoints import CheckpointStore
        from trainyard.training.sampler import batch_sizes
        from trainyard.training.trainer import Trainer

        def note(batch: "BatchSizes") -> None:
            halved.append({"micro_batch": batch.micro, "accumulation": batch.accumulation})

        spec = Train.model_validate(order.spec)
        return Trainer(
            spec,
            self._data,
            self._group,
            batch=batch_sizes(spec),
            store=CheckpointStore(order.checkpoints, {"trial": order.trial}),
            save_every_seconds=SAVE_SECONDS,
            deadline=order.deadline,
            on_halved=note,
        )


def _until_end(messages: Messages) -> Generator[dict[str, Any], bool | None, dict[str, Any]]:
    """Pass on all messages of a program or function but the last, which is returned."""
    message = next(messages)
    while "epoch" in message:
        message = messages.send((yield message))
    return message
