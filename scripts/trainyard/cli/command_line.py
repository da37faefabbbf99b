"""What all programs have in common: options, logging, one clear line for a mistake and a stack trace for a bug."""

import argparse
import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from trainyard.cluster import slurm_allocation, slurm_queries
from trainyard.config.config import Config
from trainyard.utils.errors import UserError


def parser(description: str, *, example: str) -> argparse.ArgumentParser:
    """A parser with the options that every program has; `example` is a command that works with the embedded demo."""
    made = argparse.ArgumentParser(
        description=description, epilog=f"example: {example}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--config", type=Path, required=True, metavar="FILE", help="the config file (YAML or JSON)")
    made.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    made.add_argument("--log-file", type=Path, metavar="FILE", help="write what is said to this file, too")
    return made


def run(main: Callable[[argparse.Namespace], int | None], arguments: argparse.Namespace) -> NoReturn:
    """Run `main` and end the process: 0, what it returns, 1 for a mistake, 130 if interrupted.

    Ctrl-C and SIGINT interrupt it also where it was started with SIGINT ignored, as a script's `&` does.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    set_up_logging(arguments.log_file)
    code = _exit_code(main, arguments)
    if "RANK" in os.environ:
        _end_rank(code)
    sys.exit(code)


def _exit_code(main: Callable[[argparse.Namespace], int | None], arguments: argparse.Namespace) -> int:
    try:
        _say_what_was_given()
        return main(arguments) or 0
    except KeyboardInterrupt:
        logging.error("interrupted: what has finished is kept; the same command continues from there")
        return 130
    except UserError as error:
        logging.error("%s", error)
        return 1
    except Exception:
        logging.exception("this is a bug in Trainyard, or in code that it was given")
        return 1


def _end_rank(code: int) -> NoReturn:
    """End a rank after its threads and exit handlers, but without finalizing the interpreter, which could abort it.

    A thread of gloo's ProcessGroup holds the last collective's tensors for a moment after the collective has ended, and
    takes the GIL to let go of them. If the interpreter is finalized while the thread waits for the GIL, Python ends the
    thread within that C++ destructor, and the process with it: SIGABRT, "terminate called without an active exception".
    torch joins the thread when the last reference to the group goes, and DDP models, also those of users, hold such
    references. multiprocessing ends its children as this does.
    """
    try:
        with suppress(Exception):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(code)


def _say_what_was_given() -> None:
    """Have the log of a Slurm job begin with its allocation, and with the line that asked for it."""
    try:
        given = slurm_allocation.current_allocation() if os.environ.get("RANK", "0") == "0" else None
    except UserError as error:  # who needs to know will say so
        logging.warning("%s", error)
        return
    if given:
        logging.info("%s", given)
        logging.info(
            "submitted with: %s",
            slurm_queries.find_submit_line(given.job) or "(a line that is not in Slurm's accounting)",
        )


def set_up_logging(log_file: Path | None) -> None:
    """Say things on stdout and, if given, append them to a file."""
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stdout)]
    if log_file:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(log_file))
        handlers[1].setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=handlers, force=True)


def section(config: Config, kind: str, name: str) -> None:
    """Check that the config has a study of this kind and name, and say which there are if not."""
    known = getattr(config, kind)
    if name not in known:
        raise UserError(f"the config has no {name!r} in `{kind}`; known: {', '.join(known) or 'none'}")
