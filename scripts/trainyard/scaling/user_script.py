"""Runs a user's own distributed script at one scale, monitors it, and parses metrics from its output."""

import json
import logging
import math
import os
import queue
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from trainyard.cluster import host, slurm_allocation, slurm_queries
from trainyard.cluster.job_script import SRUN_ENDED
from trainyard.cluster.stop_request import StopRequest, stop_request_of_signals
from trainyard.config.placeholders import build_argv, insert_resume_option, make_values
from trainyard.config.result_digests import result_digest, script_digest, script_inputs_digest
from trainyard.config.scaling import Scaling, repeat_of, split_scale
from trainyard.config.user_programs import metrics_digest
from trainyard.planning.attempts import epochs_before
from trainyard.planning.plan import dataset_digest
from trainyard.programs.command import CheckpointFile, describe_program_failure, find_checkpoint, start_error
from trainyard.programs.metrics import UNREADABLE_REMEDY, MetricsCollector, Row, shift_epoch
from trainyard.programs.output import OutputReader
from trainyard.programs.user_environment import find_interpreter, resolve_program_paths, script_interpreter
from trainyard.scaling import rendezvous
from trainyard.scaling.launchers import WAIT_SECONDS, check_allocation, script_command
from trainyard.scaling.reported_rows import ReportedRows
from trainyard.utils.errors import ContinuedError, FinalError, UserError
from trainyard.utils.files import atomic_write, write_json
from trainyard.utils.jsonl import read_clock
from trainyard.utils.locks import Hold, hold
from trainyard.utils.process_guard import GuardedProcess, ProcessGuard, claim_folder
from trainyard.utils.text import count_of

OUTPUT_TIMEOUT_SECONDS: Final = 1.0
REPORT_BYTES: Final = 2**16  # of the end of the output, with the reports of torchrun on all nodes
_KILLED_RANK: Final = re.compile(rb"exitcode +: -(\d+) \(pid")
# Metrics that the tables have columns for, if a script reports them; others are in history.csv only.
LAST_VALUES: Final = ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "global_batch")
MEDIANS: Final = ("images_per_second", "step_ms_p50", "step_ms_p95", "data_wait_fraction", "exposed_comm_fraction")
_COUNTERS: Final = {  # metrics that count what was trained
    "trained_images": ("images", "samples"),
    "trained_steps": ("step", "steps", "global_step", "iteration"),
}
RUN_FIELDS: Final = ("train_seconds", "device", "job", "node", "node_names", "gpu_model")
ENDED_IN_TIME: Final = "the script was ended before the end of the walltime"
log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class ScriptRun:
    """Facts about a completed run that its output does not contain: the file `ended.json` beside it."""

    what: str  # digest of what changes the result
    train_seconds: float  # from the launch to the end, and of the epochs of the launches that this one resumed
    row_seconds: list[float | None]  # of each row of metrics; None if unknown
    device: str
    job: str
    node: str
    node_names: list[str]
    gpu_model: str
    heard: str = ""  # digest of the rules that parsed the output
    told: bool = False  # whether the configured metrics were reported
    counts_epochs: bool = False  # whether the `epoch` of each row is a whole number that the script reported


