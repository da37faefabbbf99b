"""What this process is in a job: a rank, a task of a step; and the steps that it starts.

With proctrack/cgroup, Slurm sends SIGTERM to the first process of each step only. In a job of the workflow, that is the
batch script, at whose death Slurm kills everything that it started, or Snakemake, which does not forward it to its
rule. A program that must receive the signals of its job gets a step of its own.
"""

import atexit
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

from trainyard.cluster import host, job_script, slurm_allocation, slurm_queries
from trainyard.utils.errors import UserError

START_SECONDS: Final = 60  # for a step to start
log = logging.getLogger(__name__)


def become_task() -> None:
    """In a Slurm job whose signals do not reach this program: run it again as the first process of a step, by srun.

    This process waits for the end of the step. If srun cannot start one, the program runs here, without notice of a
    preemption.
    """
    if not _is_missed_by_signals():
        return
    if _is_task():
        if given := slurm_allocation.current_allocation():
            # srun names the node of its step there, and another srun would see no other node.
            os.environ["SLURM_JOB_NODELIST"] = ",".join(given.nodes)
        return
    try:
        given = slurm_allocation.current_allocation()
        assert given is not None
        here = [name for name in given.nodes if host.short_name(name) == host.node_name()]
        # One task on this node, with all resources of the job there.
        options = srun_options((here or given.nodes)[:1], cpus_per_task=given.cpus_per_node)
        step = ["srun", *options, f"--immediate={START_SECONDS}", "--input=none", "--quiet", "--disable-status"]
        probe = subprocess.run([*step, "true"], text=True, capture_output=True, timeout=2 * START_SECONDS)
        if probe.returncode == 0:
            task = [sys.executable, job_script.__file__, job_script.TASK, job_script.ENDED, *sys.argv]
            sys.exit(job_script.run_step([*step, *task], os.environ, forwards=True))
        reason = probe.stderr.strip()
    except (OSError, subprocess.SubprocessError, UserError) as error:
        reason = str(error)
    log.warning("a preemption will come without notice, since srun cannot start a step in this job: %s", reason)


def needs_step() -> bool:
    """Whether `become_task` would start a step."""
    return _is_missed_by_signals() and not _is_task()


def _is_missed_by_signals() -> bool:
    """Whether this is a process of a Slurm job whose signals go to the first process of each step only."""
    return "SLURM_JOB_ID" in os.environ and not signals_reach_all_processes()


def _is_task() -> bool:
    """Whether this is the first process of a step; also where /proc hides the processes of others (hidepid)."""
    with suppress(OSError):
        return Path(f"/proc/{os.getppid()}/comm").read_text().strip() == "slurmstepd"
    return os.environ.get(job_script.TASK_PID) == str(os.getpid())


@cache
def signals_reach_all_processes() -> bool:
    """Whether the signals of this Slurm job go to all of its processes, as far as Slurm answers."""
    try:
        settings = slurm_queries.controller_settings()
    except UserError:  # it restarts; a step is right in any case
        return False
    forwards = settings.get("SignalChildrenProcesses", "no").lower() == "yes"
    return forwards or settings.get("ProctrackType") != "proctrack/cgroup"


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
