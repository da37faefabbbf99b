"""The options of a job's steps, and how a rank that torchrun has started ends."""

import atexit
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn


def srun_options(nodes: Sequence[str], *, tasks_per_node: int = 1, cpus_per_task: int) -> list[str]:
    """Options for a step on these nodes of the job, whose tasks may run on all CPUs of the step."""
    tasks = len(nodes) * tasks_per_node
    counts = ["--nodes", str(len(nodes)), "--ntasks", str(tasks), "--ntasks-per-node", str(tasks_per_node)]
    return [
        "--overlap",  # the program that starts srun may run in a step that holds the resources of its node
        "--mem=0",  # all memory of the job; otherwise a step within a step that holds the memory cannot start
        "--export=ALL",  # the job may have been submitted without its environment
        *counts,
        "--nodelist",
        ",".join(nodes),
        "--cpus-per-task",  # srun does not inherit it from sbatch, and a task has one CPU without it
        str(cpus_per_task),
        "--cpu-bind=none",  # otherwise a site may bind all processes of a task to one CPU
    ]


def is_rank() -> bool:
    """Whether torchrun started this process. A job may inherit RANK alone from another launcher, as from Kubeflow."""
    return {"RANK", "TORCHELASTIC_RUN_ID"} <= os.environ.keys()


def end_rank(code: int) -> NoReturn:
    """Exit a rank after its threads and exit handlers, without finalizing the interpreter, which could abort it.

    After a collective has completed, a thread of gloo's ProcessGroup holds its tensors for a moment, and needs the GIL
    to release them. If the interpreter is finalized while the thread waits for the GIL, Python terminates the thread
    inside that C++ destructor, and with it the process: SIGABRT, "terminate called without an active exception". torch
    joins the thread when the last reference to the group is released, but DDP models, also in users' code, hold
    references. multiprocessing exits its child processes in the same way.
    """
    try:
        with suppress(Exception):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(code)
