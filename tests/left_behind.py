"""What a test leaves behind in its process, where later tests would meet it."""

import gc
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

# What libraries leave for the life of a process when they are first used.
OF_LIBRARIES = (
    "PYTEST_CURRENT_TEST",
    "KMP_",
    "TORCHINDUCTOR_",
    "TRITON_",
    "CUDA_MODULE_LOADING",
    "RAY_",
    "TUNE_",
    "GRPC_",
    "LOKY_",
)
END_SECONDS = 60.0  # for threads that are ending
# torch's loaders handle SIGCHLD, and the plugin for timeouts SIGALRM.
NUMBERS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGALRM}


@dataclass(frozen=True)
class Surroundings:
    """What tests of one process share.

    The environment is only taken back: programs set variables for the life of their process, in which tests call them.
    Threads are those that keep a process from ending.
    """

    environment: dict[str, str]
    folder: str
    handlers: dict[int, Any]  # of signals
    threads: frozenset[threading.Thread]
    dtype: object  # torch's default; None until torch is imported
    has_process_group: bool

    @classmethod
    def now(cls) -> Self:
        torch = sys.modules.get("torch")
        distributed = sys.modules.get("torch.distributed")
        return cls(
            environment={name: value for name, value in os.environ.items() if not name.startswith(OF_LIBRARIES)},
            folder=_folder(),
            handlers={number: signal.getsignal(number) for number in NUMBERS},
            threads=frozenset(thread for thread in threading.enumerate() if not thread.daemon),
            dtype=torch.get_default_dtype() if torch else None,
            has_process_group=bool(distributed and distributed.is_available() and distributed.is_initialized()),
        )

    def left_since(self) -> list[str]:
        """What is different now, each in a few words."""
        deadline = time.monotonic() + END_SECONDS
        now = type(self).now()
        if now.threads - self.threads:
            gc.collect()  # an object may end its threads when it is released
        while now.threads - self.threads and time.monotonic() < deadline:
            time.sleep(0.01)
            now = type(self).now()
        left = [f"the folder {now.folder}"] if now.folder != self.folder else []
        handled = [number for number in NUMBERS if now.handlers[number] != self.handlers[number]]
        left += [f"the handler of {signal.Signals(number).name}" for number in handled]
        left += [f"the thread {thread.name}" for thread in now.threads - self.threads]
        left += [f"the default dtype {now.dtype}"] if self.dtype not in (None, now.dtype) else []
        left += ["a process group"] if now.has_process_group and not self.has_process_group else []
        return left

    def restore(self) -> None:
        """Bring back what can be, so that no later test fails for it."""
        now = type(self).now()
        for name in now.environment.keys() - self.environment.keys():
            del os.environ[name]
        for name, value in self.environment.items():
            if now.environment.get(name) != value:
                os.environ[name] = value
        if now.folder != self.folder and Path(self.folder).is_dir():
            os.chdir(self.folder)
        for number, handler in self.handlers.items():
            if handler is not None and handler != now.handlers[number]:
                signal.signal(number, handler)
        if self.dtype is not None:
            sys.modules["torch"].set_default_dtype(self.dtype)
        if now.has_process_group and not self.has_process_group:
            sys.modules["torch.distributed"].destroy_process_group()


def receive_interrupts() -> None:
    """Handle SIGINT as in a terminal: a script that starts the tests with `&`, and nohup, have it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "that was removed"
