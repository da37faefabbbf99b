"""Check a Slurm site before anything is submitted.

It reads the config and the profile as Snakemake does, and checks that
  - the files and the code that the config names are right, as `check.py` does;
  - every job of the config would reach sbatch, and Slurm would accept it;
  - accounts, partitions, walltimes, and the limits of QOS and accounts allow these jobs;
  - there is space for the results and in the home folder, also within quotas.
With --job, it submits a job of about a minute, like the largest of the config but on at most two nodes, and checks on
them: shared files and locks, temporary files, CPUs, Python, every GPU, the meeting of two nodes, and Ray.

Each check is ok, a warning, a failure with a remedy, or unknown. The exit code is 1 if one fails, otherwise 0.
"""

import argparse
from collections.abc import Iterator
from functools import partial

from rich.console import Console
from rich.markup import escape
from trainyard.checks import node_checks
from trainyard.checks.findings import Finding, catch_errors, log_console, print_findings
from trainyard.checks.site_checks import Site, check_site
from trainyard.cli import command_line
from trainyard.cli.paths import find_profile
from trainyard.config.load import read_config
from trainyard.utils.typed_commands import trainyard_call

NAME_WIDTH = 22
NO_JOB = "Python, torch, CUDA and the network can only be checked by a job"


def main(arguments: argparse.Namespace) -> int:
    """Run the checks, and show each finding as soon as it is known."""
    console = log_console()
    return print_findings(_findings(arguments, console), console, name_width=NAME_WIDTH)


def _findings(arguments: argparse.Namespace, console: Console) -> Iterator[Finding]:
    site = Site(read_config(arguments.config), arguments.config, find_profile(arguments.profile), arguments.results)
    findings = []
    for finding in check_site(site):
        findings.append(finding)
        yield finding
    if not arguments.job:
        call = trainyard_call("doctor", "--config", str(arguments.config), "--job")
        yield Finding("node", "unknown", NO_JOB, f"`{call}` submits a job of about a minute")
    elif any(finding.verdict == "fails" or finding.name == "jobs" for finding in findings) or not site.requests:
        yield Finding("node", "unknown", "no job was submitted because a check failed", "fix the failures above first")
    else:
        probe = partial(
            node_checks.probe_nodes,
            site.requests,
            arguments.results,
            wait_minutes=arguments.wait_minutes,
            notify=lambda message: console.print(f"[dim]{escape(message)}[/]"),
        )
        yield from catch_errors("node", probe)


if __name__ == "__main__":
    example = "--config config/config.yaml --profile profiles/slurm --job"
    parser = command_line.build_parser(str(__doc__), example=example)
    parser.add_argument(
        "--profile",
        default="slurm",
        metavar="DIR",
        help="the Snakemake profile (default: profiles/slurm)",
    )
    parser.add_argument("--job", action="store_true", help="also submit a job of about a minute that checks nodes")
    parser.add_argument(
        "--wait-minutes", type=float, default=10, metavar="M", help="minutes to wait for this job (default: 10)"
    )
    command_line.run_program(main, parser.parse_args())
