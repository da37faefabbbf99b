"""Trials that run a command of the user, each below a guard."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trainyard.cluster import host
from trainyard.config.placeholders import GPUS, PORT
from trainyard.config.settings import SETTINGS
from trainyard.config.sweep import CommandSweep, Sweep
from trainyard.config.user_programs import INCOMPLETE, checkpoints_of
from trainyard.kinds.program import ProgramTrials
from trainyard.packing.messages import Assignment
from trainyard.packing.trial_kind import Report
from trainyard.planning.journal import Resumed
from trainyard.planning.task import output_name
from trainyard.programs.metrics import MetricsCollector
from trainyard.programs.runner import (
    ProgramRun,
    as_own_job,
    checkpoint_digest,
    find_checkpoint,
    run_user_program,
    trial_command,
    trial_environment,
)
from trainyard.programs.trial_messages import TrialEnded
from trainyard.programs.user_environment import program_environment
from trainyard.programs.wandb_runs import run_id, wandb_environment
from trainyard.utils.environment_variables import changed_environment
from trainyard.utils.files import copy_matching
from trainyard.utils.guarded_process import ProcessGuard, hold_folder


class CommandTrials(ProgramTrials):
    """Runs commands of the user."""

    @classmethod
    def preload(cls, sweep: Sweep) -> Sequence[str]:
        """Ray imports numpy with its first message. Commands have processes of their own, with a numpy of their own."""
        return ["numpy"]

    def prepare(self) -> tuple[str, dict[str, Any]]:
        """Start the guard. The environment is that before the variables of a trial: scripts of conda activate it."""
        prepared = super().prepare()
        self._guard = ProcessGuard()
        self._environment = changed_environment(program_environment(self.setup.python), self.setup.variables)
        return prepared

    def run(self, assignment: Assignment, report: Report) -> TrialEnded:
        """Run the command of a trial, from its newest checkpoint if it has one."""
        setup = self.setup
        sweep = self.setup.sweep
        folder = assignment.folder
        assert isinstance(sweep, CommandSweep)
        if assignment.taken_over and sweep.checkpoint:
            copy_matching(assignment.taken_over[0], checkpoints_of(sweep.checkpoint), folder)
        with ExitStack() as held:
            folder.mkdir(parents=True, exist_ok=True)
            purpose = f"trial {assignment.trial}"
            folder_lock = held.enter_context(hold_folder(folder, purpose=purpose, grace_seconds=sweep.grace_seconds))
            newest = partial(find_checkpoint, folder, sweep.checkpoint, bad=assignment.bad_checkpoints)
            checkpoint = newest() if assignment.attempt > 1 else None
            if checkpoint:
                report(Resumed(trial=assignment.trial, attempt=assignment.attempt, checkpoint=checkpoint._asdict()))
            port = held.enter_context(host.reserved_port())
            placeholders = {
                "trial": assignment.trial,
                "attempt": assignment.attempt,
                "trial_dir": str(folder),
                "cpus": setup.threads,
                GPUS: setup.gpus,
                PORT: port,
                "resume_from": str(folder / checkpoint.name) if checkpoint else "",
                "dataset": str(self.dataset.folder) if self.dataset else "",
            }
            if sweep.settings:
                placeholders[SETTINGS] = sweep.settings.write(folder, assignment.spec.args)
            start = Path(setup.cwd) if sweep.has_workdirs else None
            resume = sweep.resume if checkpoint else None
            environment = trial_environment(
                self._environment, trial=assignment.trial, folder=folder, cpus=setup.threads, start=start
            )
            environment = as_own_job(environment, folder=folder, cpus=setup.threads, port=port)
            if sweep.is_wandb:
                group = setup.folder.name
                of_run = {"run": run_id(group, folder), "group": group}
                environment = wandb_environment(environment, assignment.spec.args, folder, **of_run)
            run = ProgramRun(
                command=trial_command(assignment.spec, placeholders, resume=resume, start=start),
                cwd=str(folder) if sweep.has_workdirs else setup.cwd,
                environment=environment,
                output=folder / output_name(assignment.attempt),
                metrics=MetricsCollector(
                    sweep.metrics,
                    folder,
                    complete=sweep.complete,
                    checkpoint=sweep.checkpoint,
                    resumes=checkpoint is not None,
                    ranks=max(1, setup.gpus * setup.nodes),
                ),
                folder_lock=folder_lock,
                timeout_seconds=sweep.timeout_seconds,
                deadline=assignment.deadline,
                grace_seconds=sweep.grace_seconds,
                stop_signal=sweep.stop_signal,
                stop_request=self.stop_request,
                earlier_outputs=assignment.earlier_outputs if checkpoint else (),
                records_end=True,
            )
            saved = checkpoint_digest(folder, checkpoint) if sweep.complete else ""
            end = run_user_program(run, self._guard, report)
            if not end.error.startswith(INCOMPLETE):
                return replace(end, has_saved=newest() != checkpoint)
            return replace(end, has_saved=checkpoint_digest(folder, newest()) not in ("", saved))


KIND = CommandTrials
