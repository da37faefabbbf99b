"""Print the resources and cost of all pending work, before anything is submitted; write plan.csv and plots.

Below each sweep, the table shows the same trials as separate jobs and as a job array.
"""

import argparse
import logging
import math
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from rich.console import Console
from trainyard.cli import command_line
from trainyard.config.config import Config
from trainyard.config.load import read_config
from trainyard.data.staged import Staged
from trainyard.planning import job_costs, trial_flops
from trainyard.planning.journal import FlopsCounted, Journal
from trainyard.planning.plan import plan_sweep
from trainyard.report.plan_table import plan_table
from trainyard.report.study_plots import draw_plan
from trainyard.utils.csv_files import write_table
from trainyard.utils.errors import UserError

log = logging.getLogger("plan")


def main(arguments: argparse.Namespace) -> None:
    """Plan all pending work."""
    config, results = read_config(arguments.config), arguments.results
    for name in config.sweeps:
        _count_flops(config, name, results)
    limits = {"limit_minutes": arguments.limit_minutes, "limit_gpus": arguments.limit_gpus}
    minutes = {"runtime_minutes": arguments.runtime_minutes, "set_minutes": dict(arguments.set_minutes)}
    found = list(job_costs.plan_jobs(config, results, **minutes, **limits))
    if not found:
        log.info("nothing is pending: no resources are needed")
        return
    table = results / "plan" / "plan.csv"
    write_table(pd.DataFrame([asdict(row) for row in found]), table)
    for name in config.sweeps:
        draw_plan(config, name, results, **limits)
    Console(width=None if Console().is_terminal else 160).print(plan_table(found))
    log.info("plan: %s, with a plot for each sweep", table)


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
    command_line.run_program(main, parser.parse_args())
