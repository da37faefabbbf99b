"""The notice that a training will be ended: from the launcher, or Slurm, to the agents, and from these to the ranks.

An agent tells its ranks by SIGUSR1 that they have to save a checkpoint and to end. It cannot be SIGTERM: with that,
torchrun ends the other ranks when one has failed, and they would wait for it in a collective. A site may send the
signals of a job to all processes, so that a rank gets SIGTERM, too, and waits a moment for the notice of its agent.
"""

import contextlib
import ctypes
import math
import os
import select
import signal
import subprocess
import threading
import time
from typing import Any, Final

import psutil

from trainyard.utils.stop_notice import NOTICES, StopNotice, stop_notice_of_signals

NOTICE_TO_RANK: Final = signal.SIGUSR1
NOTICE_SECONDS: Final = 5.0  # after SIGTERM, for the notice of the agent
NEW_RANK_SECONDS: Final = 0.5  # between looks for ranks that have started after the notice
# What torchrun handles, but for SIGHUP, at which it ends the ranks even if it runs under `nohup`.
SIGNALS_OF_TORCHRUN: Final = "SIGTERM,SIGINT,SIGQUIT"
TERMINATED: Final = 128 + signal.SIGTERM  # exit code of a rank that torchrun has ended
_PR_SET_PDEATHSIG: Final = 1


def block_notices() -> None:
    """Block the signals in an agent before it imports torch, which starts threads that would take them otherwise.

    torchrun's own handler of SIGTERM, which kills the ranks after 30 s, is then never called. The ranks inherit this,
    too, so that a notice before they have installed their handlers does not kill them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)


def forward_to_ranks() -> None:
    """In the main thread of an agent, after `block_notices`: forward a notice to the ranks from now on."""
    _end_with_parent()
    threading.Thread(target=_forward, daemon=True).start()


def _forward() -> None:
    signal.sigwait(NOTICES)
    told = set[int]()
    while True:  # the agent may not have started all ranks yet
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if process.pid not in told and "LOCAL_RANK" in process.environ():
                    process.send_signal(NOTICE_TO_RANK)
                    told.add(process.pid)
        signal.sigtimedwait(NOTICES, NEW_RANK_SECONDS)


def forward_to_launched(process: "subprocess.Popen[Any]", *, through_srun: bool) -> StopNotice:
    """Forward a notice to a child process; returns the notice, which is given once it arrives.

    Call this in the main thread. srun forwards SIGUSR1 to all tasks; at SIGTERM, it would kill them.
    """
    number, notice = signal.SIGUSR1 if through_srun else signal.SIGTERM, StopNotice()

    def forward(*_: object) -> None:
        notice.give()
        process.send_signal(number)

    for each in NOTICES:
        signal.signal(each, forward)
    return notice


def notice_to_rank() -> StopNotice:
    """The notice to stop for a rank. Call this in the main thread."""
    _end_with_parent()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)  # works while the main thread is in a collective
        threading.Thread(target=_end_if_terminated, args=(reading,), daemon=True).start()
    return stop_notice_of_signals()


def _end_if_terminated(signals: int) -> None:
    """End this rank a few seconds after SIGTERM, unless the agent gives notice; `signals` is a wakeup descriptor."""
    ends_at = math.inf  # on the monotonic clock
    while True:
        left = None if math.isinf(ends_at) else max(0.0, ends_at - time.monotonic())
        if not select.select([signals], [], [], left)[0]:
            os._exit(TERMINATED)
        numbers = os.read(signals, 64)
        if NOTICE_TO_RANK in numbers:
            return
        if signal.SIGTERM in numbers:
            ends_at = min(ends_at, time.monotonic() + NOTICE_SECONDS)


def _end_with_parent() -> None:
    """Receive SIGTERM when the parent dies, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
