"""Write a first config, without a question, for a training script or a sweep that you have written for another tool.

The options are read from the script's source (argparse, click, Typer, Hydra, data classes), or its settings from a file
that it takes, or variables. The script then runs for a moment, in a temporary folder, for the file or the lines of its
output with its metrics; `--no-run` leaves this out. Which metric ranks trials is a guess, and the config says why. A
sweep of Weights & Biases, the sbatch script of a job array, and a file with a command per line keep their trials;
comments say what could not be carried over. On a Slurm cluster, profiles/slurm/config.yaml is written, too, with the
partition, account and GPU type of `sinfo` and `sacctmgr`. No file is overwritten.
"""

import argparse
import logging
import re
import shlex
import sys
from pathlib import Path
from typing import Final

from trainyard.cli import command_line
from trainyard.cli.array_script import import_array_script, interpreter_of
from trainyard.cli.first_config import (
    MOST_KEYS,
    Observed,
    fill_profile,
    find_constants,
    find_varied,
    first_config,
    missing_options,
    todos,
    type_words,
)
from trainyard.cli.first_run import observe
from trainyard.cli.imported_sweep import ImportedSweep, import_commands
from trainyard.cli.wandb_sweep import import_wandb_sweep
from trainyard.cluster import host, slurm_queries
from trainyard.config.config import Config
from trainyard.config.parser import read_file
from trainyard.programs.script_options import Script, read_script
from trainyard.programs.user_environment import SCRIPT
from trainyard.utils.errors import UserError, storage_errors
from trainyard.utils.import_path import SCRIPTS
from trainyard.utils.text import list_some
from trainyard.utils.typed_commands import DEFAULT_CONFIG, trainyard_call

CONFIGS: Final = (".yaml", ".yml", ".json")
USUAL: Final = ("train.py", "main.py", "run.py")  # the script, if none is named
PROFILE: Final = Path("profiles/slurm/config.yaml")
log = logging.getLogger("init")


def main(arguments: argparse.Namespace) -> None:
    """Write the config and, on a cluster, the profile."""
    _write_profile()  # also if the config must be written by hand, or is there
    command = arguments.command
    usual = (path for path in map(Path, USUAL) if path.exists() and not command)
    started = [word for suffix in SCRIPT for word in command if word.endswith(suffix)]  # by a wrapper, or a .sh itself
    named = started or [arguments.source]
    path = Path(named[0]) if named[0] else next(usual, None)
    if arguments.out.suffix not in CONFIGS:
        raise UserError(
            f"--out {arguments.out}: the config that is written ends in .yaml; --out of the script is not needed"
        )
    if path is None:
        call = trainyard_call("init", "path/to/train.py")
        here = f"here is none of {', '.join(USUAL)}"
        why = f"{shlex.join(command)} starts no script" if command else here
        raise UserError(f"name your training script, as in `{call}`: {why}")
    if arguments.out.exists():
        raise UserError(f"{arguments.out} exists, and no file is overwritten: name another one by --out")
    if not path.is_file():
        what = "this is a folder" if path.is_dir() else "there is no such file"
        raise UserError(f"{path}: {what}")
    if not command and (sweep := _read_sweep(path, arguments)):
        text = sweep.text(path)
        steps = sweep.notes
    else:
        text, steps = _read_script(path, arguments)
    _write(arguments.out, text)
    options = [] if arguments.out == DEFAULT_CONFIG else ["--config", str(arguments.out)]
    on_cluster = "; on this cluster, plan and run it with `--profile slurm`" if PROFILE.exists() else ""
    for line in steps:
        log.info("TODO in %s: %s", arguments.out, line)
    log.info("%s: `%s`%s", "then" if steps else "next", trainyard_call("check", *options), on_cluster)


def _read_sweep(path: Path, arguments: argparse.Namespace) -> ImportedSweep | None:
    """The sweep of another tool's file; None if it is a training script."""
    if path.suffix in CONFIGS:
        raw = read_file(path)
        if not isinstance(raw, dict) or not isinstance(raw.get("parameters"), dict):
            if isinstance(raw, dict) and not raw.keys().isdisjoint(Config.model_fields):
                raise UserError(f"{path} is a config already: `{trainyard_call('check', '--config', str(path))}`")
            raise UserError(f"{path} is no sweep of Weights & Biases: it has no mapping `parameters`")
        return import_wandb_sweep(raw, arguments.seconds if arguments.run else 0)
    text = path.read_text(errors="replace")
    if path.suffix == ".ipynb" or "\0" in text:
        raise UserError(f"{path} is no script: name a .py file, as `jupyter nbconvert --to script` writes it")
    is_python = path.suffix == ".py" or re.match("#!.*python", text) is not None
    if arguments.array or re.search("^#SBATCH" if is_python else "#SBATCH|SLURM_ARRAY", text, re.MULTILINE):
        return import_array_script(path, arguments.array)
    if is_python or _is_shell_script(path):
        return None
    if text.startswith("#!"):
        raise UserError(
            f"{path} is a script whose settings are not known here: write its command by hand, as in "
            f"`command: ./{path.name} {{lr}}`; see {SCRIPTS.parent / 'docs/your-script.md'}"
        )
    return import_commands(path)


