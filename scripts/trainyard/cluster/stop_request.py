"""A request to stop: from the signal of Slurm, or of a terminal, to the process that saves its state and ends.

    sweep   the driver (`interrupt_at_stop_request`)  >  the worker of each slot (`stop_request_of_signals`)
    study   the launcher (`forward_stop_request`)  >  srun  >  the agent of each node (`forward_to_ranks`)  >  its ranks

Each process that has something to save polls a `StopRequest` of its own. The last hop is SIGUSR1. To a rank, SIGTERM
would not do: with it, torchrun ends the other ranks when one has failed, and they would wait for that one in a
collective. A site may send the signals of a job to all processes; after SIGTERM, a rank waits a moment for its agent.
"""

import contextlib
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

import psutil

from trainyard.utils.guard import signal_at_end_of_parent

# Slurm sends SIGTERM before SIGKILL; with sbatch's `--signal`, also a signal of the user's choice ahead of the end.
# A terminal that is closed sends SIGHUP, which `nohup` has ignored.
_HANGUPS: Final = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, *_HANGUPS)
# For what would not survive SIGTERM: tasks of srun, which forwards this signal to all of them, and ranks of torchrun.
GENTLE_SIGNAL: Final = signal.SIGUSR1
TERMINATED: Final = 128 + signal.SIGTERM  # exit code of a rank that torchrun has ended
POLL_SECONDS: Final = 0.1  # after which a process that waits for a request, a file or a rank sees it
AGENT_SECONDS: Final = 5.0  # after SIGTERM, for the request of the agent


class StopRequest:
    """Whether this process has been requested to save its state and to end."""

    # Not a `threading.Event`: its lock would be taken twice by two signals in a row.
    is_made = False

    def make(self, *_: object) -> None:
        """Note the request. It is also a signal handler."""
        self.is_made = True

    def wait(self, seconds: float) -> None:
        """Sleep for this time, or until the request is made."""
        end = time.monotonic() + seconds
        while not self.is_made and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, POLL_SECONDS))


def stop_request_of_signals() -> StopRequest:
    """A request that one of the signals makes. Call this in the main thread."""
    request = StopRequest()
    for number in STOP_SIGNALS:
        signal.signal(number, request.make)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # whoever started this process may have blocked them
    os.register_at_fork(after_in_child=_reset_signals)  # children, such as data loader workers, get none
    return request


def _reset_signals() -> None:
    with contextlib.suppress(ValueError):  # not the main thread
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)


# ---- programs


def interrupt_at_stop_request() -> None:
    """Raise KeyboardInterrupt in the main thread at SIGINT and at the first stop signal, but not at one after either.

    Slurm sends SIGTERM twice at a preemption, and Snakemake sends it after Ctrl-C. A second Ctrl-C counts.
    """
    for number in (*STOP_SIGNALS, signal.SIGINT):
        signal.signal(number, _interrupt)


def _interrupt(*_: object) -> NoReturn:
    for number in STOP_SIGNALS:
        signal.signal(number, ignore_signal)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise KeyboardInterrupt


def ignore_signal(*_: object) -> None:
    """The handler after the first stop signal. With SIG_IGN, Python would report one that arrived just before."""


# ---- from the launcher of a study to its ranks


def forward_stop_request(send: Callable[[], object]) -> StopRequest:
    """Call `send` at the signals from now on; returns the request, which they make. Call this in the main thread."""
    request = StopRequest()

    def forward(*_: object) -> None:
        request.make()
        send()

    for each in STOP_SIGNALS:
        signal.signal(each, forward)
    return request


def block_stop_signals() -> None:
    """Block the signals in an agent before it imports torch, which starts threads that would take them otherwise.

    torchrun's own handler of SIGTERM, which kills the ranks after 30 s, is then never called. The ranks inherit this,
    too, so that a signal before they have installed their handlers does not kill them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def forward_to_ranks() -> None:
    """In the main thread of an agent, after `block_stop_signals`: forward the request to the ranks from now on."""
    signal_at_end_of_parent(signal.SIGTERM)
    threading.Thread(target=_forward, daemon=True).start()


def _forward() -> None:
    signal.sigwait(STOP_SIGNALS)
    requested = set[int]()
    while True:  # the agent may not have started all ranks yet
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if process.pid not in requested and "LOCAL_RANK" in process.environ():
                    process.send_signal(GENTLE_SIGNAL)
                    requested.add(process.pid)
        signal.sigtimedwait(STOP_SIGNALS, POLL_SECONDS)


def stop_request_of_rank() -> StopRequest:
    """The request to a rank. Call this in the main thread."""
    signal_at_end_of_parent(signal.SIGTERM)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)  # works while the main thread is in a collective
        threading.Thread(target=_end_if_terminated, args=(reading,), daemon=True).start()
    return stop_request_of_signals()


def _end_if_terminated(signals: int) -> None:
    """End this rank a few seconds after SIGTERM, unless its agent requests it; `signals` is a wakeup descriptor."""
    ends_at = math.inf  # on the monotonic clock
    while True:
        left = None if math.isinf(ends_at) else max(0.0, ends_at - time.monotonic())
        if not select.select([signals], [], [], left)[0]:
            os._exit(TERMINATED)
        numbers = os.read(signals, 64)
        if GENTLE_SIGNAL in numbers:
            return
        if signal.SIGTERM in numbers:
            ends_at = min(ends_at, time.monotonic() + AGENT_SECONDS)


@contextlib.contextmanager
def shielded_children() -> Iterator[None]:
    """Processes that are started in the block do not get the signals that end a program, nor do their descendants.

    Slurm may send these to all processes of a job, and a terminal, `timeout` and CI systems send them to all processes
    of a group. What trials need, such as Ray, must not end before they have saved their state. They inherit that these
    signals are blocked, and are ended by SIGKILL.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
