"""Run the pending trials of a sweep on the slots of this job, and record them in its journal.

If it is killed, the same command continues: finished trials are kept, and trials with checkpoints resume.
"""

import argparse
import logging

from trainyard.cli import command_line
from trainyard.config.load import read_config
from trainyard.packing.completeness import check_sweep, summarize_sweep
from trainyard.packing.driver import run_sweep
from trainyard.results.best_config import write_best
from trainyard.results.ranking import describe_ranking, rank_sweep

log = logging.getLogger("sweep")


def main(arguments: argparse.Namespace) -> None:
    """Run the pending trials, then write the best configuration and the tables."""
    config = read_config(arguments.config)
    command_line.check_name(config, "sweeps", arguments.sweep)
    plan = run_sweep(config, arguments.sweep, arguments.results, wait_seconds=arguments.wait_seconds)
    ranking = rank_sweep(plan.state)
    best = write_best(config, plan.state, ranking)
    check_sweep(plan.state)
    from trainyard.report.sweep_tables import write_sweep_tables  # pandas takes a second to import

    write_sweep_tables(plan.state, arguments.results / "sweeps" / arguments.sweep)
    config_line = [f"the best as a config: {best}"] * (ranking.best_trial is not None)
    for line in (summarize_sweep(plan.state), *describe_ranking(ranking), *config_line):
        log.info("%s", line)


if __name__ == "__main__":
    example = "--config config/config.yaml --sweep depth"
    parser = command_line.build_parser("Run the pending trials of a sweep.", example=example)
    parser.add_argument("--sweep", required=True, metavar="NAME", help="name in `sweeps` of the config")
    parser.add_argument(
        "--wait-seconds",
        type=float,
        default=0.0,
        metavar="S",
        help="maximum wait if another process runs the sweep (default: 0)",
    )
    command_line.run_program(main, parser.parse_args(), stops_at_signals=True)
