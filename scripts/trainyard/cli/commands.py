"""The command `trainyard`: a thin line over Snakemake and the programs in `scripts/`.

`trainyard check` runs `scripts/check.py`, `trainyard run` runs Snakemake with Trainyard's Snakefile, a profile and the
config. In a clone, it is `.venv/bin/trainyard`, which `make env` writes.
"""

import argparse
import gc
import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Final, NoReturn

SCRIPTS: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SCRIPTS))  # of a wheel, Python finds only this file

from trainyard.cli.paths import find_profile  # noqa: E402
from trainyard.utils.errors import UserError  # noqa: E402
from trainyard.utils.import_path import version  # noqa: E402
from trainyard.utils.text import suggest  # noqa: E402
from trainyard.utils.typed_commands import AS_JSON, DEFAULT_CONFIG, TYPED, absent_config  # noqa: E402

HOME: Final = SCRIPTS.parent
VERBS: Final = {
    "init": "write trainyard.yaml for a script, a W&B sweep or a job array, and on a Slurm cluster its profile",
    "check": "check the config, its data and your code before a job is queued",
    "plan": "show what is pending, what it needs and what it costs",
    "run": "run what is pending; the same command continues after whatever stopped it",
    "status": "show the progress; with --watch, while it runs",
    "best": "print the best configuration so far, how sure that is, and the command to paste",
    "report": "write report.html; with --watch, serve it and follow the sweeps",
    "dashboard": "show the sweeps in optuna-dashboard, also while they run",
    "control": "cancel a trial, start one first, pause a sweep, let fewer jobs run",
    "doctor": "check a Slurm site before the first job",
    "clean": "show which files of the results can go, and remove them",
}
OF_SNAKEMAKE: Final = {  # its options
    "plan": ["--dry-run"],
    "run": [],
}
FLAGS: Final = {"-n", "-p", "-q", "-np", "--dry-run", "--json", "--verbose", "--wait", "--watch"}  # without a value
TAKES_FILE: Final = {"--profile", "--slurm-partition-config"}  # whose value may be a YAML file
RESOURCES: Final = ("default-resources", "set-resources")
HAS_VALUE: Final = re.compile(r"--.*=.*|-[a-zA-Z]\d+", re.DOTALL)  # an option with its value, as in `--profile=slurm`
# With these options, a run has Snakemake's screen.
WORDIER: Final = re.compile(r"-n.*|-q|-p|--(dry-?run|quiet|printshellcmds|verbose)(=.*)?")


def main() -> None:
    """Run the verb of the command line: Snakemake in this process, or a program in place of it."""
    typed = sys.argv[1:]
    verb = (typed[:1] or [""])[0]
    try:
        words = typed[1:] if verb == "init" else name_config(typed[1:])
        if verb in ("", "-h", "--help", "help"):
            print(usage())
            sys.exit(0 if verb else 2)
        if verb == "--version":
            print(f"trainyard {version()}")
            sys.exit()
        os.environ[TYPED] = shlex.join(["trainyard", *typed])
        if verb not in OF_SNAKEMAKE:
            os.execv(sys.executable, [sys.executable, str(find_program(verb)), *words])
        sys.argv = build_call(verb, words)
        if verb == "run" and not any(map(WORDIER.fullmatch, words)):
            from trainyard.cli.screen import SCREEN

            SCREEN.take_over()
        _run_snakemake()
    except UserError as error:
        _print_error(error, typed)
        sys.exit(f"trainyard: {error}")
    except KeyboardInterrupt:
        _print_error(UserError("interrupted"), typed)
        sys.exit(130)


def _print_error(error: UserError, typed: Sequence[str]) -> None:
    if "--json" in typed:
        from trainyard.cli.json_output import print_error

        print_error(error)


def _run_snakemake() -> NoReturn:
    """Run Snakemake as its own `main` does, which says at each start which profile it uses."""
    gc.disable()  # nothing that Snakemake's modules define is garbage
    from trainyard.cli.without_pandas import import_snakemake

    import_snakemake()
    from snakemake.cli import args_to_api
    from snakemake.exceptions import CliException

    from trainyard.config.parser import read_file

    try:
        parser, arguments = _parse_options()
        gc.freeze()
        gc.enable()
        for file in arguments.configfile or ():
            read_file(Path(file))  # Snakemake reads it before the Snakefile, and has its own words for errors
        succeeds = args_to_api(arguments, parser)
    except CliException as error:
        raise UserError(str(error)) from None
    from trainyard.cli.dry_run import REFUSED  # the Snakefile has imported it

    # With a file of partitions, which a dry run does not read, another partition is requested.
    is_refused = REFUSED and not isinstance(arguments.slurm_partition_config, str | Path)
    sys.exit(0 if succeeds and not is_refused else 1)


