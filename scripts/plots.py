"""Draw the plots of one dataset or study from its tables, as SVG and PNG, and write the page of a study."""

import argparse
import logging

from trainyard.cli import command_line
from trainyard.planning.added_trials import read_current_config
from trainyard.report.study_pages import write_study_page
from trainyard.report.study_plots import draw_plots

log = logging.getLogger("plots")


def main(arguments: argparse.Namespace) -> None:
    """Draw all plots of this kind of study, and write its page."""
    config = read_current_config(arguments.config, arguments.results, study=arguments.name)
    command_line.check_name(config, "datasets" if arguments.kind == "data" else arguments.kind, arguments.name)
    with command_line.results_expected(arguments):
        folder = draw_plots(config, arguments.kind, arguments.name, arguments.results)
        log.info("plots of %s %s: %s", arguments.kind, arguments.name, folder)
        if arguments.kind != "data":
            page = write_study_page(config, arguments.kind, arguments.name, arguments.results)
            log.info("its page: %s", page)


if __name__ == "__main__":
    example = "--config config/config.yaml --kind sweeps --name depth"
    parser = command_line.build_parser("Draw the plots of a dataset or study.", example=example)
    parser.add_argument("--kind", required=True, choices=["data", "sweeps", "scaling"], help="kind of study")
    parser.add_argument("--name", required=True, metavar="NAME", help="name of the dataset or study in the config")
    command_line.run_program(main, parser.parse_args())