class UserScript:
    """The script of a study at one scale; `run` is the scale, such as `1x2` or `1x2/repeat-2`."""

    def __init__(self, study: Scaling, run: str, folder: Path) -> None:
        self._study, self._run, self._folder = study, run, folder / run
        self._nodes, self._gpus = split_scale(run)
        # A changed script starts in a new folder.
        self._out = (self._folder / "out" / script_digest(study)).absolute()
        self._reported = ReportedRows(self._out)

    def run(self, results: Path) -> int:
        """Run the script and write its results. If it has finished before, parse its output again instead.

        Raises:
            UserError: the script cannot be started, failed, or reported none of the configured metrics.
        """
        self._out.mkdir(parents=True, exist_ok=True)
        with hold(self._folder / ".lock", is_given_up=slurm_queries.is_given_up, notify=log.info):
            run = self.reusable(results)
            if run is None:
                run, rows, problem = self._launch(results)
            else:
                log.info("the script is not run again: its output is parsed again")
                rows, problem, run.counts_epochs = self._reported.parse_outputs(
                    self._study.metrics, seconds=run.train_seconds
                )
                if len(rows) != len(run.row_seconds):  # the times of these rows are unknown
                    run.row_seconds = [None] * len(rows)
            run.heard, run.told = metrics_digest(self._study.metrics), not problem
            write_json(self._record, asdict(run))
            if problem:
                raise FinalError(f"{self._run}: {problem}; see {self._reported.output}. {UNREADABLE_REMEDY}")
            self._write(
                run, rows, spec_digest=result_digest(self._study, self._run, dataset_digest(results, self._study))
            )
        return 0

    @cached_property
    def _allocation(self) -> slurm_allocation.Allocation | None:
        return slurm_allocation.current_allocation()

    @property
    def _record(self) -> Path:
        return self._out / "ended.json"

    def reusable(self, results: Path) -> ScriptRun | None:
        """The record of the last run, if a new one would give the same output."""
        try:
            run = ScriptRun(**json.loads(self._record.read_text()))
        except FileNotFoundError:
            return None
        is_same = run.what == script_inputs_digest(self._study, dataset_digest(results, self._study))
        return run if is_same and self._reported.output.exists() else None

    def _launch(self, results: Path) -> tuple[ScriptRun, list[Row], str]:
        """Run the script; return what became of it, its rows of metrics, and why there are none, or ""."""
        from trainyard.training.telemetry import recorded_gpu_name  # imports pynvml: in jobs only

        self._record.unlink(missing_ok=True)
        with claim_folder(self._out, purpose=f"scale {self._run}", grace_seconds=self._study.grace_seconds) as claimed:
            missing, counts_epochs = self._run_from_checkpoint(results, claimed)
        report = self._reported.report(ended=read_clock())
        run = ScriptRun(
            what=script_inputs_digest(self._study, dataset_digest(results, self._study)),
            train_seconds=report.seconds,
            row_seconds=list(report.row_seconds),
            device=recorded_gpu_name(self._folder / "telemetry") or "cpu",
            job=slurm_allocation.job_id(),
            node=host.node_name(),
            node_names=list(self._allocation.nodes) if self._allocation else [host.node_name()],
            gpu_model=self._allocation.gpu_model if self._allocation else "",
            counts_epochs=counts_epochs,
        )
        return run, report.rows, "" if report.rows else missing

    def _run_from_checkpoint(self, results: Path, claimed: Hold) -> tuple[str, bool]:
        """Run the script from the latest checkpoint that it has not failed to resume from.

        Returns why this launch reported no metrics, or "", and whether its rows count epochs.
        """
        bad = self._bad_checkpoints()
        kept = find_checkpoint(self._out, self._study.checkpoint, bad=bad)
        with tempfile.TemporaryDirectory(prefix=".rendezvous-", dir=self._folder.absolute()) as meeting:
            line = self._command(results, self._out / kept.name if kept else None, meeting)
            if kept is None:  # of other runs, which may have been on other nodes
                shutil.rmtree(self._folder / "telemetry", ignore_errors=True)
            log.info("launching: %s", " ".join(line))
            numbers_rows = self._study.metrics is not None and self._study.metrics.numbers_rows
            before = epochs_before(self._reported.epochs(), kept) if kept and numbers_rows else 0
            step = None
            if line[0] == "srun":
                per_node = self._gpus if self._study.launcher == "srun" else 1
                grace = self._study.grace_seconds
                step = rendezvous.StepEnd(Path(meeting), tasks=self._nodes * per_node, grace_seconds=grace)
            resumed = kept is not None
            with self._reported.launch(resumes=resumed):
                code, reason, error, reported = self._monitor(line, claimed, step, resumed=resumed, before=before)
            problem = rendezvous.problem(Path(meeting))
        if problem:
            raise UserError(problem)
        if reason:
            kind = ContinuedError if reason == ENDED_IN_TIME else UserError
            raise kind(f"{reason}: the same command continues from the last checkpoint")
        if code and kept and not _was_killed(code, self._reported.output):
            write_json(self._bad, [*bad, kept])
        if code:
            raise UserError(f"the script failed: {describe_program_failure(code, error)}; its output is above")
        return reported.missing, reported.counts_epochs

    @property
    def _bad(self) -> Path:
        return self._out / "bad-checkpoints.json"

    def _bad_checkpoints(self) -> list[CheckpointFile]:
        """Checkpoints that the script has failed to resume from."""
        return [CheckpointFile(*each) for each in json.loads(self._bad.read_text())] if self._bad.exists() else []

    def _command(self, results: Path, checkpoint: Path | None, meeting: str) -> list[str]:
        study = self._study
        dataset = str((results / "data" / study.dataset).absolute()) if study.dataset else ""
        own = {
            "out_dir": str(self._out),
            "resume_from": str(checkpoint or ""),
            "nodes": self._nodes,
            "gpus": self._nodes * self._gpus,
            "gpus_per_node": self._gpus,
            "cpus_per_gpu": study.cpus_per_gpu,
            "dataset": dataset,
            "seed": repeat_of(self._run) - 1,
        }
        assert study.script is not None
        command = insert_resume_option(study.script, study.resume if checkpoint else None, study.args)
        options = study.launcher_options
        if study.workdir == "trial":
            command = resolve_program_paths(command, Path.cwd())
            options = [str(Path(word).absolute()) if Path(word).is_file() else word for word in options]
        words = build_argv(command, make_values(command, study.args, own), in_shell=False)
        if words[0] in ("python", "python3"):  # the launcher runs it with the interpreter
            del words[0]
        watch_options = ["--folder", str(self._folder / "telemetry")]
        watch_options += ["--threads", str(study.cpus_per_gpu), *([] if checkpoint else ["--overwrite"])]
        given = check_allocation(self._run, self._allocation)
        nodes = list(given.nodes) if given else [host.node_name()]
        watch_options += ["--rendezvous", meeting, "--nodes", ",".join(nodes)]
        watch_options += ["--grace-seconds", f"{study.grace_seconds:g}"]
        named = find_interpreter(study)
        watch_options += ["--activate", str(named)] if named else []
        watch_options += ["--workdir", str(self._out)] if study.workdir == "trial" else []
        return script_command(
            self._run,
            words,
            launcher=study.launcher,
            launcher_options=options,
            python=str(script_interpreter(study)),
            watch_options=watch_options,
            hostfile=self._hostfile(nodes),
            cpus_per_gpu=study.cpus_per_gpu,
            job_nodes=self._allocation.nodes if self._allocation else (),
        )

    def _hostfile(self, nodes: list[str]) -> Path:
        """The nodes of the job, in the format of DeepSpeed."""
        path = (self._folder / "hostfile").absolute()
        with atomic_write(path) as file:
            file.writelines(f"{node} slots={self._gpus}\n" for node in nodes)
        return path

    def _monitor(
        self, line: list[str], claimed: Hold, step: rendezvous.StepEnd | None, *, resumed: bool, before: int
    ) -> tuple[int, str, str, MetricsCollector]:
        """Run a command, log its output and collect its metrics, whose epochs are those after the first `before` ones.

        It is ended if it is srun and does not notice the end of its `step`.

        Returns the exit code, why the command was ended, or "", the error that its output names, and the collector.
        """
        reported = MetricsCollector(self._study.metrics, self._out, resumes=resumed, hold_first_row=False)
        self._reported.add_kept(reported.new_rows())
        output = OutputReader(self._reported.output)
        try:
            process = ProcessGuard().start(
                line,
                cwd=str(Path.cwd()),
                environment=os.environ,
                grace_seconds=self._study.grace_seconds,
                on_output=output.take,
                claim=claimed,
                log=self._reported.output,
            )
        except OSError as error:
            raise start_error(line[0], error) from None
        request = stop_request_of_signals()
        signal.signal(signal.SIGINT, request.make)
        reason, overdue, code = "", None, None
        while code is None:
            if step and overdue is None and (overdue := step.overdue_code()) is not None:
                log.warning("%s", SRUN_ENDED)
                threading.Thread(target=process.end, args=(WAIT_SECONDS,), daemon=True).start()
            if not reason and (reason := self._reason_to_end(request)):
                ending = {"grace_seconds": self._study.grace_seconds, "through_srun": line[0] == "srun"}
                threading.Thread(target=_end, args=(process,), kwargs=ending, daemon=True).start()
            with suppress(queue.Empty):
                text = output.lines.get(timeout=OUTPUT_TIMEOUT_SECONDS)
                if text is None:
                    code = process.wait() if overdue is None else overdue
                else:
                    log.info("%s", text)
                    reported.add_line(text)
            for row in reported.new_rows(final=code is not None, torn=bool(code)):
                self._reported.add(shift_epoch(row, before))
            if warning := reported.take_warning():
                log.warning("%s", warning)
        return code, reason, output.error(), reported

    def _reason_to_end(self, request: StopRequest) -> str:
        """Why the script must end now; "" if it need not."""
        if request.is_made:
            return "the script was ended by a signal"
        end = self._allocation.deadline - self._study.grace_seconds if self._allocation else math.inf
        if self._study.checkpoint is not None and time.time() > end:  # without one, an earlier end saves nothing
            return ENDED_IN_TIME
        return ""

    def _write(self, run: ScriptRun, reported_rows: Sequence[Mapping[str, Any]], *, spec_digest: str) -> None:
        """Write `history.csv` and `summary.json`; metrics that were not reported are empty."""
        from trainyard.training.telemetry import gpu_memory, telemetry_summary
        from trainyard.utils.csv_files import write_rows  # imports pandas, which takes a second

        seconds = run.train_seconds
        rows = [
            {**row, "seconds": row.get("seconds", took)}
            for row, took in zip(reported_rows, run.row_seconds, strict=True)
        ]
        reported = {name: [row[name] for row in rows if row.get(name) is not None] for name in (*LAST_VALUES, *MEDIANS)}
        if not reported["images_per_second"]:
            without = "computed from the training time" if self._study.mode == "strong" else "unknown (`mode: weak`)"
            log.warning("the script reports no `images_per_second`: the speedup is %s", without)
        write_rows(rows or [{"epoch": 1, "seconds": seconds}], self._folder / "history.csv")
        summary = {
            "scale": self._run.partition("/")[0],
            "repeat": repeat_of(self._run),
            "nodes": self._nodes,
            "gpus": self._nodes * self._gpus,
            "launcher": self._study.launcher,
            "epochs": len(rows),
            **_trained(rows, counts_epochs=run.counts_epochs),
            **{name: reported[name][-1] if reported[name] else None for name in LAST_VALUES},
            **{name: statistics.median(reported[name]) if reported[name] else None for name in MEDIANS},
            **{name: getattr(run, name) for name in RUN_FIELDS},
            "spec_digest": spec_digest,
        }
        memory = gpu_memory(self._folder / "telemetry")
        write_json(self._folder / "summary.json", summary | telemetry_summary(self._folder / "telemetry", memory))
        log.info("the script ran %.1f s and reported %s of metrics", seconds, count_of(len(rows), "row"))


