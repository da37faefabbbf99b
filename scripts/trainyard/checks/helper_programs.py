"""Helper programs of the checks: each reads a request from stdin and writes its answer to stdout, both as JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from trainyard.utils.errors import UserError
from trainyard.utils.import_path import helper_command

TIMEOUT_SECONDS = 900


def ask_helper(module: str, request: Any, *, task: str) -> tuple[Any, "subprocess.CompletedProcess[str]"]:
    """The answer of a helper program to a request, None if it ended without one, and the ended process.

    Raises:
        UserError: its `task`, such as "trying your code", takes too long.
    """
    try:
        done = subprocess.run(
            helper_command(module),
            input=json.dumps(request),
            text=True,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{task} takes over {TIMEOUT_SECONDS} s") from None
    try:
        return json.loads(done.stdout), done
    except ValueError:
        return None, done


def answer_request(answer: Callable[[Any], Any]) -> None:
    """Answer the request of stdin, and end this process at once. All else that is printed goes to stderr."""
    sys.dont_write_bytecode = True  # a dry run writes nothing
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        json.dump(answer(json.load(sys.stdin)), output)
    sys.stderr.flush()
    os._exit(0)  # without waiting for threads, and before exit handlers that write
