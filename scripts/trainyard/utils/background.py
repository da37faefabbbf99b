"""Work in a thread beside the main one."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def in_background(function: Callable[[], Result]) -> Future[Result]:
    """Call a function in a thread; the future has what it returns or raises.

    The process does not wait for the thread when it exits. If the handler of a signal raises while the main thread
    imports a module, that thread may never release Python's import lock, and another thread that imports never returns.
    """
    future = Future[Result]()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future
