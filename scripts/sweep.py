"""Run the pending trials of a sweep on the slots of this job, and record them in its journal.

If it is killed, the same command continues: finished trials are kept, and trials with checkpoints resume.

A sweep with several jobs (`slots: {jobs: 8}`) runs it with `--order-job` in each of them, and once more with `--tables`
after they have ended.
"""

import argparse
import logging
from functools import partial

import trainyard.utils.quick_imports  # noqa: F401
from trainyard.cli import command_line
from trainyard.cluster.ray.worker_parent import fork_parent
from trainyard.config.load import read_config
from trainyard.planning.added_trials import read_current_config
from trainyard.planning.job_marks import remove_done_marks
from trainyard.planning.receipts import made_for
from trainyard.results.answer import answer_sweep
from trainyard.results.best_config import write_best
from trainyard.results.completeness import check_sweep, summarize_sweep
from trainyard.results.provenance import describe_mismatch
from trainyard.results.retention import reduce_folders, reduced_folders
from trainyard.utils.errors import UserError

log = logging.getLogger("sweep")


def main(arguments: argparse.Namespace) -> None:
    """Run the pending trials, then write the best configuration and the tables; a job of several writes none."""
    name = arguments.sweep
    results = arguments.results
    read = partial(read_current_config, results=results, study=name) if arguments.tables else read_config
    config = read(arguments.config)
    command_line.check_name(config, "sweeps", name)
    # The modules that are imported here import numpy, which reads its number of threads then: in workers, that of a
    # trial.
    if arguments.tables:
        from trainyard.planning.plan import plan_sweep

        plan = plan_sweep(config, name, results)
    else:
        from trainyard.packing.driver import run_sweep

        plan = run_sweep(config, name, results, order_job=arguments.order_job)
    if arguments.order_job is not None:
        log.info("%s", summarize_sweep(plan.state))
        return
    answer = answer_sweep(plan.state)
    best = write_best(config, plan.state, answer)
    try:
        check_sweep(plan.state)
    except UserError:
        remove_done_marks(plan.state.folder)  # otherwise the same command would only end here again
        raise
    from trainyard.results.sweep_tables import write_sweep_tables  # pandas takes a second to import

    with made_for(plan.state.folder / "trials.csv", plan.state.space.digest):
        write_sweep_tables(plan.state, answer.ranking, plan.state.folder)
    for folders in reduced_folders(plan.state, plan.state.sweep.kept_files).values():
        reduce_folders(folders)
    config_line = f"the best as a config: {best}" if answer.ranking.best_trial else ""
    lines = [summarize_sweep(plan.state), *answer.lines, describe_mismatch(plan.state), config_line]
    for line in filter(None, lines):
        log.info("%s", line)


if __name__ == "__main__":
    example = "--config config/config.yaml --sweep depth"
    parser = command_line.build_parser("Run the pending trials of a sweep.", example=example)
    parser.add_argument("--sweep", required=True, metavar="NAME", help="name in `sweeps` of the config")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--order-job", type=int, metavar="I",
                      help="run trials as job I (from 0) of several that share the sweep; write no tables")  # fmt: skip
    part.add_argument("--tables", action="store_true", help="run nothing: write the tables of what the jobs have run")
    arguments = parser.parse_args()
    if not arguments.tables:
        fork_parent()  # before there are threads and handlers
    command_line.run_program(main, arguments)
