"""Waiting for a condition instead of sleeping for a fixed time."""

import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")
# The default timeout. It only ends what would wait forever: nothing takes so long, even on a busy machine.
PATIENCE_SECONDS = 1700.0
OUTPUT_SECONDS = 5.0  # for the rest of an ended process's output: its children may keep the pipe open


class ProcessEnded(RuntimeError):
    """The process that had to meet a condition ended before; the message has its exit code and output."""


def wait_until(
    condition: Callable[[], Result | None],
    *,
    what: str,
    while_running: "subprocess.Popen[Any] | None" = None,
    timeout_seconds: float = PATIENCE_SECONDS,
    poll_seconds: float = 0.05,
) -> Result:
    """Return the first true value of condition().

    Raises:
        TimeoutError: The condition was false for so long.
        ProcessEnded: The process `while_running` ended, and the condition is still false.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        has_ended = while_running is not None and while_running.poll() is not None
        result = condition()
        if result:
            return result
        if while_running is not None and has_ended:
            raise ProcessEnded(f"waited for {what}, but {_end_of(while_running)}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_seconds:g} s for {what}; last value: {result!r}")
        time.sleep(poll_seconds)


def _end_of(process: "subprocess.Popen[Any]") -> str:
    """The command line of a process that has ended, its exit code, and its output where that goes into pipes."""
    output = "(its children still hold its output open)"
    with suppress(subprocess.TimeoutExpired):
        parts = process.communicate(timeout=OUTPUT_SECONDS)
        output = "".join(part.decode(errors="replace") if isinstance(part, bytes) else part or "" for part in parts)
    arguments = process.args if isinstance(process.args, list | tuple) else [process.args]
    return f"{shlex.join(map(str, arguments))} exited {process.returncode}:\n{output}"


def finished(
    command: Sequence[str], *, check: bool = True, timeout_seconds: float = PATIENCE_SECONDS, **options: Any
) -> subprocess.CompletedProcess[str]:
    """subprocess.run with captured text, whose errors (a non-zero exit code, a timeout) show the output."""
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=timeout_seconds, check=False, **options)
    except subprocess.TimeoutExpired as error:
        output = "".join((part or b"").decode(errors="replace") for part in (error.stdout, error.stderr))
        raise TimeoutError(f"waited {timeout_seconds:g} s for {shlex.join(command)}; its output:\n{output}") from None
    assert not check or done.returncode == 0, (
        f"{shlex.join(command)} exited {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return done
