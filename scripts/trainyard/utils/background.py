"""Work in a thread beside the main one."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def in_background(function: Callable[[], Result]) -> Future[Result]:
    """Call a function in a thread; the future has what it returns or raises.

    The end of this process does not wait for it. If a signal ends the main thread while it imports a module, it may
    hold the import lock until then, and a thread that imports would wait for ever.
    """
    future = Future[Result]()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future