def _trained(rows: Sequence[Mapping[str, Any]], *, counts_epochs: bool) -> dict[str, float | None]:
    """How much a script has trained, by its own count: None where unknown.

    The numbers of a script that resumed by itself start late. Rows are thinned, so they are not counted; the first and
    the last one are always there.
    """
    found: dict[str, float | None] = dict.fromkeys(("trained_epochs", *_COUNTERS))
    if rows and counts_epochs:
        found["trained_epochs"] = rows[-1]["epoch"] - rows[0]["epoch"] + 1
    for column, names in _COUNTERS.items():
        counts = [row[name] for row in rows for name in names if row.get(name) is not None]
        if len(counts) == len(rows) > 1 and all(earlier < later for earlier, later in pairwise(counts)):
            found[column] = counts[-1] - counts[0]
    return found


def _was_killed(code: int, output: Path) -> bool:
    """Whether SIGKILL ended the launcher or a rank, as when memory ran out: no checkpoint is to blame.

    torchrun, which accelerate uses, too, ends with exit code 1 then, and reports the signal at the end of its output.
    Other signals do not count: after an error of one rank, srun ends the others by SIGTERM, and exits with 143.
    """
    report = b""
    with suppress(OSError), open(output, "rb") as file:  # after an error, as on a full disk, it is not there
        file.seek(max(0, output.stat().st_size - REPORT_BYTES))
        report = file.read()
    codes = {code, *(-int(number) for number in _KILLED_RANK.findall(report))}
    return not codes.isdisjoint({-signal.SIGKILL, 128 + signal.SIGKILL})


def _end(process: GuardedProcess, *, grace_seconds: float, through_srun: bool) -> None:
    """End a process, with its grace period. srun kills its tasks at SIGTERM, but forwards SIGUSR1 to `watch`."""
    if through_srun:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGUSR1)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_seconds)
            return
        grace_seconds = 0.0
    process.end(grace_seconds)
