"""Runs a user's own distributed script at one scale, monitors it, and parses metrics from its output."""

import logging
import math
import os
import shutil
import signal
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from trainyard.cluster import host, slurm_allocation, slurm_queries
from trainyard.cluster.gpus import has_gpu
from trainyard.cluster.stop_request import StopRequest, stop_request_of_signals
from trainyard.config.placeholders import PORT, build_argv, insert_resume_option
from trainyard.config.scaling import MOST_CPUS_PER_GPU, ScriptScaling, repeat_of, split_scale
from trainyard.config.settings import SETTINGS
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import result_digest
from trainyard.config.user_programs import INCOMPLETE
from trainyard.planning.attempts import UNSAVED, Piece, epochs_before, why_given_up
from trainyard.planning.history import dataset_digest
from trainyard.programs.metric_rows import shift_epoch
from trainyard.programs.metrics import UNREADABLE_REMEDY, MetricsCollector, ParsedOutput
from trainyard.programs.node_setup import prepared_nodes
from trainyard.programs.runner import (
    MAY_BE_DAMAGED,
    MOST_DAMAGED,
    OUT_OF_TIME,
    ProgramRun,
    checkpoint_digest,
    failed_by_itself,
    find_checkpoint,
    may_be_of_checkpoint,
    run_user_program,
)
from trainyard.programs.script_options import find_switches
from trainyard.programs.trial_messages import EpochReported, TrialEnded
from trainyard.programs.user_environment import code_record, find_interpreter, resolve_program_paths, script_interpreter
from trainyard.programs.wandb_runs import wandb_environment
from trainyard.scaling import rendezvous
from trainyard.scaling.launch_records import Launches
from trainyard.scaling.launchers import HOSTFILE, STEP, NodeStep, check_allocation, script_command, srun_command
from trainyard.utils.environment_variables import Variables
from trainyard.utils.errors import ContinuedError, FinalError, UserError
from trainyard.utils.files import write_json
from trainyard.utils.guarded_process import ProcessGuard, hold_folder
from trainyard.utils.locks import Hold, hold
from trainyard.utils.text import count_of

# Metrics that the tables have columns for, if a script reports them; others are in history.csv only.
THROUGHPUT: Final = "images_per_second"
LAST_VALUES: Final = ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "global_batch")
MEDIANS: Final = ("images_per_second", "step_ms_p50", "step_ms_p95", "data_wait_fraction", "exposed_comm_fraction")
_COUNTERS: Final = {  # metrics that count what was trained
    "trained_images": ("images", "samples"),
    "trained_steps": ("step", "steps", "global_step", "iteration"),
}
RUN_FIELDS: Final = ("device", "job", "node", "node_names", "gpu_model")
SESSION_FIELDS: Final = ("code", "versions", "config")
CONTINUES: Final = "the same command continues from the last checkpoint"
TO_SCRIPTS: Final = (signal.SIGKILL,)  # from outside: after an error of one rank, srun ends the others by SIGTERM
STOPPED: Final = f"the script was ended by a signal: {CONTINUES}"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Session:
    """What all launches of a run have: the lock of its folder, what `setup` has set, and the request to stop."""

    folder_lock: Hold
    variables: Mapping[str, Variables]  # by node
    stop_request: StopRequest


