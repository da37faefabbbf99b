"""Trials that run Trainyard's own training loop on several GPUs, as ranks of torchrun (`train_rank.py`)."""

import json
import math
import tempfile
from pathlib import Path
from typing import Any, Final

from trainyard.cluster import slurm_allocation
from trainyard.config.scaling import study_of_trial
from trainyard.config.sweep import Sweep, TrainSweep
from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import Metrics
from trainyard.kinds.program import ProgramTrials
from trainyard.kinds.train import TrainingTrials, check_weights
from trainyard.packing.messages import Assignment
from trainyard.packing.trial_kind import Report
from trainyard.planning.task import output_name
from trainyard.programs.metrics import MetricsCollector
from trainyard.programs.runner import ProgramRun, run_user_program, trial_environment
from trainyard.programs.trial_messages import TrialEnded
from trainyard.programs.user_environment import program_environment
from trainyard.scaling.launchers import check_allocation, failure_reason, training_command
from trainyard.scaling.rendezvous import StepEnd
from trainyard.utils.files import write_json
from trainyard.utils.guarded_process import ProcessGuard, hold_folder
from trainyard.utils.import_path import helper_command

# Files in the folder of a launch, between a worker and the ranks of a training on several GPUs.
TRIAL: Final = "trial.json"  # what to train
EPOCHS: Final = "epochs.jsonl"  # a row of metrics each
END: Final = "end.json"  # how it ended


class TrainTrialsOnGpus(TrainingTrials, ProgramTrials):
    """Trains on all GPUs of a slot, whose ranks are started as those of a scale of a study."""

    @classmethod
    def check_job(cls, sweep: Sweep, dataset: Path | None) -> None:
        """Check also that the job has the nodes of a trial."""
        if sweep.slots.nodes_per_trial > 1:
            check_allocation(sweep.slots.scale, slurm_allocation.current_allocation())
        super().check_job(sweep, dataset)

    def prepare(self) -> tuple[str, dict[str, Any]]:
        """Start the guard of the launchers."""
        self._guard = ProcessGuard()
        return super().prepare()

    def run(self, assignment: Assignment, report: Report) -> TrialEnded:
        """Start the ranks; the file to which rank 0 writes epochs is read as that of a user's program."""
        setup = self.setup
        dataset = self.dataset
        assert dataset is not None
        assert isinstance(setup.sweep, TrainSweep)
        check_weights(assignment.spec, assignment.trial, dataset.digest)
        scale = setup.sweep.slots.scale
        study = study_of_trial(assignment.spec, "d", scale=scale, cpus=setup.threads)
        if setup.sweep.profile:
            study["profile"] = setup.sweep.profile
        allocation = slurm_allocation.current_allocation() if setup.nodes > 1 else None
        assignment.folder.mkdir(parents=True, exist_ok=True)
        with (
            hold_folder(assignment.folder, purpose=f"trial {assignment.trial}", grace_seconds=0.0) as folder_lock,
            tempfile.TemporaryDirectory(prefix=".torchrun-", dir=assignment.folder) as folder,
        ):
            launch = Path(folder)
            content = {
                "trial": assignment.trial,
                "study": study,
                "dataset": str(dataset.folder),
                "local": setup.data.local if allocation else "off",
                "checkpoints": str(assignment.checkpoints),
                "deadline": assignment.deadline,
                "downloads": setup.data.downloads,
            }
            write_json(launch / TRIAL, content)
            _, program, name = helper_command("kinds.train_rank")
            command = training_command(
                scale, [name, folder], folder=folder, allocation=allocation, program=Path(program)
            )
            run = ProgramRun(
                command=command,
                cwd=setup.cwd or ".",
                environment=trial_environment(
                    program_environment(), trial=assignment.trial, folder=assignment.folder, cpus=study["cpus_per_gpu"]
                ),
                output=assignment.folder / output_name(assignment.attempt),
                metrics=MetricsCollector(Metrics(file=EPOCHS), launch, hold_first_row=False, burst=math.inf),
                folder_lock=folder_lock,
                grace_seconds=setup.sweep.end_seconds,
                stop_request=self.stop_request,
                overdue_code=StepEnd(launch, tasks=setup.nodes).overdue_code if allocation else None,
            )
            return end_of_ranks(run_user_program(run, self._guard, report), launch)


def end_of_ranks(end: TrialEnded, launch: Path) -> TrialEnded:
    """How a training on several GPUs ended: as rank 0 reports, unless something else ended it or a rank failed."""
    report = json.loads((launch / END).read_text()) if (launch / END).exists() else {}
    status = end.status
    error = end.error
    if status is TrialStatus.FAILED:
        error = failure_reason(launch) or error
    elif status not in (TrialStatus.STOPPED, TrialStatus.INTERRUPTED):
        status = TrialStatus(report["status"])
        error = report["error"]
    return TrialEnded(
        status=status,
        metrics=report.get("metrics", end.metrics if status is TrialStatus.STOPPED else {}),
        error=error,
        seconds=(end.seconds or 0.0) + report.get("earlier_seconds", 0.0),
        traceback=end.traceback,
        exit_code=end.exit_code,
        output=end.output,
        precision=report.get("precision"),
    )


KIND = TrainTrialsOnGpus
