"""Fit the tree models of a study on the CPUs of this job, and write their table."""

import argparse
import logging
from pathlib import Path

import pandas as pd
from trainyard.cli import command_line
from trainyard.cluster import slurm_allocation, slurm_queries
from trainyard.cluster.job_memory import record_memory
from trainyard.config.load import config_copy, read_config
from trainyard.data.staged import Staged
from trainyard.planning.receipts import fitting_terms, made_for
from trainyard.programs.user_environment import code_record
from trainyard.results.provenance import describe_difference, read_sessions
from trainyard.trees import boosting
from trainyard.utils.csv_files import write_rows, write_table
from trainyard.utils.locks import hold
from trainyard.utils.text import count_of

log = logging.getLogger("trees")


def main(arguments: argparse.Namespace) -> None:
    """Fit every model of the study that is not fitted yet."""
    config = read_config(arguments.config)
    command_line.check_name(config, "trees", arguments.study)
    study = config.trees[arguments.study]
    folder = arguments.results / "trees" / arguments.study
    staged = Staged(arguments.results / "data" / study.dataset)
    threads = slurm_allocation.available_cpus()
    session = code_record(study, config=config_copy(config, arguments.results).stem)
    lock = hold(folder / ".lock", is_given_up=slurm_queries.is_given_up, notify=log.info)
    with lock, record_memory(folder, processes=1):
        rows = []
        for name in study.models:
            log.info("%s on %s", name, staged.meta)
            row = boosting.fit(study, name, staged, folder / "models", threads=threads, session=session)
            scores = f"{row['metric']} {row['train']:.4f} (train), {row['val']:.4f} (val)"
            rounds, on = count_of(row["rounds"], "round"), count_of(row["threads"], "thread")
            log.info("%s: %s; %s on %s, %.1f s", name, scores, rounds, on, row["seconds"])
            rows.append(row)
        shares = boosting.importances(folder / "models", study.models)
        with made_for(folder / "trees.csv", fitting_terms(study)):
            write_table(pd.DataFrame(shares, columns=["model", "feature", "importance"]), folder / "importances.csv")
            write_rows(rows, folder / "trees.csv")
    receipts: dict[str, list[Path]] = {name: [folder / "models" / f"{name}.json"] for name in study.models}
    if mismatch := describe_difference("models were fitted", read_sessions(receipts)):
        log.info("%s", mismatch)


if __name__ == "__main__":
    example = "--config config/config.yaml --study digits"
    parser = command_line.build_parser("Fit the tree models of a study.", example=example)
    parser.add_argument("--study", required=True, metavar="NAME", help="name in `trees` of the config")
    command_line.run_program(main, parser.parse_args())
