"""Trials that run Trainyard's own training loop in the process of a slot.

torch is imported in functions: it takes seconds.
"""

import gc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.cluster.ray import worker_parent
from trainyard.config.sweep import Sweep, TrainSweep
from trainyard.config.train import BUILT_IN_MODELS, Training
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import Trial, trainings
from trainyard.config.weights import WeightsError
from trainyard.data.staged import Staged
from trainyard.kinds.program import copy_dataset
from trainyard.kinds.trial_flops import count_trial_flops, is_needed
from trainyard.packing.messages import Assignment
from trainyard.packing.trial_kind import Report, TrialKind
from trainyard.packing.worker_gpu import limit_gpu_memory
from trainyard.planning.journal import MicroBatchHalved
from trainyard.planning.plan import Plan
from trainyard.programs.trial_messages import EpochReported, TrialEnded

if TYPE_CHECKING:
    from trainyard.training.trainer import Trainer


class TrainingTrials(TrialKind):
    """Trains, in one process or several."""

    @classmethod
    def check_job(cls, sweep: Sweep, dataset: Path | None) -> None:
        """Check that the dataset has images that can be opened."""
        assert dataset is not None
        Staged(dataset).check_images()

    @classmethod
    def count_flops(cls, plan: Plan, dataset: Path | None, *, seconds: float) -> dict[str, float]:
        """The FLOPs of the pending trials, unless something else determines their order."""
        if not is_needed(plan, plan.slots.count):
            return {}
        assert dataset is not None
        return count_trial_flops(plan, Staged(dataset), seconds=seconds)


class TrainTrials(TrainingTrials):
    """Trains in this process."""

    @classmethod
    def preload(cls, sweep: Sweep) -> Sequence[str]:
        """Also torchvision, unless all models are Trainyard's own: it imports torch's compiler, in 2 s of CPU time."""
        modules = ["torch", "trainyard.training.trainer"]
        if any(spec.model not in BUILT_IN_MODELS for spec in trainings(sweep)):
            modules.append("torchvision")
        return modules

    def prepare(self) -> tuple[str, dict[str, Any]]:
        """Import torch and load the data."""
        began = time.perf_counter()
        from trainyard.training import (
            numerics,
            trainer,  # noqa: F401  (the first trial would have to import it)
        )
        from trainyard.training.loaders import load_input_data
        from trainyard.training.process_group import single_process
        from trainyard.training.step_timing import device_name

        imported = time.perf_counter()
        numerics.set_threads(self.setup.threads)
        if self.setup.is_deterministic:
            numerics.fix_cublas_workspace()
        limit_gpu_memory(self.setup.gpu_share)
        self._group = single_process()
        self._dataset, copied = copy_dataset(self.setup, self.resources)
        opened = time.perf_counter()
        assert self._dataset is not None
        self._data = load_input_data(self._dataset, self._group.device)
        copied["import_torch_seconds"] = imported - began + worker_parent.preload_seconds
        copied["data_seconds"] = time.perf_counter() - opened
        return device_name(self._group.device), copied

    def run(self, assignment: Assignment, report: Report) -> TrialEnded:
        """Train, and then release what the training has left in the process, however it ended."""
        try:
            return self._train(assignment, report)
        finally:
            if assignment.spec.compile:
                from trainyard.training.forward_pass import release_compiled_code

                release_compiled_code()  # and the memory of its CUDA graphs, before a trial that does not compile
            gc.collect()  # what a cycle holds, as in a model that a user has given a method of its own as attribute

    def _train(self, assignment: Assignment, report: Report) -> TrialEnded:
        from trainyard.training.trainer import TrainingInterrupted
        from trainyard.training.untimed_steps import warm_up

        began = time.perf_counter()
        trainer = self.create_trainer(assignment, report)
        self.seconds_before = trainer.seconds
        for row in trainer.history:
            report(EpochReported(row.as_row()))
        status = TrialStatus.FINISHED
        try:
            if trainer.spec.compile:
                warm_up(trainer)
            for row in trainer.epochs():
                if report(EpochReported(row.as_row(), first_step_time=trainer.first_step_time)):
                    status = TrialStatus.STOPPED
                    break
        except TrainingInterrupted as error:
            return TrialEnded(status=TrialStatus.INTERRUPTED, error=str(error))
        return TrialEnded(
            status=status,
            metrics=trainer.trial_metrics,
            precision=trainer.precision,
            seconds=self.seconds_before + time.perf_counter() - began,
        )

    def create_trainer(self, assignment: Assignment, report: Report) -> "Trainer":
        """The trainer of a trial."""
        from trainyard.training.checkpoints import SAVE_SECONDS, CheckpointStore
        from trainyard.training.sampler import batch_sizes
        from trainyard.training.step_profile import StepProfiler
        from trainyard.training.trainer import Trainer

        assert self._dataset is not None
        check_weights(assignment.spec, assignment.trial, self._dataset.digest)
        assert isinstance(self.setup.sweep, TrainSweep)
        profile = self.setup.sweep.profile
        return Trainer(
            assignment.spec,
            self._data,
            self._group,
            batch=batch_sizes(assignment.spec),
            store=CheckpointStore(assignment.checkpoints, {"trial": assignment.trial}),
            save_every_seconds=SAVE_SECONDS,
            save_last=False,  # the journal has the results of a trial
            deadline=assignment.deadline,
            stop_request=self.stop_request,
            downloads=self.setup.data.downloads,
            on_halved=lambda batch: report(
                MicroBatchHalved(
                    trial=assignment.trial,
                    attempt=assignment.attempt,
                    micro_batch=batch.micro,
                    accumulation=batch.accumulation,
                )
            ),
            profiler=StepProfiler(profile, assignment.folder / "profile") if profile else None,
        )


def check_weights(spec: Training, trial: str, dataset_digest: str) -> None:
    """Raise a WeightsError if the file of the pretrained weights is not the one that is part of the trial's name."""
    if spec.pretrained is not None and Trial(spec, {}).identity(dataset_digest) != trial:
        raise WeightsError(f"{spec.pretrained}: has changed since the sweep began: run the sweep again")


KIND = TrainTrials
