"""The driver's request to all workers, on all nodes, to end what they run: a key in Ray's key-value store."""

from typing import Final

from ray.experimental import internal_kv

_KEY: Final = b"trainyard-stop"


def make() -> None:
    """Ask all workers to stop. Called by the driver."""
    internal_kv._internal_kv_put(_KEY, b"1")


def is_made() -> bool:
    """Whether the driver has asked. Called by a worker, in any of its threads."""
    return internal_kv._internal_kv_exists(_KEY)
