"""Environment variables of this process, which the programs that it starts inherit."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

COMPILE_THREADS: Final = "TORCHINDUCTOR_COMPILE_THREADS"  # by default, one per CPU of the node, for each rank and trial


@contextmanager
def environment_variables(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables within the block, or remove those that are None."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
