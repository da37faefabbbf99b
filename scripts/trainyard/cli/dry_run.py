"""What a dry run prints: a table of what is missing and what it will cost, the first commands, and remarks.

With `--verbose`, it also prints all that jobs request, and what other strategies would. Snakemake itself lists every
job with its reason, also those that draw plots. It does so with `-p`, `--debug-dag` or `--quiet`, and in a workflow
that imports this one.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, Final

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake_interface_logger_plugins.common import LogEvent

from trainyard.cli.job_resources import JOB_RULES, SWEEP_RULES
from trainyard.cli.json_output import print_error, print_json
from trainyard.cli.workflow import REQUESTS, Workflow
from trainyard.cluster.gpus import has_gpu
from trainyard.planning.job_costs import PlannedJob
from trainyard.results.best_config import list_commands
from trainyard.utils.errors import UserError
from trainyard.utils.text import count_of
from trainyard.utils.typed_commands import AS_JSON

# The rules of what users have configured, in the order of their lines, and the name of a job in the table.
LINES: Final = {
    "download": "",
    "weights": "",
    "stage": "stage {name}",
    "sweep": "sweep {name}",
    "sweep_job": "sweep {name}",
    "train": "train {name} {scale}",
}
REFUSED: Final = list[str]()  # what Slurm would refuse of the plan that was printed


def show_plan(snakemake: Any, project: Workflow) -> None:
    """Have a dry run of a `snakemake.workflow.Workflow` print the plan."""
    settings = snakemake.output_settings
    if AS_JSON not in os.environ and (settings.printshellcmds or settings.debug_dag or settings.quiet):
        return
    for handler in logging.getLogger("snakemake.logging").handlers:
        if handler.name == "DefaultStreamHandler" and isinstance(handler, logging.StreamHandler):
            handler.addFilter(_Plan(handler.stream, snakemake, project))


class _Plan(logging.Filter):
    """Holds back what Snakemake prints, except for warnings, and prints the plan in its place."""

    def __init__(self, stream: Any, snakemake: Any, project: Workflow) -> None:
        super().__init__()
        self._stream = stream
        self._snakemake = snakemake
        self._project = project
        self._jobs: list[Any] = []  # records of jobs
        self._has_failed = False

    def filter(self, record: Any) -> bool:
        """Whether Snakemake prints a record."""
        event = getattr(record, "event", None)
        as_json = AS_JSON in os.environ
        is_at_rest = record.getMessage() == NOTHING_TO_BE_DONE_MSG
        if event == LogEvent.JOB_INFO:
            self._jobs.append(record)
        elif as_json and (is_at_rest or (event == LogEvent.RUN_INFO and self._jobs)):
            self._print_json()
        elif event == LogEvent.RUN_INFO and self._jobs:  # the numbers of jobs, after all of them
            print(*self._parts(), sep="\n", file=self._stream, flush=True)
            self._jobs = []
        if as_json:
            if record.levelno >= logging.ERROR and not self._has_failed:
                print_error(UserError(record.getMessage()))
                self._has_failed = True
            return False
        return bool(record.levelno >= logging.WARNING or is_at_rest)

    def _print_json(self) -> None:
        shown = self._shown()
        rows = [asdict(row) for row in self._rows(shown)]
        sentences = [job.rule_msg for job in shown]
        print_json(jobs=rows, sentences=sentences, commands=self._commands(shown), refusals=self._refusals())
        self._jobs = []

    def _shown(self) -> list[Any]:
        """The records of the jobs that have a line. The jobs of a sweep with several are alike."""
        shown = [job for job in self._jobs if job.rule_name in LINES and job.wildcards.get("job", "0") == "0"]
        return sorted(shown, key=lambda job: (list(LINES).index(job.rule_name), job.jobid))

    def _rows(self, shown: Sequence[Any]) -> list[PlannedJob]:
        """The jobs that are submitted; with `--verbose`, also other strategies for the trials of a sweep."""
        names = {LINES[job.rule_name].format_map(job.wildcards) for job in shown}
        shows_all = self._snakemake.output_settings.verbose
        rows = [row for row in self._project.planned_jobs() if row.job in names]
        return [row for row in rows if row.is_submitted or shows_all]

    def _commands(self, shown: Sequence[Any]) -> dict[str, str]:
        """The first command that would run, by sweep."""
        by_name = dict[str, str]()
        for name in [job.wildcards["name"] for job in shown if LINES[job.rule_name].startswith("sweep")]:
            plan = self._project.sweep.plan(name)
            trial = next((each for each in plan.forecast.pending if each in plan.state.trials), None)
            with suppress(UserError):  # a false value that the program may not take: the check names it
                if trial and (commands := list_commands(plan.state, trial)):
                    by_name[name] = commands[-1]
        return by_name

    def _refusals(self) -> list[str]:
        """What Slurm would refuse, for which `trainyard plan` exits with 1."""
        jobs = self._snakemake.dag.needrun_jobs(exclude_finished=False)
        submitted = [job for job in jobs if job.rule.name in (*JOB_RULES, *SWEEP_RULES)]
        by_name = {LINES[job.rule.name].format_map(job.wildcards_dict): job for job in submitted}
        REFUSED[:] = map(str, self._project.list_refusals(by_name))
        return REFUSED

    def _parts(self) -> list[str]:
        """The table, a line for each sweep with its first command, and what to know before the jobs are submitted."""
        shown = self._shown()
        parts = list[str]()
        remarks = dict[str, list[str]]()
        rows = self._rows(shown)
        commands = self._commands(shown)
        if rows:
            from trainyard.cli.plan_table import draw_plan  # imports rich, which takes a tenth of a second

            parts.append(draw_plan(rows, on_cpus=all(row.walltime_minutes is None for row in rows) and not has_gpu()))
        planned = {row.job for row in rows}
        jobs = {"stage": self._project.stage, "train": self._project.train}
        for job in shown:
            name = LINES[job.rule_name].format_map(job.wildcards)
            study = job.wildcards.get("name", "")
            if name not in planned:
                parts.append(job.rule_msg.partition(REQUESTS)[0])
                continue
            if name.startswith("sweep"):
                parts.append(self._project.sweep.brief(study))
                searches = self._project.sweep.plan(study).state.sweep.search is not None  # it draws when it runs
                order = "first, for example" if searches else "first"
                parts += [f"  {order}: {command}" for command in [commands.get(study)] if command]
            of_job = jobs.get(job.rule_name, self._project.sweep).remarks(SimpleNamespace(**job.wildcards))
            if of_job:
                remarks.setdefault(of_job.removeprefix("; "), []).append(name)
        parts += [f"{', '.join(names)}: {remark}" for remark, names in remarks.items()]
        parts += self._refusals()
        others = sum(job.rule_name not in LINES for job in self._jobs)
        if self._snakemake.output_settings.verbose:
            parts += [job.rule_msg for job in shown]
        if others and (self._snakemake.output_settings.verbose or not parts):
            parts.append(f"{count_of(others, 'step')} here for tables, plots and the report; `-np` lists every job")
        return parts
