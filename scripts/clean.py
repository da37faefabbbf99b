"""Show what of the results can be removed, and how much that frees; remove it with --yes.

  trials       files of ended trials of programs; outputs, metrics and the best configuration stay
  checkpoints  of finished scaling studies, and what killed sweeps have left of trials that have ended
  data         staged datasets, which are staged again when a study needs them
  drill        what is left of resume drills

Tables, journals and best.yaml stay in any case. Nothing is removed while a job works on these results.
"""

import argparse
import logging

from trainyard.cli import command_line
from trainyard.cli.housekeeping import KINDS, check_unused, find_removable, space_of
from trainyard.config.load import read_config
from trainyard.utils.errors import UserError
from trainyard.utils.terminal import Column, TerminalTable, open_console
from trainyard.utils.text import count_of, suggest
from trainyard.utils.typed_commands import as_typed, trainyard_call

COLUMNS = (
    Column("what"),
    Column("of", is_cut=True),
    Column("frees"),
    Column("files", rank=2),
    Column("what is lost", rank=1, is_cut=True),
)
log = logging.getLogger("clean")


def main(arguments: argparse.Namespace) -> None:
    """List what can be removed, and remove it if this is wanted."""
    config = read_config(arguments.config)
    results = arguments.results
    wanted = arguments.what or KINDS
    if unknown := [each for each in wanted if each not in KINDS]:
        raise UserError(f"{unknown[0]!r} cannot be removed; {suggest(unknown[0], KINDS)}")
    if arguments.yes and not arguments.what:
        raise UserError(f"--yes: name what to remove: {', '.join(KINDS)}, or several of them")
    removable = [each for each in find_removable(config, results) if each.kind in wanted]
    spaces = [space_of(each.paths) for each in removable]
    size, files = (sum(numbers) for numbers in zip(*spaces, strict=True)) if removable else (0, 0)
    if not files:
        log.info("nothing to remove in %s", results)
        return
    rows = [
        [each.kind, each.owner, _size(used), f"{count:,}", each.loss]
        for each, (used, count) in zip(removable, spaces, strict=True)
    ]
    open_console().print(TerminalTable(COLUMNS, rows))
    if not arguments.yes:
        call = trainyard_call("clean", "--config", as_typed(arguments.config), rows[0][0], "--yes")
        log.info("nothing is removed yet: name what to remove, as in `%s`", call)
        return
    check_unused(results)
    for each in removable:
        each.remove()
    remaining = sum(space_of(each.paths)[0] for each in removable)
    log.info("removed: %s in %s", _size(size - remaining), count_of(files, "file"))


def _size(used: int) -> str:
    return f"{used / 2**30:.1f} GiB" if used >= 2**30 else f"{used / 2**20:.1f} MiB"


if __name__ == "__main__":
    parser = command_line.build_parser(str(__doc__), example="--config config/config.yaml")
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"{', '.join(KINDS)} (default: list all of them)")
    parser.add_argument("--yes", action="store_true", help="remove it; without, it is only listed")
    command_line.run_program(main, parser.parse_args())
