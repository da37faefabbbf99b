"""Write a config from a sweep of Weights & Biases, the sbatch script of a job array, or a file of commands.

Comments in the config say what could not be carried over. An existing file is never overwritten.
"""

import argparse
import logging
import re
from pathlib import Path

from trainyard.cli import command_line
from trainyard.cli.array_script import import_array_script
from trainyard.cli.imported_sweep import ImportedSweep, import_commands
from trainyard.cli.wandb_sweep import import_wandb_sweep
from trainyard.config.parser import read_file
from trainyard.utils.errors import UserError, storage_errors
from trainyard.utils.typed_commands import DEFAULT_CONFIG, trainyard_call

log = logging.getLogger("import")


def main(arguments: argparse.Namespace) -> None:
    """Read the source, and write the config."""
    source, out = arguments.source, arguments.out
    text = _read(source, arguments.array).text(source)
    try:
        with storage_errors(out), open(out, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{out} exists already, and is not overwritten: name another file with --out") from None
    given = [] if out == DEFAULT_CONFIG else ["--config", str(out)]
    check = trainyard_call("check", *given)
    log.info("%s\nwritten to %s: see the comments in its first lines, then check it: `%s`", text, out, check)


def _read(source: Path, array: str | None) -> ImportedSweep:
    if not source.is_file():
        raise UserError(f"{source}: there is no such file")
    if source.suffix not in (".yaml", ".yml", ".json"):
        is_script = source.suffix == ".py" or re.search(r"#SBATCH|SLURM_ARRAY", source.read_text(errors="replace"))
        return import_array_script(source, array) if array or is_script else import_commands(source)
    raw = read_file(source)
    if not isinstance(raw, dict) or "parameters" not in raw:
        raise UserError(f"{source} is no sweep of Weights & Biases: it has no `parameters`")
    return import_wandb_sweep(raw)


if __name__ == "__main__":
    parser = command_line.build_parser(str(__doc__), example="--out trainyard.yaml sweep.yaml", reads_config=False)
    parser.add_argument(
        "source", type=Path, metavar="FILE", help="sweep.yaml, the script of a job array, or a command per line"
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_CONFIG, metavar="FILE",
                        help=f"config to write (default: {DEFAULT_CONFIG})")  # fmt: skip
    parser.add_argument("--array", metavar="IDS", help="task IDs of a job array, if its script does not have them")
    command_line.run_program(main, parser.parse_args())
