"""Write the sbatch lines of all jobs of a config, as Snakemake's Slurm plugin writes them, and run none of them.

A dry run asks which of them sbatch would refuse. As a program, it is a helper of the doctor: the request is a list of
Snakemake's options, the answer has an entry for each job: `{"job": "train x_4x2", "dataset": "mine", "line":
"sbatch ..."}`, or `error` in place of `line`.
"""

import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from snakemake import cli
from snakemake_executor_plugin_slurm import ExecutorSettings
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import get_job_wildcards, set_gres_string
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from trainyard.checks.findings import Finding
from trainyard.checks.helper_programs import answer_request
from trainyard.checks.sbatch_requests import ask_sbatch
from trainyard.checks.site_checks import check_request
from trainyard.cli.slurm_executor import SlurmExecutor, comment_of
from trainyard.cluster.slurm_queries import list_partitions
from trainyard.utils.errors import UserError


class _WrittenError(BaseException):
    """All lines are written: Snakemake ends before it runs a job."""


def write_line(job: Any, params: dict[str, Any], settings: Any, excluded_nodes: Collection[str] = ()) -> str:
    """The sbatch line of a job up to its script, as the plugin's `run_job` writes it."""
    validate_slurm_extra(job)
    line = get_submit_command(job, {"comment_str": comment_of(job), **params}, settings, excluded_nodes)
    return f"{line}{set_gres_string(job)}"


def find_refusals(jobs: Mapping[str, Any]) -> Iterator[Finding]:
    """What sbatch would refuse of jobs of Snakemake, by their names, and what the partitions have instead.

    Nothing away from a cluster. A dry run has no settings of the plugin, so it does not know a file of partitions.
    """
    try:
        partitions = list_partitions()
    except UserError:
        return
    tested = set[str]()
    for name, job in jobs.items():
        account, partition = (job.resources.get(f"slurm_{key}") for key in ("account", "partition"))
        params = {
            "run_uuid": "plan",
            "slurm_logfile": os.devnull,
            "comment_str": "plan",
            "account": f"-A {shlex.quote(str(account))}" if account else "",
            "partition": f"-p {shlex.quote(str(partition))}" if partition else "",
            "workdir": Path.cwd(),
        }
        line = write_line(job, params, ExecutorSettings())
        if line in tested:
            continue
        tested.add(line)
        request = ask_sbatch(name if partition else f"{name}, in the default partition", line)
        finding = check_request(request, partitions)
        if not request.accepted and finding.verdict == "fails":
            yield finding


class LineWriter(SlurmExecutor):
    """The executor of Snakemake that only writes lines, of jobs that are done as well."""

    written: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, workflow: Any, logger: Any) -> None:
        super().__init__(workflow, logger)
        jobs = [job for job in workflow.dag.needrun_jobs() if not job.is_local]
        # The jobs of a sweep with several are alike.
        self.written.extend(self._entry(job) for job in jobs if job.wildcards.get("job", "0") == "0")
        raise _WrittenError

    def _entry(self, job: Any) -> dict[str, Any]:
        name = get_job_wildcards(job)
        receipts = [Path(each) for each in job.input if Path(each).name == "meta.json"]
        entry = {"job": f"{job.name} {name}", "dataset": receipts[0].parent.name if receipts else None}
        try:
            params = {
                "run_uuid": self.run_uuid,
                "slurm_logfile": self.slurm_logdir / "%j.log",
                "account": next(self.get_account_arg(job)),
                "partition": self.get_partition_arg(job),
                "workdir": self.workflow.workdir_init,
            }
            return entry | {"line": write_line(job, params, self.workflow.executor_settings, self._excluded_nodes())}
        except Exception as error:  # the plugin refuses the job
            return entry | {"error": str(error)}


def write_lines(options: list[str]) -> list[dict[str, Any]]:
    """The entries of all jobs; this process ends if Snakemake fails, which then prints why."""
    try:
        parser, arguments = cli.parse_args(["--forceall", "--nolock", *options])
        if arguments.executor != "slurm":
            raise SystemExit(f"the executor is {arguments.executor or 'local'}: set `executor: slurm` in the profile")
        plugin = ExecutorPluginRegistry().get_plugin("slurm")
        # As in a dry run, Snakemake neither makes environments nor removes outputs.
        plugin.common_settings = replace(plugin.common_settings, dryrun_exec=True)
        plugin.executor = LineWriter
        cli.args_to_api(arguments, parser)
    except _WrittenError:
        return LineWriter.written
    except Exception as error:
        cli.print_exception(error)
    raise SystemExit(1)


if __name__ == "__main__":
    answer_request(write_lines)
