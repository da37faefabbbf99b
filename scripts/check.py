"""Check a config, its data and your own code before a job is queued: one line per check.

It reads the config, looks for the files that it names, imports your code, builds every model without memory for its
parameters, and computes own losses and metrics on a batch of zeros. What only staged data or a run can tell is listed,
too. The exit code is 1 if a check fails, otherwise 0.
"""

import argparse
from collections.abc import Sized
from pathlib import Path

from rich.console import Console
from rich.table import Table
from trainyard.checks.config_checks import check_use
from trainyard.checks.finding_lines import finding_line, log_console
from trainyard.checks.findings import Finding
from trainyard.cli import command_line
from trainyard.config.config import Config
from trainyard.config.load import read_config

NAME_WIDTH = 34


def main(arguments: argparse.Namespace) -> int:
    """Show each finding as soon as it is known."""
    config = read_config(arguments.config)
    console, findings, last_remedy = log_console(), [], ""
    if not arguments.quiet:
        console.print(_line(Finding("config", "ok", _contents(config, arguments.config))))
    for finding in check_use(config, arguments.results, anew=not arguments.quiet):
        findings.append(finding)
        if finding.verdict == "fails" or not arguments.quiet:
            console.print(_line(finding, last_remedy))
            last_remedy = finding.remedy
    _conclude(console, findings, quiet=arguments.quiet)
    return int(any(finding.verdict == "fails" for finding in findings))


def _contents(config: Config, path: Path) -> str:
    counts: dict[str, Sized] = {"datasets": config.datasets, "sweeps": config.sweeps, "scaling": config.scaling,
              "trees": config.trees}  # fmt: skip
    return f"{path} is valid; {', '.join(f'{name}: {len(each)}' for name, each in counts.items() if each)}"


def _line(finding: Finding, last_remedy: str = "") -> Table:
    return finding_line(finding, last_remedy=last_remedy, notes=True, name_width=NAME_WIDTH)


def _conclude(console: Console, findings: list[Finding], *, quiet: bool) -> None:
    failed, unknown = (sum(each.verdict == verdict for each in findings) for verdict in ("fails", "unknown"))
    later = f"; {unknown} cannot be known yet" if unknown else ""
    if failed:
        console.print(f"\n[bold]{failed} of these {'fails' if failed == 1 else 'fail'}[/]{later}.")
    elif not quiet:
        console.print(f"\n[bold]Nothing fails[/]{later}.")


def _arguments() -> argparse.Namespace:
    parser = command_line.build_parser(str(__doc__), example="--config config/config.yaml")
    parser.add_argument("--quiet", action="store_true", help="show only what fails; trust what passed before")
    return parser.parse_args()


if __name__ == "__main__":
    command_line.run_program(main, _arguments())
