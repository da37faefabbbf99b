"""One run: a participant does a work on the test cluster, and its columns are measured."""

import itertools
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_cluster.cluster import Cluster
from slurm_cluster.hosts import job_environment
from slurm_cluster.waiting import wait_until

from peers.columns import Attempt, attempts_of, columns
from peers.participants import HERE, Peer, fill_in
from peers.works import HOSTS, Work

ROOT = HERE.parents[1]
CROWD = "crowd"  # the name of the jobs of others
RESUMES = 3  # at most this often, a person types the commands again
POLL_SECONDS = 0.1
QUEUE_POLL_SECONDS = 1.0  # squeue takes the controller's time, and the CPUs'


class OverLimit(Exception):
    """The run took longer than its limit."""


@dataclass
class Run:
    """A run in its folder, which all hosts see."""

    cluster: Cluster
    peer: Peer
    work: Work
    repeat: int
    folder: Path
    patience: float = 1.0  # factor of the limit, for slow machines
    first_job: int = 0
    typed: int = 0  # commands of a person, after the submission
    submitted: float = 0.0
    killed: float | None = None
    process: "subprocess.Popen[bytes] | None" = None
    notes: list[str] = field(default_factory=list)

    def measure(self) -> dict[str, Any]:
        """Do the work, and return the columns; `reason` says why it was not completed."""
        self._prepare()
        with cluster_for(self.cluster, self.work, self.repeat):
            self.first_job = self.cluster.next_job_id()
            reason = ""
            try:
                self._do()
            except OverLimit as error:
                reason = str(error)
            finally:
                over = time.time()
                self._end()
            gpu_seconds = self._gpu_seconds()
            log, begun = self._log(), self.submitted
            found = columns(self.work, log, submitted=begun, over=over, gpu_seconds=gpu_seconds, kill=self.killed)
        finished, trials = int(found["trials_finished"] or 0), len(self.work.seconds)
        if reason and finished == trials:  # only its program went on, for example until its next look at the queue
            self.notes.append(reason)
            reason, found["over_seconds"] = "", None
        elif finished < trials:
            reason = reason or "ended too early"
            reason += f": {finished} of {trials} trials finished"
        return {
            **found,
            "lines": self.peer.lines(self.work),
            "person_steps": self.typed if self.work.has_trouble else None,
            "reason": reason,
            "notes": self.notes,
        }

    def version(self) -> str:
        """The first line that the participant's version command prints."""
        command = ["bash", "-c", f"PATH={self._path()}; {self.peer.version}"]
        return (self.cluster.run(command, check=False).stdout.strip().splitlines() or ["unknown"])[0]

    # Parts of a run

    def _prepare(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "done").mkdir(parents=True)
        (self.folder / "trials.txt").write_text(self.work.table())
        for name in ("trial.sh", "trial.py"):
            shutil.copy(HERE / name, self.folder)
        if self.work.is_real:
            text = (HERE / "train.py").read_text()
            (self.folder / "train.py").write_text(f"#!{ROOT}/.venv/bin/python\n{text}")
            (self.folder / "train.py").chmod(0o755)
        if self.work.has_trouble:
            (self.folder / f"crash-{self.work.crashing_trial}").touch()
        for file in self.peer.files(self.work):
            shutil.copy(file, self.folder)

    def _do(self) -> None:
        """Submit, kill and resume if that is the work, until all has ended."""
        self.submitted = time.time()
        self._type(self.peer.submit)
        if self.work.has_trouble and (first := self._first_attempt()):
            self._wait_for(lambda: time.time() > first.start + self.work.bound_seconds / 2, what="half time")
            self.killed = time.time()
            self._kill()
            self._resume()
        self._wait_until_over()
        while self.killed and not self._is_complete() and self.typed < RESUMES * len(self.peer.resume):
            self._resume()
            self._wait_until_over()

    def _first_attempt(self) -> Attempt | None:
        """The first attempt, as soon as there is one; None if all has ended without."""
        polls = itertools.count()

        def has_begun_or_ended() -> bool:
            looks = next(polls) % round(QUEUE_POLL_SECONDS / POLL_SECONDS) == 0
            return bool(attempts_of(self._log())) or (looks and self._has_ended())

        self._wait_for(has_begun_or_ended, what="a first trial")
        return next(iter(attempts_of(self._log())), None)

    def _type(self, commands: tuple[str, ...]) -> None:
        """Start commands as a user on the login node does; their output goes to output.txt."""
        environment = {"PATH": self._path(), "TRIAL_LOG": str(self.folder / "trials.log")}
        script = "\n".join(["set -e", *fill_in(commands, self.work)])
        with (self.folder / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                self.cluster.command(["bash", "-c", script], cwd=self.folder),
                env=job_environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _path(self) -> str:
        programs = [each for each in (self.peer.programs, ".venv/bin") if each]
        return ":".join([*(str(ROOT / each) for each in programs), os.environ["PATH"]])

    def _resume(self) -> None:
        self.typed += len(self.peer.resume)
        self._type(self.peer.resume)

    def _kill(self) -> None:
        """End everything of the participant at once: its program on the login node, and all its jobs."""
        self._kill_process()
        self.cluster.run(["scancel", "--state=PENDING", "--user=root"], check=False)
        jobs = self._jobs_in_queue()
        if jobs:
            self.cluster.run(["scancel", "--full", "--signal=KILL", *jobs], check=False)
            self.cluster.run(["scancel", *jobs], check=False)
        self._wait_for(lambda: not self._jobs_in_queue(), what="its jobs to end", poll_seconds=0.5)
        self._kill_left_processes()

    def _kill_process(self) -> None:
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _wait_until_over(self) -> None:
        """Until the commands have returned and no job is in the queue."""
        assert self.process
        self._wait_for(lambda: self.process is None or self.process.poll() is not None, what="the commands")
        if self.process.returncode:
            self.notes.append(f"a command exited {self.process.returncode}")
        self._wait_for(self._has_ended, what="its jobs", poll_seconds=QUEUE_POLL_SECONDS)

    def _wait_for(self, condition: Any, *, what: str, poll_seconds: float = POLL_SECONDS) -> Any:
        limit = self.patience * self.work.limit_seconds
        left = limit - (time.time() - self.submitted)
        try:
            return wait_until(condition, what=what, timeout_seconds=max(left, 0), poll_seconds=poll_seconds)
        except TimeoutError:
            raise OverLimit(f"not over after {limit:.0f} s") from None

    def _end(self) -> None:
        """Leave nothing of the run."""
        self._kill_process()
        self.cluster.cancel_all_jobs()
        if left := self._kill_left_processes():
            self.notes.append(f"left {left} processes on the hosts")

    def _kill_left_processes(self) -> int:
        """Kill what has left the process groups of its jobs, as cgroups do on most clusters; returns how many."""
        left = [process for processes in self.cluster.processes_left().values() for process in processes]
        for process in left:
            process.signal(signal.SIGKILL)
        return len(left)

    # What is known of a run

    def _log(self) -> str:
        if self.peer.log:
            return self.cluster.run(["bash", "-c", self.peer.log], cwd=self.folder, check=False).stdout
        log = self.folder / "trials.log"
        return log.read_text() if log.exists() else ""

    def _is_complete(self) -> bool:
        return len(list((self.folder / "done").iterdir())) == len(self.work.seconds)

    def _has_ended(self) -> bool:
        """Whether the commands have returned, and no job is in the queue."""
        return self.process is not None and self.process.poll() is not None and not self._jobs_in_queue()

    def _jobs_in_queue(self) -> list[str]:
        lines = self.cluster.run(["squeue", "--noheader", "--format=%A %j"]).stdout.splitlines()
        return sorted({job for job, name in (line.split(maxsplit=1) for line in lines) if name != CROWD})

    def _gpu_seconds(self) -> float:
        """GPU-seconds that Slurm allocated to the jobs of the run; sacct counts whole seconds of each job."""
        jobs = self.cluster.jobs(first=self.first_job)
        return float(sum(job.elapsed_seconds * int(job.allocated.get("gres/gpu", 0)) for job in jobs))


@contextmanager
def cluster_for(cluster: Cluster, work: Work, repeat: int) -> Iterator[None]:
    """The cluster as a work needs it: hosts that it does not use are drained, or half of all GPUs are taken."""
    restore(cluster)  # a benchmark that was killed may have left it otherwise
    try:
        if work.is_crowded:
            with crowd(cluster, work, repeat):
                yield
        else:
            if unused := list(cluster.hosts)[work.nodes :]:
                set_state(cluster, unused, "drain")
            yield
    finally:
        restore(cluster)


def restore(cluster: Cluster) -> None:
    """Leave no job, and all hosts idle."""
    cluster.cancel_all_jobs()
    if drained := [host for host, state in cluster.host_states().items() if "drain" in state]:
        set_state(cluster, drained, "resume")
    wait_until(lambda: set(cluster.host_states().values()) == {"idle"}, what="idle hosts", poll_seconds=0.2)


def set_state(cluster: Cluster, hosts: list[str], state: str) -> None:
    """Drain hosts, or resume them."""
    cluster.run(["scontrol", "update", f"nodename={','.join(hosts)}", f"state={state}", "reason=benchmark"])


@contextmanager
def crowd(cluster: Cluster, work: Work, repeat: int) -> Iterator[None]:
    """One job of others on one GPU of each host. Once all run, they end after times that depend on the repeat only."""
    rng = random.Random(repeat)
    with tempfile.TemporaryDirectory(dir=cluster.shared) as folder:
        start = Path(folder) / "start"
        for host in list(cluster.hosts)[:HOSTS]:
            seconds = rng.uniform(0.2, 2.0) * work.bound_seconds
            script = f"until [ -e {start} ]; do sleep 0.05; done\nsleep {seconds:.1f}"
            cluster.submit(script, f"--job-name={CROWD}", f"--nodelist={host}", "--gres=gpu:1", cwd="/tmp")
        wait_until(lambda: cluster.gpus_allocated() == HOSTS, what="the jobs of others", poll_seconds=0.2)
        start.touch()
        yield
