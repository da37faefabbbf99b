"""Environment variables of this process, which the programs that it starts inherit."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

Variables = dict[str, str | None]  # None for those that are unset
COMPILE_THREADS: Final = "TORCHINDUCTOR_COMPILE_THREADS"  # by default, one per CPU of the node, for each rank and trial


@contextmanager
def environment_variables(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables within the block, or remove those that are None."""
    before = {name: os.environ.get(name) for name in variables}
    set_variables(variables)
    try:
        yield
    finally:
        set_variables(before)


def changed_environment(environment: Mapping[str, str], variables: Mapping[str, str | None]) -> dict[str, str]:
    """An environment after its variables were set, or removed where they are None."""
    return {name: value for name, value in {**environment, **variables}.items() if value is not None}


def set_variables(variables: Mapping[str, str | None]) -> None:
    """Set environment variables, or remove those that are None."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