def _parse_options() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Snakemake's parser, and what it reads from the command line and the profiles.

    Raises:
        UserError: an option or value is wrong, for which Snakemake would print all its options, or a stack trace.
        SystemExit: Snakemake has printed what was asked for, such as its version.
    """
    from snakemake.cli import parse_args
    from snakemake.exceptions import WorkflowError

    try:
        with redirect_stderr(StringIO()) as said:
            parsed: tuple[argparse.ArgumentParser, argparse.Namespace] = parse_args(None)
    except SystemExit as end:
        if not end.code:
            raise
        _check_options()
        of_other_profile = said.getvalue().rpartition("error: ")[2].strip()
        raise UserError(of_other_profile) from None
    except (ValueError, WorkflowError) as error:
        raise UserError(f"an option has a value that Snakemake cannot read: {error}") from None
    return parsed


def usage() -> str:
    """The verbs, each with what it does."""
    lines = (f"  {verb:<9} {text}" for verb, text in VERBS.items())
    config = f"The config is {DEFAULT_CONFIG} in this folder, or the one that --config names. Results lie in results/."
    options = "`trainyard VERB --help` lists the options of a verb."
    return "\n".join(["usage: trainyard VERB [OPTIONS]", "", *lines, "", config, options])


def find_program(verb: str) -> Path:
    """The program that a verb runs.

    Raises:
        UserError: there is none.
    """
    if verb == "import":
        raise UserError("`import` is `init` now: `trainyard init sweep.yaml`")
    path = SCRIPTS / f"{verb.replace('-', '_')}.py"
    if path.exists() and path.parent == SCRIPTS:
        return path
    raise UserError(f"there is no {verb!r}; {suggest(verb, VERBS)}; `trainyard --help` explains them")


def name_config(words: Sequence[str]) -> list[str]:
    """The words with `--config` before a config file that is given without it, as in `trainyard run my.yaml`.

    Raises:
        UserError: it may be the value of the option before it.
    """
    own = list(words[: words.index("--")]) if "--" in words else list(words)
    if any(word.startswith("--config") for word in own):
        return list(words)
    for number, word in enumerate(own):
        before = own[number - 1] if number else ""
        if word.startswith("-") or not word.endswith((".yaml", ".yml")) or before in TAKES_FILE:
            continue
        if before.startswith("-") and before not in FLAGS and not HAS_VALUE.fullmatch(before):
            raise UserError(
                f"is {word} the config, or the value of {before}? Write `--config {word}`, or {before}={word}"
            )
        return [*words[:number], "--config", *words[number:]]
    return list(words)


def build_call(verb: str, words: Sequence[str]) -> list[str]:
    """The call of Snakemake for a verb; all words that are not options of the verb itself are Snakemake's.

    Raises:
        UserError: there is no config, no such profile, or no such option.
    """
    parser = argparse.ArgumentParser(
        prog=f"trainyard {verb}",
        description=f"{VERBS[verb].capitalize()}.",
        epilog="All other words are Snakemake's, as in `trainyard run --profile slurm --jobs 4 -- sweeps`; "
        "-C overrides keys of the config.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"config file (default: {DEFAULT_CONFIG})")
    parser.add_argument("--profile", default="local", metavar="NAME",
                        help="`local` (the default), `slurm`, or the folder of a profile; one in profiles/ of this "
                        "folder comes before Trainyard's own")  # fmt: skip
    parser.add_argument("--verbose", action="store_true",
                        help="show all that Snakemake says, and in a plan, what each job requests")  # fmt: skip
    parser.error = _refuse  # type: ignore[method-assign]
    if verb == "plan":
        parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    end = words.index("--") if "--" in words else len(words)
    arguments, options = parser.parse_known_args(words[:end])
    if verb == "plan" and arguments.json:
        os.environ[AS_JSON] = "1"
        if quiet := next((word for word in options if re.fullmatch("-q|--quiet(=.*)?", word)), ""):
            raise UserError(f"{quiet} would hide what --json prints: leave it out")
    if not any(word.partition("=")[0] in ("--configfile", "--configfiles") for word in options):
        config = arguments.config or DEFAULT_CONFIG
        if not config.exists():
            raise UserError(absent_config(config))
        options += ["--configfile", str(config)]
    profile = str(find_profile(arguments.profile))
    _warn_of_resources(Path(profile), options)
    snakemake = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(HOME / "Snakefile")]
    if arguments.verbose:
        options.append("--verbose")
    return [*snakemake, "--profile", profile, *options, *OF_SNAKEMAKE[verb], *words[end:]]


def _warn_of_resources(profile: Path, options: Sequence[str]) -> None:
    """Say which resources of the profile do not hold: Snakemake puts those that are typed in the place of them all."""
    from trainyard.config.parser import read_file

    file = profile / "config.yaml"
    content = read_file(file)
    typed = {word.partition("=")[0].removeprefix("--") for word in options}
    for key in RESOURCES:
        if key in typed and (lost := content.get(key)):
            names = lost if isinstance(lost, str) else ", ".join(map(str, lost))
            print(f"--{key} replaces all {key} of {file}: {names}; type those that shall hold, too", file=sys.stderr)


def _refuse(message: str) -> NoReturn:
    raise UserError(message)


def _check_options() -> None:
    """Raise a UserError that names an option or value of the command line or the profile that Snakemake has refused."""
    from snakemake.cli import get_argument_parser

    words = sys.argv[1:]
    parser = get_argument_parser([words[words.index("--profile") + 1]])
    parser.error = _refuse
    _, unknown = parser.parse_known_args(words[: words.index("--")] if "--" in words else words)
    if unknown:
        name = unknown[0].partition("=")[0]
        hint = suggest(name, parser._option_string_actions, otherwise="`snakemake --help` lists all")
        if name == "--json":
            hint = "`trainyard status --json` and `trainyard best --json` have the result"
        raise UserError(f"there is no option {name!r}; {hint}")


if __name__ == "__main__":
    main()
