"""Check a config, its data and your own code before a job is queued: one line per check.

It reads the config, looks for the files that it names, imports your code, builds every model without memory for its
parameters, and computes own losses and metrics on a batch of zeros. What only staged data or a run can tell is listed,
too. The exit code is 1 if a check fails, otherwise 0.
"""

import argparse
from itertools import chain

from trainyard.checks.config_checks import check_use
from trainyard.checks.findings import Finding, log_console, print_findings
from trainyard.cli import command_line
from trainyard.config.load import read_config

NAME_WIDTH = 34


def main(arguments: argparse.Namespace) -> int:
    """Show each finding as soon as it is known."""
    config = read_config(arguments.config)
    counts = {name: len(getattr(config, name)) for name in ("datasets", "sweeps", "scaling", "trees")}
    contents = ", ".join(f"{name}: {count}" for name, count in counts.items() if count)
    first = Finding("config", "ok", f"{arguments.config} is valid; {contents}")
    found = chain([first], check_use(config, arguments.results, anew=not arguments.quiet))
    return print_findings(found, log_console(), name_width=NAME_WIDTH, notes=True, quiet=arguments.quiet)


if __name__ == "__main__":
    parser = command_line.build_parser(str(__doc__), example="--config config/config.yaml")
    parser.add_argument("--quiet", action="store_true", help="show only what fails; trust what passed before")
    command_line.run_program(main, parser.parse_args())
