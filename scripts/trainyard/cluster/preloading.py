"""Modules that this process has imported ahead of their use, and how long that took."""

import contextlib
import importlib
import time
from collections.abc import Sequence

_seconds: dict[str, float] = {}


def preload(modules: Sequence[str]) -> None:
    """Import modules. If one cannot be imported, whoever uses it reports the reason."""
    for module in modules:
        began = time.perf_counter()
        with contextlib.suppress(Exception):
            importlib.import_module(module)
        _seconds[module] = time.perf_counter() - began


def preload_seconds(modules: Sequence[str]) -> float:
    """The time in which these modules were preloaded in this process, or in the one that it was forked from."""
    return sum(_seconds.get(module, 0.0) for module in modules)