class UserScript:
    """The script of a study at one scale; `run` is the scale, such as `1x2` or `1x2/repeat-2`."""

    def __init__(
        self, study: ScriptScaling, run: str, folder: Path, results: Path, *, config: str | None = None
    ) -> None:
        """`folder` is that of the study, and `config` the digest of the config."""
        self._study = study
        self._run = run
        self._name = folder.name
        self._folder = folder / run
        self._config = config
        self._nodes, self._gpus = split_scale(run)
        self._ranks = self._nodes * self._gpus
        self._dataset = str((results / "data" / study.dataset).absolute()) if study.dataset else ""
        # What changes the result starts in a new folder: in another one's, it would find its checkpoints.
        self._digest = result_digest(study, run, dataset_digest(results, study))
        self._out = (self._folder / "out" / self._digest).absolute()
        self._launches = Launches(self._out)

    def run(self) -> None:
        """Run the script and write its results. If it has finished before, parse its output again instead.

        Raises:
            UserError: the script cannot be started, failed, or reported none of the configured metrics.
        """
        self._out.mkdir(parents=True, exist_ok=True)
        with hold(self._folder / ".lock", is_given_up=slurm_queries.is_given_up):
            if self.has_ended:
                log.info("the script is not run again: its output is parsed again")
                launched = None
            else:
                study = self._study
                srun = self._srun
                with (
                    hold_folder(
                        self._out, purpose=f"scale {self._run}", grace_seconds=study.grace_seconds
                    ) as folder_lock,
                    prepared_nodes(study, self._out / "setup.log", nodes=self._nodes, srun=srun) as variables,
                ):
                    stop_request = stop_request_of_signals()
                    signal.signal(signal.SIGINT, stop_request.make)
                    launched = self._launch_until_complete(_Session(folder_lock, variables, stop_request))
            self._write_results(launched)

    def _write_results(self, launched: ParsedOutput | None) -> None:
        """Write what has been reported; `launched` has what this run of the script has, None if it is not run again."""
        study = self._study
        launches = self._launches
        end = launches.end()
        assert end is not None
        report = launches.report(ended=end["time"])
        if launched and (launched.missing or not launched.of_several_ranks):
            whole = launched
            rows = report.rows
        else:  # lines of several ranks can be merged now that all are there
            parsed = launches.parse_outputs(study.metrics, seconds=report.seconds, ranks=self._ranks)
            whole = launched or parsed
            rows = parsed.rows
        if problem := whole.missing or whole.unread.get(THROUGHPUT):
            raise FinalError(f"{self._run}: {problem}; see {launches.output}. {UNREADABLE_REMEDY}")
        if THROUGHPUT in whole.of_several_ranks and study.per is None:
            raise FinalError(
                f"{self._run}: several ranks print {THROUGHPUT}, see {launches.output}: is it that of one "
                "GPU or of all? Set `per: gpu` or `per: all`; the same command then reads the saved output again"
            )
        times = report.row_seconds if len(rows) == len(report.row_seconds) else [None] * len(rows)
        rows = [{**row, "seconds": row.get("seconds", took)} for row, took in zip(rows, times, strict=True)]
        if study.per == "gpu":
            for row in rows:
                if (throughput := row.get(THROUGHPUT)) is not None:
                    row[THROUGHPUT] = throughput * self._ranks
        summary = {
            **_trained(rows, counts_epochs=whole.counts_epochs),
            "train_seconds": report.seconds,
            **{name: end[name] for name in RUN_FIELDS},
            "sessions": launches.facts(SESSION_FIELDS),
            "spec_digest": self._digest,
        }
        self._write(rows, summary)

    @cached_property
    def _cpus_per_gpu(self) -> int:
        if self._study.cpus_per_gpu is not None:
            return self._study.cpus_per_gpu
        return slurm_allocation.cpus_per_gpu(self._gpus, most=MOST_CPUS_PER_GPU) if has_gpu() else 1

    @property
    def has_ended(self) -> bool:
        """Whether the script has succeeded and is complete, so that its output is only read again."""
        study = self._study
        has_succeeded = self._launches.end() is not None
        if study.complete is None or not has_succeeded:
            return has_succeeded
        parsed = self._launches.parse_outputs(study.metrics, complete=study.complete, seconds=0.0, ranks=self._ranks)
        return not parsed.incomplete

    @property
    def _srun(self) -> list[str]:
        given = check_allocation(self._run, slurm_allocation.current_allocation())
        return srun_command(given.nodes, 1, cpus=given.cpus_per_node) if given else []

    def _launch_until_complete(self, session: _Session) -> ParsedOutput:
        """Launch the script until it is complete.

        Raises:
            UserError: it failed, or is not continued any more.
        """
        pieces = list[Piece]()
        saved = ""
        while (launched := self._launch(session)) is None or launched.incomplete:
            if launched is None:
                continue
            newest = checkpoint_digest(self._out, find_checkpoint(self._out, self._study.checkpoint))
            pieces.append(Piece(launched.rows[-1]["epoch"] if launched.rows else None, newest not in ("", saved)))
            saved = newest
            if why := why_given_up(pieces):
                raise UserError(f"{self._run}: {launched.incomplete}; {why}")
            log.info("%s: %s; it goes on", self._run, launched.incomplete)
        return launched

    def _launch(self, session: _Session) -> ParsedOutput | None:
        """Run the script from the latest checkpoint that it has not failed to resume from.

        Returns what this launch has reported, without the rows unless it is not complete. None if it failed on a
        checkpoint that may be damaged: the next launch gets the one before.
        """
        from trainyard.cluster.telemetry import recorded_gpu_name  # imports pynvml: in jobs only

        study = self._study
        launches = self._launches
        allocation = slurm_allocation.current_allocation()
        if session.stop_request.is_made:
            raise UserError(STOPPED)
        with (
            tempfile.TemporaryDirectory(prefix=".rendezvous-", dir=self._folder.absolute()) as meeting,
            host.reserved_port() as port,
        ):
            kept = find_checkpoint(self._out, study.checkpoint, bad=launches.failed_checkpoints())
            line = self._command(self._out / kept.name if kept else None, meeting, port, session.variables)
            if kept is None:  # of other runs, which may have been on other nodes
                shutil.rmtree(self._folder / "telemetry", ignore_errors=True)
            log.info("launching: %s", " ".join(line))
            numbers_rows = study.metrics is not None and study.metrics.numbers_rows
            before = epochs_before(launches.epochs(), kept) if kept and numbers_rows else 0
            with launches.launch(resumes=kept is not None, **code_record(study, config=self._config)):
                metrics = MetricsCollector(
                    study.metrics,
                    self._out,
                    complete=study.complete,
                    resumes=kept is not None,
                    ranks=self._ranks,
                    hold_first_row=False,
                )
                launches.add_kept(metrics.new_rows())
                end = self._monitor(line, metrics, Path(meeting), session, before=before)
                if problem := rendezvous.problem(Path(meeting)):
                    raise UserError(problem)
                if end.error.startswith(INCOMPLETE):
                    return ParsedOutput(incomplete=end.error, rows=launches.last_rows())
                if end.status is TrialStatus.INTERRUPTED:
                    if end.error == OUT_OF_TIME:
                        epochs = [each.times[-1][1] if each.times else None for each in launches.epochs()]
                        why = why_given_up([Piece(epoch, has_saved=True) for epoch in epochs])
                        if find_checkpoint(self._out, study.checkpoint) == kept:
                            why = UNSAVED
                        if why:
                            raise UserError(f"the script was {OUT_OF_TIME}: {why}")
                        raise ContinuedError(f"the script was {OUT_OF_TIME}: {CONTINUES}")
                    raise UserError(STOPPED)
                if end.status is TrialStatus.FAILED:
                    if kept and failed_by_itself(end.error, external=TO_SCRIPTS):
                        launches.add_failed(kept)
                        is_first = launches.failed_in_a_row <= MOST_DAMAGED and not launches.last_rows()
                        if is_first and may_be_of_checkpoint(end.error, end.seconds, external=TO_SCRIPTS):
                            log.warning("%s: the script failed on %s, %s", self._run, kept.name, MAY_BE_DAMAGED)
                            return None
                    raise UserError(f"the script failed: {end.error}; its output is above")
                launches.add_end(
                    device=recorded_gpu_name(self._folder / "telemetry") or "cpu",
                    job=slurm_allocation.job_id(),
                    node=host.node_name(),
                    node_names=list(allocation.nodes) if allocation else [host.node_name()],
                    gpu_model=allocation.gpu_model if allocation else "",
                )
        return replace(metrics.parsed(), missing=end.error)

    def _command(
        self, checkpoint: Path | None, meeting: str, port: int, variables: Mapping[str, Variables]
    ) -> list[str]:
        study = self._study
        predefined = {
            "out_dir": str(self._out),
            "resume_from": str(checkpoint or ""),
            "nodes": self._nodes,
            "gpus": self._ranks,
            "gpus_per_node": self._gpus,
            "cpus_per_gpu": self._cpus_per_gpu,
            "dataset": self._dataset,
            "seed": repeat_of(self._run) - 1,
            PORT: port,
        }
        if study.settings:
            predefined[SETTINGS] = study.settings.write(self._out, study.args)
        command = insert_resume_option(study.script, study.resume if checkpoint else None, study.args)
        options = study.launcher_options
        if study.workdir == "trial":
            command = resolve_program_paths(command, Path.cwd())
            options = [str(Path(word).absolute()) if Path(word).is_file() else word for word in options]
        switch_of = find_switches(study.command_line, Path.cwd())
        words = build_argv(command, study.args, predefined, in_shell=False, switch_of=switch_of)
        if words[0] in ("python", "python3"):  # the launcher runs it with the interpreter
            del words[0]
        allocation = slurm_allocation.current_allocation()
        given = check_allocation(self._run, allocation)
        nodes = list(given.nodes) if given else [host.node_name()]
        step = NodeStep(
            nodes=nodes,
            telemetry=str(self._folder / "telemetry"),
            overwrites_telemetry=checkpoint is None,
            gpus=self._gpus,
            cpus_per_gpu=self._cpus_per_gpu,
            grace_seconds=study.grace_seconds,
            stop_signal=study.stop_signal,
            variables=variables,
            python=str(find_interpreter(study) or ""),
            workdir=str(self._out) if study.workdir == "trial" else None,
            is_per_gpu=study.launcher_name == "srun",
        )
        write_json(Path(meeting, STEP), asdict(step))
        Path(meeting, HOSTFILE).write_text("".join(f"{node} slots={self._gpus}\n" for node in nodes))
        return script_command(
            self._run,
            words,
            launcher=study.launcher_name,
            launcher_options=options,
            python=str(script_interpreter(study)),
            meeting=meeting,
            cpus_per_gpu=self._cpus_per_gpu,
            job_nodes=allocation.nodes if allocation else (),
        )

    def _monitor(
        self,
        line: list[str],
        metrics: MetricsCollector,
        meeting: Path,
        session: _Session,
        *,
        before: float,
    ) -> TrialEnded:
        """Run a command, log its output and record its rows, whose epochs are those after the first `before` ones."""
        study = self._study
        tasks = self._ranks if study.launcher_name == "srun" else self._nodes
        step = rendezvous.StepEnd(meeting, tasks=tasks, grace_seconds=study.grace_seconds)
        # Without checkpoints, an earlier end saves nothing.
        allocation = slurm_allocation.current_allocation()
        deadline = allocation.deadline if allocation and study.checkpoint is not None else math.inf
        environment: Mapping[str, str] = os.environ
        if study.is_wandb:
            environment = wandb_environment(environment, study.args, self._out, run=self._digest, group=self._name)
        run = ProgramRun(
            command=line,
            cwd=str(Path.cwd()),
            environment=environment,
            output=self._launches.output,
            metrics=metrics,
            folder_lock=session.folder_lock,
            earlier_outputs=tuple(reversed(self._launches.earlier_outputs)),
            deadline=deadline - study.grace_seconds,
            grace_seconds=study.grace_seconds,
            stop_signal="USR1",  # to `node_step`, which sends that of the script to the launcher
            stop_request=session.stop_request,
            on_line=lambda text: log.info("%s", text),
            overdue_code=step.overdue_code if line[0] == "srun" else None,
        )

        def report(epoch: EpochReported) -> bool:
            if epoch.warning:
                log.warning("%s", epoch.warning)
            self._launches.add(shift_epoch(epoch.row, before))
            return False

        end = run_user_program(run, ProcessGuard(), report)
        if end.warning:
            log.warning("%s", end.warning)
        return end

    def _write(self, rows: Sequence[dict[str, Any]], summary: Mapping[str, Any]) -> None:
        """Write `history.csv` and `summary.json`; metrics that were not reported are empty."""
        from trainyard.cluster.telemetry import gpu_memory, telemetry_summary
        from trainyard.utils.csv_files import write_rows  # imports pandas, which takes a second

        seconds = summary["train_seconds"]
        reported = {name: [row[name] for row in rows if row.get(name) is not None] for name in (*LAST_VALUES, *MEDIANS)}
        if not reported["images_per_second"]:
            without = "computed from the training time" if self._study.mode == "strong" else "unknown (`mode: weak`)"
            log.warning("the script reports no `images_per_second`: the speedup is %s", without)
        elif self._ranks > 1 and self._study.per is None:
            log.warning("`images_per_second` is taken for that of all GPUs: set `per: all`, or `per: gpu` if it is not")
        write_rows(rows or [{"epoch": 1, "seconds": seconds}], self._folder / "history.csv")
        memory = gpu_memory(self._folder / "telemetry")
        written = {
            "scale": self._run.partition("/")[0],
            "repeat": repeat_of(self._run),
            "nodes": self._nodes,
            "gpus": self._ranks,
            "launcher": self._study.launcher_name,
            "epochs": len(rows),
            **{name: reported[name][-1] if reported[name] else None for name in LAST_VALUES},
            **{name: statistics.median(reported[name]) if reported[name] else None for name in MEDIANS},
            **summary,
            **telemetry_summary(self._folder / "telemetry", memory),
        }
        write_json(self._folder / "summary.json", written)
        log.info("the script ran %.1f s and reported %s of metrics", seconds, count_of(len(rows), "row"))


def _trained(rows: Sequence[Mapping[str, Any]], *, counts_epochs: bool) -> dict[str, float | None]:
    """How much a script has trained, by its own count: None where unknown.

    A script that resumes on its own starts at a later number. Rows are thinned, so they are not counted; the first and
    the last one are always there.
    """
    counted: dict[str, float | None] = dict.fromkeys(("trained_epochs", *_COUNTERS))
    if rows and counts_epochs:
        counted["trained_epochs"] = rows[-1]["epoch"] - rows[0]["epoch"] + 1
    for column, names in _COUNTERS.items():
        counts = [row[name] for row in rows for name in names if row.get(name) is not None]
        if len(counts) == len(rows) > 1 and all(earlier < later for earlier, later in pairwise(counts)):
            counted[column] = counts[-1] - counts[0]
    return counted
