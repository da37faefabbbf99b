"""What the effect check has each Python of a program run at its start, as the module `sitecustomize`.

It seeds the random numbers that the program may not seed itself, and records the parameters after steps of torch's
optimizers. It runs in the environment of the program: nothing of Trainyard can be imported here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import secrets
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

SEED = 20011  # no program's own
EACH_UNTIL = 16  # steps; then each step that is a power of two
FOLDER = Path(__file__).resolve().parent
RECORD = FOLDER / "steps.jsonl"
steps = 0


def seed_numpy(module: ModuleType) -> None:
    """Seed the legacy generator of NumPy."""
    module.seed(SEED)


def follow_torch(module: ModuleType) -> None:
    """Seed torch, and have the first rank record the steps of all optimizers."""
    module.manual_seed(SEED)
    if os.environ.get("RANK", "0") == "0":
        RECORD.touch()
        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(record_step)


def record_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Append the norm of all parameters of an optimizer, unless this is another rank than the first."""
    global steps
    steps += 1
    if steps > EACH_UNTIL and steps & (steps - 1):
        return
    torch = sys.modules["torch"]
    with suppress(Exception):  # as of a kind of tensor without a norm
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        group = torch.distributed  # of processes that a program has started itself, which have no RANK
        if group.is_available() and group.is_initialized() and group.get_rank():
            return
        with torch.no_grad():
            total = 0.0
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                    total += torch.linalg.vector_norm(own, dtype=torch.float64).item()
        with RECORD.open("a") as file:
            file.write(json.dumps([os.getpid(), steps, total]) + "\n")


class AfterImport:
    """Calls functions once modules have been imported."""

    actions = {"numpy.random": seed_numpy, "torch": follow_torch}

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module as Python finds it, whose execution is followed by its function."""
        action = cls.actions.get(name)  # a program may also only look whether there is such a module
        spec = PathFinder.find_spec(name, path, target) if action else None
        if action and spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                with suppress(Exception):  # of an old version: the program must not fail of it
                    action(module)

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec


if __name__ == "sitecustomize":
    random.seed(SEED)
    # Of which NumPy makes the seeds that nobody gives.
    secrets.randbits = random.Random(SEED).getrandbits  # type: ignore[assignment]
    sys.meta_path.insert(0, AfterImport)
    own = PathFinder.find_spec("sitecustomize", [each for each in sys.path if Path(each).resolve() != FOLDER])
    if own and own.loader:  # the one of the environment, which this one hides
        own.loader.exec_module(importlib.util.module_from_spec(own))
