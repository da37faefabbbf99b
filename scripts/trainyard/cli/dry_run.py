"""What a dry run prints: a table of what is missing and what it will cost, and what the jobs request.

Snakemake itself lists every job with its reason, also those that draw plots. It does so with `-p`, `--verbose`,
`--debug-dag` or `--quiet`, and in a workflow that imports this one.
"""

import logging
import re
from typing import Any, Final

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake_interface_logger_plugins.common import LogEvent

from trainyard.cli.job_resources import JOB_RULES, SWEEP_RULES
from trainyard.cli.workflow import Workflow
from trainyard.cluster.gpus import has_gpu
from trainyard.utils.text import count_of

# The rules of what users have configured, in the order of their lines, and the name of a job in the table.
LINES: Final = {
    "download": "",
    "weights": "",
    "stage": "stage {name}",
    "sweep": "sweep {name}",
    "sweep_job": "sweep {name}",
    "train": "train {name} {scale}",
}


def show_plan(snakemake: Any, project: Workflow) -> None:
    """Have a dry run of a `snakemake.workflow.Workflow` print the plan."""
    settings = snakemake.output_settings
    if settings.printshellcmds or settings.verbose or settings.debug_dag or settings.quiet:
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

    def filter(self, record: Any) -> bool:
        """Whether Snakemake prints a record."""
        event = getattr(record, "event", None)
        if event == LogEvent.JOB_INFO:
            self._jobs.append(record)
        elif event == LogEvent.RUN_INFO and self._jobs:  # the numbers of jobs, after all of them
            print(*self._parts(), sep="\n", file=self._stream, flush=True)
            self._jobs = []
        return bool(record.levelno >= logging.WARNING or record.getMessage() == NOTHING_TO_BE_DONE_MSG)

    def _parts(self) -> list[str]:
        """The table, a line for each job with more to say, and how many others there are."""
        # The jobs of a sweep with several are alike.
        shown = [job for job in self._jobs if job.rule_name in LINES and job.wildcards.get("job", "0") == "0"]
        shown.sort(key=lambda job: (list(LINES).index(job.rule_name), job.jobid))
        names = {LINES[job.rule_name].format_map(job.wildcards) for job in shown}
        rows = [row for row in self._project.planned_jobs() if row.job in names and row.is_submitted]
        table = list[str]()
        if rows:
            from trainyard.cli.plan_table import draw_plan  # imports rich, which takes a tenth of a second

            table = [draw_plan(rows, on_cpus=all(row.walltime_minutes is None for row in rows) and not has_gpu())]
        lines = [job.rule_msg for job in shown if not table or re.search("[;,]|downloading", job.rule_msg)]
        jobs = self._snakemake.dag.needrun_jobs(exclude_finished=False)
        submitted = [job for job in jobs if job.rule.name in (*JOB_RULES, *SWEEP_RULES)]
        by_name = {LINES[job.rule.name].format_map(job.wildcards_dict): job for job in submitted}
        parts = [*table, *lines, *map(str, self._project.list_refusals(by_name))]
        if others := sum(job.rule_name not in LINES for job in self._jobs):
            steps = count_of(others, "step")
            parts.append(f"then {steps} here for tables, plots and the report; `-np` lists every job")
        return parts
