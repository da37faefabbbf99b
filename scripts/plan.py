"""Print the resources and cost of all pending work, before anything is submitted; write plan.csv and plots.

Below each sweep, the table shows the same trials as separate jobs and as a job array. On Slurm, a second table
(queue.csv) shows the trials in jobs of several shapes, as the queue is now.
"""

import argparse
import logging
import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from rich.console import Console
from trainyard.cli import command_line
from trainyard.cluster.gpus import has_gpu
from trainyard.cluster.slurm_queries import count_idle_gpus
from trainyard.config.config import Config
from trainyard.config.load import read_config
from trainyard.data.staged import Staged
from trainyard.planning import job_costs, trial_flops
from trainyard.planning.journal import FlopsCounted, Journal
from trainyard.planning.plan import Plan, plan_sweep
from trainyard.planning.queue_forecast import Queue, QueuedJobs, forecast_shapes
from trainyard.report.plan_table import plan_table, queue_table
from trainyard.report.study_plots import draw_plan
from trainyard.utils.csv_files import write_table
from trainyard.utils.errors import UserError

log = logging.getLogger("plan")


def main(arguments: argparse.Namespace) -> None:
    """Plan all pending work."""
    config, results = read_config(arguments.config), arguments.results
    for name in config.sweeps:
        _count_flops(config, name, results)
    limits = {f"limit_{what}": getattr(arguments, f"limit_{what}") for what in ("minutes", "gpus", "jobs")}
    queue = Queue(arguments.partition, arguments.gpu_type, tuple(shlex.split(arguments.sbatch)))
    gpu_models = queue.gpu_models if arguments.runtime_minutes is not None else lambda gpus: ()
    set_minutes = dict(arguments.set_minutes)
    limits["fixed_minutes"] = set_minutes.get("sweep")
    planned = {
        name: plan_sweep(config, name, results, **limits, gpu_models=gpu_models(sweep.slots.gpus_per_node))
        for name, sweep in config.sweeps.items()
    }
    minutes = {"runtime_minutes": arguments.runtime_minutes, "set_minutes": set_minutes}
    found = list(job_costs.plan_jobs(config, results, planned.__getitem__, **minutes))
    if not found:
        log.info("nothing is pending: no resources are needed")
        return
    table = results / "plan" / "plan.csv"
    write_table(pd.DataFrame([asdict(row) for row in found]), table)
    plans = [plan for plan in planned.values() if plan.forecast.pending]
    for plan in plans:
        draw_plan(plan, results)
    console = Console(width=None if Console().is_terminal else 160)
    console.print(plan_table(found, on_cpus=arguments.runtime_minutes is None and not has_gpu()))
    if plans and arguments.runtime_minutes is not None:
        _compare_shapes(plans, queue, config, results, console)
    log.info("plan: %s, with a plot for each sweep", table)


def _compare_shapes(plans: Sequence[Plan], queue: Queue, config: Config, results: Path, console: Console) -> None:
    """Print what Slurm's queue would make of sweeps in jobs of several shapes, and write queue.csv."""
    found = list[QueuedJobs]()
    try:
        for plan in plans:
            found += forecast_shapes(plan, queue, config, results)
        idle = count_idle_gpus(queue.partitions, queue.gpu_type)
    except UserError as error:  # a profile for Slurm, away from the cluster
        log.info("shapes of jobs are not compared: %s", error)
        return
    write_table(pd.DataFrame([asdict(each) for each in found]), results / "plan" / "queue.csv")
    console.print(queue_table(found, idle_gpus=idle))


def _count_flops(config: Config, name: str, results: Path) -> None:
    """Count the FLOPs of each trial if nothing else determines the order of trials and the dataset is staged."""
    plan = plan_sweep(config, name, results)
    staged = Staged(results / "data" / str(plan.state.sweep.dataset))
    if not trial_flops.is_needed(plan) or not (staged.folder / "meta.json").exists():
        return
    try:
        with Journal.of_new_session(results / "sweeps" / name) as journal:
            if flops := trial_flops.count_trial_flops(plan, staged):
                journal.record(FlopsCounted(flops=flops))
    except UserError as error:  # a model fails
        log.info("sweep %s: FLOPs are not counted: %s", name, error)


def _minutes_of_rule(text: str) -> tuple[str, float]:
    rule, _, minutes = text.partition("=")
    return rule, float(minutes)


if __name__ == "__main__":
    parser = command_line.build_parser(__doc__.split("\n")[0], example="--config config/config.yaml")
    parser.add_argument("--runtime-minutes", type=float, metavar="MIN",
                        help="default walltime of jobs (default: none, as without a scheduler)")  # fmt: skip
    parser.add_argument("--set-minutes", type=_minutes_of_rule, metavar="RULE=MIN", action="append", default=[],
                        help="walltime of the jobs of a rule, in place of what they would request")  # fmt: skip
    parser.add_argument("--limit-minutes", type=float, metavar="MIN", default=math.inf,
                        help="longest walltime that a job can request (default: no limit)")  # fmt: skip
    parser.add_argument("--limit-gpus", type=float, metavar="N", default=math.inf,
                        help="most GPUs that a job can request (default: no limit)")  # fmt: skip
    parser.add_argument("--limit-jobs", type=float, metavar="N", default=math.inf,
                        help="most jobs that `jobs: auto` can request (default: no limit)")  # fmt: skip
    parser.add_argument("--partition", default="", metavar="NAME",
                        help="partition of Slurm in which sweeps run, or several (default: Slurm's)")  # fmt: skip
    parser.add_argument("--gpu-type", default="", metavar="TYPE", help="type of their GPUs (default: any)")
    parser.add_argument("--sbatch", default="", metavar="OPTIONS", help="further options of sbatch for their jobs")
    command_line.run_program(main, parser.parse_args())
