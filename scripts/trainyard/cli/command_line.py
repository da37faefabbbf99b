"""The command line of all programs: options, logging, exit codes, and a stack trace for bugs only."""

import argparse
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

from trainyard.cluster import slurm_allocation, slurm_queries
from trainyard.cluster.job_step import end_rank, is_rank
from trainyard.cluster.stop_request import interrupt_at_stop_request
from trainyard.config.config import Config
from trainyard.utils.errors import ContinuedError, FinalError, UserError, storage_error
from trainyard.utils.typed_commands import DEFAULT_CONFIG, run_call, trainyard_call

AS_JSON: Final = "--json"
INTERRUPTED: Final = "interrupted: finished work is kept; the same command continues from there"
INTERRUPT_CODE: Final = 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _print_error(UserError(message))
        super().error(message)


def build_parser(description: str, *, example: str, reads_config: bool = True) -> argparse.ArgumentParser:
    """A parser with the options that all programs share; `example` are some that work with the demo.

    A program that does not read the config has only the option for its log.
    """
    call = trainyard_call(Path(sys.argv[0]).stem.replace("_", "-"))
    shared = _Parser(
        prog=call,
        description=description,
        epilog=f"example: {call} {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        conflict_handler="resolve",
    )
    if reads_config:
        # As `run` has it: a program that needs none ignores it, and the others have their own.
        shared.add_argument("--profile", help=argparse.SUPPRESS)
        shared.add_argument("--config", type=Path, default=DEFAULT_CONFIG, metavar="FILE",
                            help=f"config file, YAML or JSON (default: {DEFAULT_CONFIG})")  # fmt: skip
        shared.add_argument("--results", type=Path, default=Path("results"), metavar="DIR",
                            help="folder of the results (default: results)")  # fmt: skip
    shared.add_argument("--log-file", type=Path, metavar="FILE", help="also append the log to this file")
    return shared


def run_program(main: Callable[[argparse.Namespace], int | None], arguments: argparse.Namespace) -> NoReturn:
    """Run `main` and exit with its return value or 0; with 1 after an error, with 130 after an interrupt.

    SIGINT interrupts it even if the parent process ignores SIGINT, as a script does for `program &`, and so do the
    other signals that end a job, unless it is a rank.
    """
    gc.freeze()  # the modules stay until the end
    gc.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    set_up_logging(arguments.log_file, to_stderr=AS_JSON in sys.argv)
    if not is_rank():
        interrupt_at_stop_request()
    code = _exit_code(main, arguments)
    _flush_output()
    if is_rank():
        end_rank(code)
    sys.exit(code)


def _exit_code(main: Callable[[argparse.Namespace], int | None], arguments: argparse.Namespace) -> int:
    try:
        _take_up_allocation()
        return main(arguments) or 0
    except KeyboardInterrupt:
        logging.error(INTERRUPTED)
        _print_error(UserError(INTERRUPTED))
        return INTERRUPT_CODE
    except UserError as error:
        logging.error("%s", error)
        _print_error(error)
        for kind, mark in ((FinalError, final_mark), (ContinuedError, continued_mark)):
            if isinstance(error, kind) and arguments.log_file:
                with suppress(OSError):
                    mark(arguments.log_file).touch()
        return 1
    except Exception as error:
        if isinstance(error, OSError) and (of_storage := storage_error(error)):
            logging.error("%s", of_storage)
            _print_error(of_storage)
            return 1
        logging.exception("this is a bug in Trainyard or in your own code")
        _print_error(error)
        return 1


def _print_error(error: Exception) -> None:
    if AS_JSON in sys.argv:
        from trainyard.cli.json_output import print_error  # imports pydantic

        print_error(error)


def final_mark(log_file: Path) -> Path:
    """The file beside a log that marks a FinalError, for the executor: Snakemake sees no exit code of a program."""
    return log_file.with_name(f".{log_file.name}.final")


def continued_mark(log_file: Path) -> Path:
    """The same for a ContinuedError."""
    return log_file.with_name(f".{log_file.name}.continued")


def _flush_output() -> None:
    """Write what is left of the output. If its disk is full, drop it: Python would exit with 120 instead."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _take_up_allocation() -> None:
    """Log the allocation of a Slurm job and, once the accounting knows it, the command line that submitted it.

    What this process starts then sees all nodes of the job: srun names only those of its step.
    """
    try:
        allocation = slurm_allocation.current_allocation() if not is_rank() or os.environ["RANK"] == "0" else None
    except UserError as error:  # code that needs the allocation reports this error
        logging.warning("%s", error)
        return
    if allocation:
        os.environ["SLURM_JOB_NODELIST"] = ",".join(allocation.nodes)
        logging.info("%s", allocation)

        def log_submit_line() -> None:
            line = slurm_queries.find_submit_line(allocation.job)
            logging.info("submitted with: %s", line or "(unknown: it is not in Slurm's accounting)")

        threading.Thread(target=log_submit_line).start()  # the job does not wait for it


def set_up_logging(log_file: Path | None, *, to_stderr: bool = False) -> None:
    """Log to stdout, or to stderr, and append to a file if there is one.

    A log that cannot be written does not end the program: without a file, or on a full disk, its lines are lost.
    """
    logging.raiseExceptions = False  # the default prints a stack trace for each line that cannot be written
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr if to_stderr else sys.stdout)]
    problem = ""
    if log_file:
        try:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            handlers.append(logging.FileHandler(log_file, encoding="utf-8", errors="backslashreplace"))
            handlers[1].setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        except OSError as error:
            problem = str(storage_error(error, log_file) or error)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=handlers, force=True)
    if problem:
        logging.warning("the log is not kept: %s", problem)


@contextmanager
def results_expected(arguments: argparse.Namespace) -> Iterator[None]:
    """Raise a UserError that says how to make the results of a study if a file of them is missing in the block.

    `arguments` has its `kind` and `name`.
    """
    try:
        yield
    except FileNotFoundError as error:
        path = Path(os.fsdecode(error.filename)) if error.filename else arguments.results
        if not path.absolute().is_relative_to(arguments.results.absolute()):
            raise
        command = run_call(arguments.config, "--", arguments.kind)
        raise UserError(
            f"{arguments.kind} {arguments.name}: {path} does not exist yet. Make it with `{command}`, or on a cluster "
            "with its profile"
        ) from None


def check_name(config: Config, kind: str, name: str) -> None:
    """Raise a UserError if a section of the config does not have this name."""
    known = getattr(config, kind)
    if name not in known:
        raise UserError(f"`{kind}` has no {name!r}; known: {', '.join(known) or 'none'}")