def _is_shell_script(path: Path) -> bool:
    first = path.read_text(errors="replace").partition("\n")[0]
    return path.suffix in (".sh", ".bash") or re.match(r"#!.*\b(ba|da|k|z)?sh\b", first) is not None


def _read_script(path: Path, arguments: argparse.Namespace) -> tuple[str, list[str]]:
    """The config for a training script, and what is left to do in it."""
    before: list[str] = []
    typed: list[str] = []
    for number, word in enumerate(arguments.command):
        if Path(word) == path:
            before = arguments.command[:number]
            typed = arguments.command[number + 1 :]
    in_shell = _is_shell_script(path)
    if in_shell:
        interpreter = interpreter_of(path.read_text(errors="replace"))
        read = Script(path, (), library="shell", program=tuple(interpreter))
    else:
        read = read_script(path)
    script, varied = find_varied(read, typed)
    if not varied:
        raise UserError(_nothing_to_vary(script))
    script = type_words(script, varied, before, typed)
    observed = Observed(problem="a script for a shell is not tried" if in_shell else "")
    if missing := missing_options(script, varied):
        log.info("%s is not run: it requires %s", path, ", ".join(missing))
    elif arguments.run and not in_shell:
        log.info("running %s in a temporary folder, for %g s at most (without: --no-run)", path, arguments.seconds)
        observed = observe(script, varied, arguments.seconds)
    left = todos(script, varied, observed)
    text = first_config(script, varied, observed, left)
    return text, [line.splitlines()[0].removesuffix(", as in") for line in left]


def _nothing_to_vary(script: Script) -> str:
    """Why a config must be written by hand, and how."""
    docs = SCRIPTS.parent / "docs"
    if script.library == "shell":
        remedy = "give its settings defaults, as in LR=${LR:-0.1}, or write its command by hand, as in"
        call = f"`command: bash {script.path} {{lr}}`; see {docs / 'quickstart.md'}"
        return f"{script.path} reads no variable that a sweep could vary: {remedy} {call}"
    message = f"{script.path} has no option, in argparse, click, Typer, Hydra or a data class, that a sweep could vary"
    if flags := [option.flag for option in script.options]:
        message += f"; found: {', '.join(flags)}"
    if constants := find_constants(script):
        message += f"; make options of its constants, as by argparse: {list_some(constants, most=MOST_KEYS)}"
    message += f". A config is short to write by hand: see {docs / 'your-script.md'}"
    files = [option.flag for option in script.options if re.search("conf|cfg|settings", option.key)]
    # A script may read its command line by hand.
    if files := files or re.findall(r"--(?:conf|cfg|settings)[\w-]*", script.path.read_text(errors="replace")):
        call = trainyard_call("init", "python", str(script.path), files[0] * files[0].startswith("-"), "conf.yaml")
        message += f"; if {files[0]} takes a file of settings, name it, as in `{call}`"
    return message + (f", or {docs / 'trackers.md'} for settings of wandb.config" if script.source.uses_wandb else "")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage_errors(path), open(path, "x", encoding="utf-8") as file:
        file.write(text)
    log.info("wrote %s", path)


def _write_profile() -> None:
    """Write the profile for this cluster, if Slurm is here and there is no profile yet."""
    try:
        partitions = slurm_queries.list_partitions()
    except UserError:
        return
    try:
        accounts = dict.fromkeys(account for account, _ in slurm_queries.list_associations(host.user_name()))
    except UserError:  # no accounting
        accounts = {}
    if PROFILE.exists():
        log.info("%s exists, and is left as it is", PROFILE)
        return
    own = SCRIPTS.parent / PROFILE
    _write(PROFILE, fill_profile(own.read_text(), partitions, list(accounts)))


if __name__ == "__main__":
    example = "--out trainyard.yaml train.py"
    parser = command_line.build_parser(str(__doc__), example=example, reads_config=False)
    parser.add_argument("source", nargs="?", metavar="FILE",
                        help=f"your training script (default: the first of {', '.join(USUAL)}), sweep.yaml of W&B, "
                        "the sbatch script of a job array, or a command per line; or a command that starts "
                        "a script, as you type it")  # fmt: skip
    parser.add_argument("--out", type=Path, default=DEFAULT_CONFIG, metavar="FILE",
                        help=f"config file to write (default: {DEFAULT_CONFIG})")  # fmt: skip
    parser.add_argument("--array", metavar="IDS", help="task IDs of a job array, if its script does not have them")
    parser.add_argument("--no-run", dest="run", action="store_false", help="do not run the script")
    parser.add_argument("--seconds", type=float, default=60, metavar="S",
                        help="run the script for at most S seconds (default: 60)")  # fmt: skip
    words = sys.argv[1:]
    given, others = parser.parse_known_args(words)
    command = list[str]()
    if others and given.source:  # from there on, all options are those of the script
        begin = words.index(given.source)
        command = words[begin:]
        words = words[:begin]
    elif given.source and not Path(given.source).exists():
        try:
            quoted = shlex.split(given.source)
        except ValueError as error:
            parser.error(f"{given.source}: {str(error).lower()}")
        if len(quoted) > 1:
            command = quoted
            words.remove(given.source)
    parser.set_defaults(command=command)
    command_line.run_program(main, parser.parse_args(words))
