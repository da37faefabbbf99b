"""The options of srun for steps that Trainyard starts within its own job."""

from collections.abc import Sequence


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
