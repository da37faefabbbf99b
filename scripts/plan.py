"""Print the resources and cost of all pending work, before anything is submitted; write plan.csv.

Below each sweep, the table shows the same trials as separate jobs and as a job array.
"""

import argparse
import logging
import math
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from trainyard.cli import command_line
from trainyard.cli.plan_table import draw_plan
from trainyard.cluster.gpus import has_gpu
from trainyard.cluster.slurm_queries import list_gpu_models, list_partitions, named_partitions
from trainyard.config.config import Config
from trainyard.config.load import read_config
from trainyard.data.staged import Staged
from trainyard.kinds import trial_flops
from trainyard.planning import job_costs
from trainyard.planning.journal import FlopsCounted, Journal
from trainyard.planning.plan import plan_sweep
from trainyard.utils.csv_files import write_table
from trainyard.utils.errors import UserError

log = logging.getLogger("plan")


def main(arguments: argparse.Namespace) -> None:
    """Plan all pending work."""
    config = read_config(arguments.config)
    results = arguments.results
    for name in config.sweeps:
        _count_flops(config, name, results)
    limits = {f"limit_{what}": getattr(arguments, f"limit_{what}") for what in ("minutes", "gpus")}
    set_minutes = dict(arguments.set_minutes)
    limits["fixed_minutes"] = set_minutes.get("sweep")
    planned = {
        name: plan_sweep(config, name, results, **limits, gpu_models=_gpu_models(arguments, sweep.slots.gpus_per_node))
        for name, sweep in config.sweeps.items()
    }
    found = list(
        job_costs.plan_jobs(
            config, results, planned.__getitem__, runtime_minutes=arguments.runtime_minutes, set_minutes=set_minutes
        )
    )
    if not found:
        log.info("nothing is pending: no resources are needed")
        return
    table = results / "plan" / "plan.csv"
    write_table(pd.DataFrame([asdict(row) for row in found]), table)
    print(draw_plan(found, on_cpus=arguments.runtime_minutes is None and not has_gpu()), end="")
    log.info("plan: %s", table)


def _gpu_models(arguments: argparse.Namespace, gpus: int) -> tuple[str, ...]:
    """The GPU models that a job with so many per node may get; empty if that is unknown."""
    if arguments.runtime_minutes is None:
        return ()
    try:
        partitions = named_partitions(list_partitions(), arguments.partition)
    except UserError:  # Slurm does not respond
        return ()
    return list_gpu_models(partitions, gpus, arguments.gpu_type)


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
    parser.add_argument("--partition", default="", metavar="NAME",
                        help="partition of Slurm in which sweeps run, or several (default: Slurm's)")  # fmt: skip
    parser.add_argument("--gpu-type", default="", metavar="TYPE", help="type of their GPUs (default: any)")
    command_line.run_program(main, parser.parse_args())
