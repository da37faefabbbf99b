"""Check a config, its data and your own code before a job is queued: one line per check.

It reads the config, looks for the files that it names, imports your code, builds every model without memory for its
parameters, and computes own losses and metrics on a batch of zeros. What only staged data or a run can tell is listed,
too. With --drill, it finds out whether your programs resume after an interruption; with --effect, which of the varied
keys change their results. The exit code is 1 if a check fails, otherwise 0.
"""

import argparse
from collections.abc import Iterable
from itertools import chain

from trainyard.checks.config_checks import check_use
from trainyard.checks.findings import Finding, log_console, print_findings
from trainyard.cli import command_line, json_output
from trainyard.cli.paths import find_profile
from trainyard.config.load import read_config
from trainyard.config.parser import read_file

NAME_WIDTH = 34


def main(arguments: argparse.Namespace) -> int:
    """Show each finding as soon as it is known."""
    config = read_config(arguments.config)
    counts = {name: len(getattr(config, name)) for name in ("datasets", "sweeps", "scaling")}
    contents = ", ".join(f"{name}: {count}" for name, count in counts.items() if count)
    first = Finding("config", "ok", f"{arguments.config} is valid; {contents}")
    profile = find_profile(arguments.profile)
    executor = read_file(profile / "config.yaml").get("executor", "local")
    checked: Iterable[Finding] = check_use(
        config, arguments.results, has_scheduler=executor != "local", anew=not arguments.quiet
    )
    if executor == "slurm":
        from trainyard.checks.site_checks import Site, check_submission

        checked = chain(checked, check_submission(Site(config, arguments.config, profile, arguments.results)))
    if arguments.drill is not None:
        from trainyard.checks.resume_drill import drill  # imports numpy

        checked = drill(config, arguments.results, minutes=arguments.drill)
    if arguments.effect is not None:
        from trainyard.checks.effect_check import find_effects

        checked = find_effects(config, arguments.results, seconds=arguments.effect)
    checked = chain([first], checked)
    if arguments.json:
        findings = json_output.findings_as_json(checked)
        json_output.print_json(**findings)
        return int(findings["fails"])
    return print_findings(checked, log_console(), name_width=NAME_WIDTH, notes=True, quiet=arguments.quiet)


if __name__ == "__main__":
    parser = command_line.build_parser(str(__doc__), example="--config config/config.yaml")
    parser.add_argument("--quiet", action="store_true", help="show only what fails; trust what passed before")
    parser.add_argument("--profile", default="local", metavar="NAME",
                        help="profile of the run (default: local): nodes of a cluster may have further "
                        "files, and sbatch is asked whether it accepts the jobs")  # fmt: skip
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--drill", type=float, metavar="MIN", nargs="?", const=5.0,
                         help="instead, interrupt and continue a trial of each sweep of your own programs, and "
                         "compare its metrics with those of an undisturbed run; each run takes at most MIN minutes "
                         "(default: 5)")  # fmt: skip
    instead.add_argument("--effect", type=float, metavar="SECONDS", nargs="?", const=10.0,
                         help="instead, run each sweep with two values of each varied key, for SECONDS each (default: "
                         "10; up to six times that until there are four rows of metrics), and compare what the "
                         "program reports or prints: a key without effect fails")  # fmt: skip
    parser.add_argument(json_output.OPTION, action="store_true", help=json_output.HELP)
    command_line.run_program(main, parser.parse_args())
