"""The notice that a process will be ended soon: a signal, after which it saves its work and ends by itself."""

import contextlib
import os
import signal
import time
from typing import Final, NoReturn

# Slurm sends SIGTERM before SIGKILL; with sbatch's `--signal`, also a signal of the user's choice ahead of the end.
# A terminal that is closed sends SIGHUP, which `nohup` has ignored.
_HANGUPS: Final = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
POLL_SECONDS: Final = 0.1  # after which a process that waits sees a notice
NOTICES: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, *_HANGUPS)


class StopNotice:
    """Whether this process has been told to save its work and to end."""

    # Not a `threading.Event`: its lock would be taken twice by two signals in a row.
    is_given = False

    def give(self, *_: object) -> None:
        """Note that the notice has arrived. It is also a signal handler."""
        self.is_given = True

    def wait(self, seconds: float) -> None:
        """Sleep for this time, or until the notice arrives."""
        end = time.monotonic() + seconds
        while not self.is_given and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, POLL_SECONDS))


def stop_notice_of_signals() -> StopNotice:
    """A notice that is given when one of the signals arrives. Call this in the main thread."""
    notice = StopNotice()
    for number in NOTICES:
        signal.signal(number, notice.give)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICES)  # whoever started this process may have blocked them
    os.register_at_fork(after_in_child=_reset_signals)  # the notice is not for children, such as data loader workers
    return notice


def interrupt_at_notice() -> None:
    """Raise KeyboardInterrupt in the main thread at SIGINT and at the first notice, but not at a notice after either.

    Slurm sends SIGTERM twice at a preemption, and Snakemake sends it after Ctrl-C. A second Ctrl-C counts.
    """
    for number in (*NOTICES, signal.SIGINT):
        signal.signal(number, _interrupt)


def _interrupt(*_: object) -> NoReturn:
    for number in NOTICES:
        signal.signal(number, ignore_notice)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise KeyboardInterrupt


def ignore_notice(*_: object) -> None:
    """The handler after the first notice. With SIG_IGN, Python would report a signal that arrived just before."""


def _reset_signals() -> None:
    with contextlib.suppress(ValueError):  # not the main thread
        for number in NOTICES:
            signal.signal(number, signal.SIG_DFL)
