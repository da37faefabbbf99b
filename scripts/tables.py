"""Write the derived tables of one study."""

import argparse
import logging

import trainyard.utils.quick_imports  # noqa: F401
from trainyard.cli import command_line
from trainyard.planning.added_trials import read_current_config
from trainyard.planning.receipts import TABLES, made_for, table_terms
from trainyard.report.study_tables import write_tables

log = logging.getLogger("tables")


def main(arguments: argparse.Namespace) -> None:
    """Write the tables."""
    config = read_current_config(arguments.config, arguments.results, study=arguments.name)
    command_line.check_name(config, arguments.kind, arguments.name)
    folder = arguments.results / arguments.kind / arguments.name
    terms = table_terms(config, arguments.kind, arguments.name)
    with command_line.results_expected(arguments), made_for(folder / TABLES[arguments.kind], terms):
        write_tables(config, arguments.kind, arguments.name, arguments.results)
    log.info("tables: %s", folder)


if __name__ == "__main__":
    example = "--config config/config.yaml --kind scaling --name width"
    parser = command_line.build_parser("Write the tables of a study.", example=example)
    parser.add_argument("--kind", required=True, choices=["sweeps", "scaling"], help="section of the config")
    parser.add_argument("--name", required=True, metavar="NAME", help="name of the study in that section")
    command_line.run_program(main, parser.parse_args())
