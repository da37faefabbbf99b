"""Commands on the login node of the test cluster: submit jobs, query their state, wait for them."""

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from slurm_cluster.hosts import job_environment
from slurm_cluster.namespaces import Namespaces, run
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until

FIELDS = ("JobIDRaw", "JobName", "Partition", "State", "ExitCode", "NodeList", "ElapsedRaw", "AllocTRES", "WorkDir")
UNFINISHED = frozenset({"PENDING", "CONFIGURING", "RUNNING", "REQUEUED", "COMPLETING", "SUSPENDED"})


@dataclass(frozen=True)
class Job:
    """A job in the accounting, as reported by sacct."""

    id: int
    name: str
    partition: str
    state: str  # one word: "CANCELLED by 0" becomes CANCELLED
    exit_code: str  # "<status>:<signal>"
    hosts: str  # in Slurm's notation: "n[1-2]"
    elapsed_seconds: int
    allocated: Mapping[str, str]  # {"cpu": "2", "gres/gpu": "4", "mem": "2000M", "node": "2", ...}
    folder: str  # in which it was submitted

    @classmethod
    def parse(cls, line: str) -> Self:
        """The job in one line of `sacct --parsable2` with FIELDS."""
        number, name, partition, state, exit_code, hosts, elapsed, allocated, folder = line.split("|", 8)
        return cls(
            id=int(number),
            name=name,
            partition=partition,
            state=state.split()[0],
            exit_code=exit_code,
            hosts=hosts,
            elapsed_seconds=int(elapsed),
            allocated=dict(item.split("=", 1) for item in allocated.split(",") if item),
            folder=folder,
        )


class Client:
    """Runs commands on the head node of a cluster."""

    spaces: Namespaces | None = None

    @property
    def head(self) -> Namespaces:
        """The namespaces of the head node; raises RuntimeError if the cluster is not up."""
        if self.spaces is None:
            raise RuntimeError("the cluster is not up; call up() or attach() first")
        return self.spaces

    def command(self, argv: Sequence[str], *, cwd: Path | str | None = None) -> list[str]:
        """The command line that runs argv on the head node; for subprocess.Popen, with env=job_environment().

        The child process becomes the command, so that signals sent to the child reach it.
        """
        return self.head.client_command(argv, cwd=cwd)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float = PATIENCE_SECONDS,
        check: bool = True,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run argv on the head node in the caller's folder and environment, with `env` added; capture its output.

        Raises CommandFailed, with the last lines of the output, on a non-zero exit code if check is set.
        """
        return run(
            self.command(argv, cwd=cwd),
            shown=shlex.join(argv),
            timeout_seconds=timeout_seconds,
            check=check,
            env=job_environment(env),
            stdin=stdin,
        )

    def submit(self, script: str, *options: str, cwd: Path | str | None = None) -> int:
        """Sbatch a shell script's lines; returns the job's id. Its output goes to slurm-<id>.out in cwd."""
        text = f"#!/bin/bash\nset -eu\n{script}\n"
        return int(self.run(["sbatch", "--parsable", *options], cwd=cwd, stdin=text).stdout.split(";")[0])

    def jobs(self, *ids: int, first: int = 1) -> list[Job]:
        """These jobs, or all from this id on, as slurmctld knows them now.

        What slurmctld has not yet sent to the accounting is waited for. Without ids, sacct would list a job only when
        its record is complete, up to 5 s after its start, also if it has ended since.
        """
        wanted = ids or range(first, self.next_job_id())
        wait_until(self._accounting_is_current, what="the accounting to be current", poll_seconds=0.1)
        which = f"--jobs={','.join(map(str, wanted))}"
        options = ["--allocations", "--noheader", "--parsable2", f"--format={','.join(FIELDS)}"]
        return [Job.parse(line) for line in self.run(["sacct", *options, which]).stdout.splitlines()] if wanted else []

    def next_job_id(self) -> int:
        """The id of the job that is submitted next."""
        shown = self.run(["scontrol", "show", "config"]).stdout
        return next(int(line.split("=")[1]) for line in shown.splitlines() if line.startswith("NEXT_JOB_ID"))

    def _accounting_is_current(self) -> bool:
        return bool(re.search(r"^DBD Agent queue size:\s*0$", self.run(["sdiag"]).stdout, re.MULTILINE))

    def wait_for_job(self, job_id: int, *, state: str = "", timeout_seconds: float = PATIENCE_SECONDS) -> Job:
        """Wait until the job is in this state (by default: has ended) and return it.

        The accounting records the end of a job first: its hosts and allocation may change for another second.
        """

        def job_in_state() -> Job | None:
            found = self.jobs(job_id)
            arrived = found and (found[0].state == state if state else found[0].state not in UNFINISHED)
            return found[0] if arrived else None

        what = f"job {job_id} to {f'be {state}' if state else 'end'}"
        return wait_until(job_in_state, timeout_seconds=timeout_seconds, what=what, poll_seconds=0.2)

    def wait_until_out_of_queue(self, job_id: int, *, timeout_seconds: float = PATIENCE_SECONDS) -> str:
        """Wait until the job has ended and return its final state, as recorded by slurmctld.

        For a job that lost a host, the accounting of Slurm 22.05 reports RESIZING forever.
        """

        def state() -> str:
            shown = self.run(["scontrol", "show", "job", "--oneliner", str(job_id)]).stdout
            found = re.search(r"JobState=(\w+)", shown)
            return found[1] if found and found[1] not in UNFINISHED else ""

        return wait_until(state, timeout_seconds=timeout_seconds, what=f"job {job_id} to end", poll_seconds=0.2)

    def cancel_all_jobs(self, *, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Cancel every job and wait until the queue is empty."""

        def queue_is_empty() -> bool:
            jobs = self.run(["squeue", "--noheader", "--format=%A"]).stdout.split()
            if jobs:
                self.run(["scancel", *jobs], check=False)  # one may end meanwhile
            return not jobs

        wait_until(queue_is_empty, timeout_seconds=timeout_seconds, what="the queue to be empty", poll_seconds=0.2)

    def gpus_allocated(self) -> int:
        """The number of GPUs that are allocated to jobs, over all hosts."""
        nodes = self.run(["scontrol", "show", "nodes", "--details", "--oneliner"]).stdout
        return sum(int(count) for count in re.findall(r"GresUsed=gpu:[^:]+:(\d+)", nodes))

    def set_host_down(self, host: str) -> None:
        """Set a host down: its jobs end with NODE_FAIL. Slurm does it SlurmdTimeout (30 s) after a host went silent."""
        self.run(["scontrol", "update", f"nodename={host}", "state=down", "reason=test"])

    def host_states(self) -> dict[str, str]:
        """The state of each host in Slurm, such as {"n1": "idle", "n2": "down*"}."""
        lines = self.run(["sinfo", "--Node", "--noheader", "--format=%N %T"]).stdout.splitlines()
        return dict(line.split() for line in lines)
