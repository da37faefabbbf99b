"""What a user does on a login node of the test cluster: run commands, submit jobs, ask for their state."""

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

SACCT_FIELDS = ("JobIDRaw", "JobName", "Partition", "State", "ExitCode", "NodeList", "ElapsedRaw", "AllocTRES")
UNFINISHED = frozenset({"PENDING", "CONFIGURING", "RUNNING", "REQUEUED", "COMPLETING", "SUSPENDED"})


@dataclass(frozen=True)
class Job:
    """An allocation, as sacct tells it."""

    id: int
    name: str
    partition: str
    state: str  # one word: "CANCELLED by 0" is CANCELLED
    exit_code: str  # "<status>:<signal>"
    hosts: str  # as Slurm writes it: "n[1-2]"
    elapsed_seconds: int
    allocated: Mapping[str, str]  # {"cpu": "2", "gres/gpu": "4", "mem": "2000M", "node": "2", ...}

    @classmethod
    def parse(cls, line: str) -> Self:
        """The job in one line of `sacct --parsable2` with SACCT_FIELDS."""
        number, name, partition, state, exit_code, hosts, elapsed, allocated = line.split("|")
        return cls(
            id=int(number),
            name=name,
            partition=partition,
            state=state.split()[0],
            exit_code=exit_code,
            hosts=hosts,
            elapsed_seconds=int(elapsed),
            allocated=dict(item.split("=", 1) for item in allocated.split(",") if item),
        )


class Client:
    """Commands on the head of a cluster."""

    spaces: Namespaces | None = None

    @property
    def head(self) -> Namespaces:
        """The namespaces of the head of a cluster that is up."""
        if self.spaces is None:
            raise RuntimeError("the cluster is not up; call up() or attach() first")
        return self.spaces

    def command(self, argv: Sequence[str], *, cwd: Path | str | None = None) -> list[str]:
        """The command line (for subprocess.Popen, with env=job_environment()) that runs argv on the head.

        The child is the command itself: a signal sent to it reaches the command, as fault tests need it.
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
        """Run argv on the head in the caller's folder and environment, with `env` added; output is captured.

        Raises CommandFailed, with the last lines of the output, if it exits non-zero and check is set.
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

    def jobs(self, *ids: int) -> list[Job]:
        """These jobs, or all of the last day, in the accounting; a job appears there a moment after its submission."""
        which = [f"--jobs={','.join(map(str, ids))}"] if ids else ["--starttime=now-1days", "--allusers"]
        options = ["--allocations", "--noheader", "--parsable2", f"--format={','.join(SACCT_FIELDS)}"]
        return [Job.parse(line) for line in self.run(["sacct", *options, *which]).stdout.splitlines()]

    def wait_for_job(self, job_id: int, *, state: str = "", timeout_seconds: float = PATIENCE_SECONDS) -> Job:
        """The job once it is in this state, or has ended where none is given.

        The accounting gets a job's end before the rest: for a second more, hosts and allocation may not be final.
        """

        def there() -> Job | None:
            found = self.jobs(job_id)
            arrived = found and (found[0].state == state if state else found[0].state not in UNFINISHED)
            return found[0] if arrived else None

        what = f"job {job_id} to be {state or 'at its end'}"
        return wait_until(there, timeout_seconds=timeout_seconds, what=what, poll_seconds=0.2)

    def wait_until_out_of_queue(self, job_id: int, *, timeout_seconds: float = PATIENCE_SECONDS) -> str:
        """The state in which the controller saw a job end, once it has; right where the accounting is not.

        Of a job that has lost a host, the accounting of Slurm 22.05 says RESIZING for good.
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
        """The GPUs that jobs hold at this moment, over all hosts."""
        nodes = self.run(["scontrol", "show", "nodes", "--oneliner"]).stdout
        return sum(int(count) for count in re.findall(r"AllocTRES=\S*gres/gpu=(\d+)", nodes))

    def give_up_host(self, host: str) -> None:
        """What Slurm does by itself SlurmdTimeout (30 s) after a host falls silent: its jobs end with NODE_FAIL."""
        self.run(["scontrol", "update", f"nodename={host}", "state=down", "reason=test"])

    def host_states(self) -> dict[str, str]:
        """Slurm's state of each host, such as {"n1": "idle", "n2": "down*"}."""
        lines = self.run(["sinfo", "--Node", "--noheader", "--format=%N %T"]).stdout.splitlines()
        return dict(line.split() for line in lines)
