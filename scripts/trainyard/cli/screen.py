"""The screen of `trainyard run`: what Trainyard says, and its progress while jobs are in a queue.

What Snakemake says is in its log file.
"""

import logging
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from snakemake.logging import logger

from trainyard.utils.import_path import SCRIPTS

# In warnings and errors of Snakemake that the summary replaces, or that concern nobody.
REPLACED: Final = re.compile(
    "Error in (rule|group)|CalledProcessError|job execution failed|At least one job did not|SLURM account|MinJobAge"
)
WAITS: Final = "asked to end: waiting for the jobs that run, and submitting no others; Ctrl-C (SIGINT) cancels them"
ERASED: Final = "\r\x1b[2K"
REDRAW_SECONDS: Final = 5.0  # between two pictures of the progress on a terminal, and two lines if jobs have changed
LINE_SECONDS: Final = 60.0  # between two other lines where there is no terminal


class Screen:
    """What `trainyard run` shows; if Snakemake was started by itself, it has its own screen."""

    def __init__(self) -> None:
        self.is_ours = False
        self._is_asked_to_end = False
        self._shown_at = -LINE_SECONDS
        self._jobs = ""  # at the last progress; "" without any on a terminal

    def take_over(self) -> None:
        """Hide what Snakemake says from now on. It makes its handlers later, before its first message."""
        self.is_ours = True

        def hide(_: logging.LogRecord) -> bool:
            for handler in logger.handlers:
                if handler.name == "DefaultStreamHandler":
                    handler.addFilter(self._shows)
            return True

        logger.addFilter(hide)

    def _shows(self, record: logging.LogRecord) -> bool:
        if record.getMessage().startswith("Will exit after"):
            if self._is_asked_to_end:  # `timeout` sends its signal to make, which sends it on
                return False
            self._is_asked_to_end = True
            record.msg = WAITS
            record.levelno = logging.WARNING
        is_new = record.levelno >= logging.WARNING and not REPLACED.search(record.getMessage())
        is_shown = is_new or record.pathname.startswith(str(SCRIPTS))
        if is_shown:
            self.erase_progress()
        return is_shown

    def show_progress(self, describe: Callable[[], Sequence[str]], jobs: str) -> None:
        """Show the progress if it is due: what `describe` returns, and the `jobs` in the queue."""
        now = time.monotonic()
        is_terminal = sys.stdout.isatty()
        wait = REDRAW_SECONDS if is_terminal or jobs != self._jobs else LINE_SECONDS
        if now < self._shown_at + wait:
            return
        self._shown_at = now
        self._jobs = jobs
        line = "; ".join([*describe(), jobs])
        if is_terminal:
            print(f"{ERASED}{line[: shutil.get_terminal_size().columns - 1]}", end="\r", flush=True)
        else:
            print(time.strftime("%X"), line, flush=True)

    def erase_progress(self) -> None:
        """Remove the progress from a terminal."""
        if self._jobs and sys.stdout.isatty():
            print(ERASED, end="", flush=True)
            self._jobs = ""


SCREEN: Final = Screen()
