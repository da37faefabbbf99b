"""The process of a slot: runs one trial after another, and keeps imports and data loaded between them."""

import gc
import json
import math
import os
import tempfile
import threading
import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ray

from trainyard.cluster import host, slurm_allocation
from trainyard.cluster.gpus import first_gpu_name, hide_gpus
from trainyard.cluster.ray.worker_parent import preload_seconds
from trainyard.cluster.stop_request import await_stop_request, stop_request_of_signals
from trainyard.config.placeholders import GPUS, PORT
from trainyard.config.scaling import study_of_trial
from trainyard.config.train import Train
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import Trial
from trainyard.config.user_programs import Metrics, UserProgram
from trainyard.config.weights import WeightsError
from trainyard.packing import worker_gpu
from trainyard.packing.messages import (
    END,
    EPOCHS,
    TRAINING_MODULES,
    TRIAL,
    TrainingEnded,
    TrialMessage,
    TrialRequest,
    WorkerSetup,
    WorkerStarted,
)
from trainyard.planning.journal import MicroBatchHalved, Resumed
from trainyard.planning.sweep_state import output_name
from trainyard.programs.function import Context, run_function
from trainyard.programs.metrics import MetricsCollector
from trainyard.programs.runner import (
    ProgramRun,
    as_own_job,
    find_checkpoint,
    run_user_program,
    trial_command,
    trial_environment,
)
from trainyard.programs.trial_messages import EpochReported, TrialEnded
from trainyard.programs.user_environment import program_environment, thread_variables
from trainyard.scaling.launchers import failure_reason, training_command
from trainyard.scaling.rendezvous import StepEnd
from trainyard.utils.errors import Diverged, UserError
from trainyard.utils.files import copy_matching, write_json
from trainyard.utils.guarded_process import ProcessGuard, claim_folder
from trainyard.utils.import_path import USER_CODE_ERRORS, error_line, helper_command, import_object
from trainyard.utils.locks import Hold

if TYPE_CHECKING:  # here and in functions: importing torch takes seconds, and only a training needs it
    from trainyard.training.sampler import BatchSizes
    from trainyard.training.telemetry import Gpu
    from trainyard.training.trainer import Trainer

# A training writes its first checkpoint at the first end of an epoch after this time. Short trials never write one:
# shared file systems have quotas of files.
SAVE_SECONDS: Final = 60.0
TrialRun = Generator[TrialMessage, bool | None, TrialEnded]


