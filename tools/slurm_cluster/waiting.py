"""Waiting for a condition, so that no test sleeps for a time that is long on one machine and short on another."""

import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")
# For whatever a test waits for. It only ends a test that would wait for ever: no healthy machine takes so long, however
# busy it is. What a thing should take is for the benchmarks to measure.
PATIENCE_SECONDS = 600.0


def wait_until(
    condition: Callable[[], Result | None],
    *,
    what: str,
    timeout_seconds: float = PATIENCE_SECONDS,
    poll_seconds: float = 0.05,
) -> Result:
    """Return the first true value of condition(); raise TimeoutError, naming what was waited for, after the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_seconds:g} s for {what}; last seen: {result!r}")
        time.sleep(poll_seconds)


def finished(
    command: Sequence[str], *, check: bool = True, timeout_seconds: float = PATIENCE_SECONDS, **options: Any
) -> subprocess.CompletedProcess[str]:
    """subprocess.run with text captured, whose errors show the output: of an exit code that is not 0, of a timeout."""
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=timeout_seconds, check=False, **options)
    except subprocess.TimeoutExpired as error:
        said = "".join((part or b"").decode(errors="replace") for part in (error.stdout, error.stderr))
        raise TimeoutError(f"waited {timeout_seconds:g} s for {shlex.join(command)}; it has said:\n{said}") from None
    assert not check or done.returncode == 0, (
        f"{shlex.join(command)} exited {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return done
