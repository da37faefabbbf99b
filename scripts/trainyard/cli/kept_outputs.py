"""Keeps what another Snakemake in the same folder has made meanwhile.

Snakemake removes the outputs of a job before it runs the job, and again if the job fails. Whether the job must run was
decided earlier: since then, another Snakemake may have made these outputs, and may be reading them. Snakemake's own
answer, a lock of the folder, would refuse the second one, and outlive one that is killed.

So a file is removed only if it is still the one that was there when this Snakemake decided. Trainyard's programs
replace their outputs atomically: a file that has changed since is complete, whoever wrote it.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from snakemake.jobs import Job

Version = tuple[int, int]  # of a file: inode, and time of its last change in nanoseconds

_decided_on: dict[str, Version | None] = {}  # by output: the version that is out of date; None if there was none
_remove_all = Job.remove_existing_output
_clean_up = Job.cleanup


def keep_outputs_of_others(dag: Any) -> None:
    """Let Snakemake remove no output of the jobs in its `dag` that has changed since the call."""
    for job in dag.needrun_jobs():
        missing = dag.reason(job).missing_output
        for output in job.output:
            _decided_on[str(output)] = None if output in missing else _version(output)
    Job.remove_existing_output = _remove_outdated
    Job.cleanup = _clean_up_outdated


def _version(path: Any) -> Version | None:
    try:
        status = Path(str(path)).stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


async def _remove_outdated(job: Any) -> None:
    """As Snakemake's method: removes the outputs and logs of a job that is about to run."""
    if not _is_decided(job):
        await _remove_all(job)
        return
    await _remove_unchanged(job.output)
    for log in job.log:
        await log.remove(remove_non_empty_dir=False)


async def _clean_up_outdated(job: Any, skip_outputs: Collection[Any]) -> None:
    """As Snakemake's method: removes the outputs of a job that has failed."""
    if not _is_decided(job):
        await _clean_up(job, skip_outputs)
        return
    await _remove_unchanged([output for output in job.output if output not in skip_outputs])


def _is_decided(job: Any) -> bool:
    return all(str(output) in _decided_on for output in job.output)


async def _remove_unchanged(outputs: Collection[Any]) -> None:
    for output in outputs:
        version = _version(output)
        if version is not None and version == _decided_on[str(output)]:
            await output.remove(remove_non_empty_dir=False)