class Worker:
    """Prepares once, then runs one trial after another. After each message of a trial, it waits for an answer."""

    _gpus: "Sequence[Gpu]" = ()

    def start(self, setup: WorkerSetup) -> WorkerStarted:
        """Prepare for trials.

        This is not `__init__`, because Ray reports an exception there as the death of the process.
        """
        self._setup, self._resources = setup, ExitStack()  # held until the process ends
        if not setup.gpu_share:
            hide_gpus()
        self._run: TrialRun | None = None
        self._attempt = ""  # that runs, as `TrialRequest.label`
        self._function: Context | None = None  # of the function that runs
        self._stop_request = stop_request_of_signals()
        threading.Thread(target=self._await_stop_request, daemon=True).start()
        os.chdir(setup.cwd or ".")  # users' modules and files are relative to it
        device, startup = self._prepare_training() if setup.trains_here else self._prepare_user_programs()
        from trainyard.training.telemetry import allocated_gpus  # imports pynvml

        self._gpus = self._resources.enter_context(allocated_gpus())
        gpus = ",".join(str(gpu) for gpu in ray.get_gpu_ids())
        allocation = slurm_allocation.current_allocation() if setup.nodes > 1 else None
        node = ",".join(allocation.nodes) if allocation else host.node_name()
        return WorkerStarted(slurm_allocation.job_id(), node, gpus, device, startup)

    def begin(self, request: TrialRequest) -> TrialMessage:
        """Run a trial until its first message. The last message of a trial is a `TrialEnded`."""
        self._attempt, self._run, self._joules = request.label, self._run_trial(request), self._read_joules()
        return self.resume(None)

    def resume(self, stops: bool | None) -> TrialMessage:
        """Let the trial continue, or stop it early, until its next message."""
        assert self._run is not None
        try:
            return self._run.send(stops)
        except StopIteration as end:
            message: TrialEnded = end.value
            spent = sum(now := self._read_joules()) - sum(self._joules)
            if not now or not self._joules:  # no GPU, or one that does not count, also if it was lost meanwhile
                return message
            from trainyard.training.telemetry import JOULES_PER_KWH

            return replace(message, energy_kwh=min(1.0, self._setup.gpu_share) * spent / JOULES_PER_KWH)

    def _read_joules(self) -> list[float]:
        """The energy that each GPU of the slot has used so far; [] without GPUs, or if one does not count it."""
        found = [joules for gpu in self._gpus if (joules := gpu.joules()) is not None]
        return found if len(found) == len(self._gpus) else []

    def wake(self) -> None:
        """Returns if this process and its node are alive."""

    def check_gpu(self) -> worker_gpu.GpuChecked:
        """Check this slot's GPU."""
        return worker_gpu.check_gpu()

    def _await_stop_request(self) -> None:
        """Wait, in a thread, for a request of the driver or of Slurm, and end a function that does not check it."""
        await_stop_request(self._stop_request, lambda: self._attempt)
        if self._function:
            self._function.end_unless_it_checks()

    def _prepare_training(self) -> tuple[str, dict[str, Any]]:
        """Import torch and load the data; returns the device and the seconds by step."""
        began = time.perf_counter()
        import torch  # noqa: F401  (its seconds are measured)

        from trainyard.training import (
            numerics,
            trainer,  # noqa: F401  (the first trial would have to import it)
        )
        from trainyard.training.loaders import load_input_data
        from trainyard.training.process_group import single_process
        from trainyard.training.step_timing import device_name

        imported = time.perf_counter()
        numerics.set_threads(self._setup.threads)
        if self._setup.is_deterministic:
            numerics.fix_cublas_workspace()
        worker_gpu.limit_gpu_memory(self._setup.gpu_share)
        self._group = single_process()
        copied = self._copy_dataset()
        opened = time.perf_counter()
        assert self._dataset is not None
        self._data = load_input_data(self._dataset, self._group.device)
        importing = imported - began + preload_seconds(TRAINING_MODULES)
        seconds = {"import_torch_seconds": importing, "data_seconds": time.perf_counter() - opened}
        return device_name(self._group.device), {**seconds, **copied}

    def _prepare_user_programs(self) -> tuple[str, dict[str, Any]]:
        """Prepare for users' programs, which need no imports: a function is imported when it is first called."""
        os.environ.update(thread_variables(self._setup.threads))
        self._guard = ProcessGuard()
        return first_gpu_name() or "cpu", self._copy_dataset()

    def _copy_dataset(self) -> dict[str, Any]:
        self._dataset = None
        if self._setup.dataset is None:
            return {"copy_seconds": 0.0, "copy": ""}
        from trainyard.data.node_copy import local_copy
        from trainyard.data.staged import Staged

        policy = self._setup.data.local if self._setup.nodes == 1 else "off"  # the ranks have copies on all nodes
        copy = self._resources.enter_context(local_copy(Staged(self._setup.dataset), policy))
        self._dataset = copy.staged
        return {"copy_seconds": copy.seconds, "copy": copy.message}

    def _run_trial(self, request: TrialRequest) -> TrialRun:
        """Run a trial; an exception is a failure."""
        self._began = time.perf_counter()  # of the trial, as if it had not been interrupted
        try:
            if request.taken_over:
                self._copy_checkpoints(*request.taken_over, request)
            match request.spec:
                case Train() as spec if self._setup.trains_here:
                    return (yield from self._train(spec, request))
                case Train() as spec:
                    return (yield from self._train_on_gpus(spec, request))
                case UserProgram(function=None) as spec:
                    return (yield from self._run_command(spec, request))
                case spec:
                    return (yield from self._run_function(spec, request))
        except Diverged as error:
            seconds = time.perf_counter() - self._began
            return TrialEnded(status=TrialStatus.DIVERGED, error=str(error), seconds=seconds)
        except USER_CODE_ERRORS as error:  # sys.exit in a user's code would end this process
            return TrialEnded(
                status=TrialStatus.FAILED,
                error=str(error) if isinstance(error, UserError) else error_line(error),
                traceback=traceback.format_exc(),
                seconds=time.perf_counter() - self._began,
            )
        finally:
            if self._setup.trains_here and isinstance(request.spec, Train):
                if request.spec.compile:
                    from trainyard.training.forward_pass import release_compiled_code

                    release_compiled_code()  # and the memory of its CUDA graphs, before a trial that does not compile
                gc.collect()  # what a cycle holds, as in a model that a user has given a method of its own as attribute

    def _copy_checkpoints(self, folder: Path, checkpoints: Path, request: TrialRequest) -> None:
        """Copy the checkpoints of a job that may still write into these folders, unless that was done before."""
        copy_matching(checkpoints, "*", request.checkpoints)
        if self._setup.checkpoint:
            copy_matching(folder, self._setup.checkpoint, request.folder)

    @contextmanager
    def _claimed(self, request: TrialRequest) -> Iterator[Hold]:
        """The folder of a trial, held for its program."""
        request.folder.mkdir(parents=True, exist_ok=True)
        grace = self._setup.grace_seconds
        with claim_folder(request.folder, purpose=f"trial {request.trial}", grace_seconds=grace) as claim:
            yield claim

    def _run_command(self, spec: UserProgram, request: TrialRequest) -> TrialRun:
        setup, folder = self._setup, request.folder
        with ExitStack() as held:
            claim = held.enter_context(self._claimed(request))
            checkpoint = find_checkpoint(folder, setup.checkpoint, bad=request.bad_checkpoints)
            if request.attempt == 1:
                checkpoint = None
            if checkpoint:
                yield Resumed(trial=request.trial, attempt=request.attempt, checkpoint=checkpoint._asdict())
            port = held.enter_context(host.reserved_port())
            placeholders = {
                "trial": request.trial,
                "attempt": request.attempt,
                "trial_dir": str(folder),
                "cpus": setup.threads,
                GPUS: setup.gpus,
                PORT: port,
                "resume_from": str(folder / checkpoint.name) if checkpoint else "",
                "dataset": str(self._dataset.folder) if self._dataset else "",
            }
            start = Path(setup.cwd) if setup.trial_workdirs else None
            resume = setup.resume if checkpoint else None
            environment = trial_environment(
                self._environment, trial=request.trial, folder=folder, cpus=setup.threads, start=start
            )
            run = ProgramRun(
                command=trial_command(spec, placeholders, resume=resume, start=start),
                cwd=str(folder) if setup.trial_workdirs else setup.cwd,
                environment=as_own_job(environment, folder=folder, cpus=setup.threads, port=port),
                output=folder / output_name(request.attempt),
                metrics=MetricsCollector(
                    setup.metrics, folder, resumes=checkpoint is not None, ranks=max(1, setup.gpus * setup.nodes)
                ),
                claim=claim,
                timeout_seconds=setup.timeout_seconds,
                deadline=request.deadline,
                grace_seconds=setup.grace_seconds,
                stop_request=self._stop_request,
                earlier_outputs=request.earlier_outputs if checkpoint else (),
                records_end=True,
            )
            return (yield from run_user_program(run, self._guard))

    @cached_property
    def _environment(self) -> dict[str, str]:
        """The environment of commands, before their own variables; scripts of conda activate it."""
        return program_environment(self._setup.python)

    def _run_function(self, spec: UserProgram, request: TrialRequest) -> TrialRun:
        assert spec.function is not None
        os.chdir(self._setup.cwd or ".")  # the function of an earlier trial may have left it
        for folder in (request.folder, request.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        dataset = self._dataset.folder if self._dataset else None
        self._function = context = Context(
            request.trial,
            request.attempt,
            request.folder,
            request.checkpoints,
            dataset,
            request.deadline,
            self._setup.gpus,
            self._setup.threads,
            self._stop_request,
        )
        with claim_folder(request.folder, purpose=f"trial {request.trial}", grace_seconds=0.0):
            function = import_object(spec.function, role="function")
            if self._setup.trial_workdirs:
                os.chdir(request.folder)
            return (yield from run_function(function, spec.args, context))

    def _train_on_gpus(self, spec: Train, request: TrialRequest) -> TrialRun:
        """Train on all GPUs of the slot, whose ranks are started as those of a scale of a study."""
        setup, dataset = self._setup, self._dataset
        assert dataset is not None
        _check_weights(spec, request.trial, dataset.digest)
        scale = f"{setup.nodes}x{setup.gpus}"
        study = study_of_trial(spec, "d", scale=scale, cpus=setup.threads)
        if setup.profile:
            study["profile"] = setup.profile.model_dump()
        allocation = slurm_allocation.current_allocation() if setup.nodes > 1 else None
        with (
            self._claimed(request) as claim,
            tempfile.TemporaryDirectory(prefix=".torchrun-", dir=request.folder) as folder,
        ):
            launch = Path(folder)
            content = {
                "trial": request.trial,
                "study": study,
                "dataset": str(dataset.folder),
                "local": setup.data.local if allocation else "off",
                "checkpoints": str(request.checkpoints),
                "deadline": request.deadline,
                "downloads": setup.data.downloads,
            }
            write_json(launch / TRIAL, content)
            _, program, name = helper_command("packing.trial_rank")
            command = training_command(
                scale, [name, folder], folder=folder, allocation=allocation, program=Path(program)
            )
            run = ProgramRun(
                command=command,
                cwd=setup.cwd or ".",
                environment=trial_environment(
                    self._environment, trial=request.trial, folder=request.folder, cpus=study["cpus_per_gpu"]
                ),
                output=request.folder / output_name(request.attempt),
                metrics=MetricsCollector(Metrics(file=EPOCHS), launch, hold_first_row=False, burst=math.inf),
                claim=claim,
                grace_seconds=setup.end_seconds,
                stop_request=self._stop_request,
                is_srun=allocation is not None,
                overdue_code=StepEnd(launch, tasks=setup.nodes).overdue_code if allocation else lambda: None,
            )
            end = yield from run_user_program(run, self._guard)
            return _end_of_ranks(end, launch)

    def _train(self, spec: Train, request: TrialRequest) -> TrialRun:
        from trainyard.training.trainer import TrainingInterrupted
        from trainyard.training.untimed_steps import warm_up

        halvings = list[MicroBatchHalved]()
        trainer = self._create_trainer(spec, request, halvings)
        self._began -= trainer.seconds
        for row in trainer.history:
            yield EpochReported(row.as_row())
        status = TrialStatus.FINISHED
        try:
            if trainer.spec.compile:
                warm_up(trainer)
            with ExitStack() as measuring:
                uses = measuring.enter_context(worker_gpu.measure_gpu()) if request.measures_gpu else []
                for row in trainer.epochs():
                    while halvings:
                        yield halvings.pop(0)
                    if (yield EpochReported(row.as_row(), first_step_time=trainer.first_step_time)):
                        status = TrialStatus.STOPPED
                        break
        except TrainingInterrupted as error:
            return TrainingEnded(status=TrialStatus.INTERRUPTED, error=str(error))
        return TrainingEnded(
            status=status,
            metrics=trainer.trial_metrics,
            precision=trainer.precision,
            seconds=time.perf_counter() - self._began,
            gpu_use=uses[0] if uses else None,
        )

    def _create_trainer(self, spec: Train, request: TrialRequest, halvings: list[MicroBatchHalved]) -> "Trainer":
        """The trainer of a trial. It appends to `halvings` when a micro-batch does not fit into memory."""
        from trainyard.training.checkpoints import CheckpointStore
        from trainyard.training.sampler import batch_sizes
        from trainyard.training.step_profile import StepProfiler
        from trainyard.training.trainer import Trainer

        def note(batch: "BatchSizes") -> None:
            halvings.append(
                MicroBatchHalved(
                    trial=request.trial,
                    attempt=request.attempt,
                    micro_batch=batch.micro,
                    accumulation=batch.accumulation,
                )
            )

        assert self._dataset is not None
        _check_weights(spec, request.trial, self._dataset.digest)
        return Trainer(
            spec,
            self._data,
            self._group,
            batch=batch_sizes(spec),
            store=CheckpointStore(request.checkpoints, {"trial": request.trial}),
            save_every_seconds=SAVE_SECONDS,
            save_last=False,  # the journal has the results of a trial
            deadline=request.deadline,
            stop_request=self._stop_request,
            downloads=self._setup.data.downloads,
            on_halved=note,
            profiler=StepProfiler(self._setup.profile, request.folder / "profile") if self._setup.profile else None,
        )


def _end_of_ranks(end: TrialEnded, launch: Path) -> TrainingEnded:
    """How a training on several GPUs ended: as rank 0 reports, unless something else ended it or a rank failed."""
    report = json.loads((launch / END).read_text()) if (launch / END).exists() else {}
    status, error = end.status, end.error
    if status is TrialStatus.FAILED:
        error = failure_reason(launch) or error
    elif status not in (TrialStatus.STOPPED, TrialStatus.INTERRUPTED):
        status, error = TrialStatus(report["status"]), report["error"]
    return TrainingEnded(
        status=status,
        metrics=report.get("metrics", end.metrics if status is TrialStatus.STOPPED else {}),
        error=error,
        seconds=(end.seconds or 0.0) + report.get("earlier_seconds", 0.0),
        traceback=end.traceback,
        exit_code=end.exit_code,
        output=end.output,
        precision=report.get("precision"),
    )


def _check_weights(spec: Train, trial: str, dataset_digest: str) -> None:
    """Raise a WeightsError if the file of the pretrained weights is not the one that is part of the trial's name."""
    if spec.pretrained is not None and Trial(spec, {}).identity(dataset_digest) != trial:
        raise WeightsError(f"{spec.pretrained}: has changed since the sweep began: run the sweep again")
