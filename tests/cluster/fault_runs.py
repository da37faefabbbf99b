"""A small sweep or training on the test cluster, started by `snakemake` as a user does, into which a fault is injected.

Both stop at a gate once a part of the work is finished, so that a fault never comes too early or too late.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from project import PLACE_IN_ORDER, ROOT, TINY, stage_tiny
from slurm_cluster.cluster import Cluster
from slurm_cluster.hosts import Host, job_environment
from slurm_cluster.namespaces import Process, tail
from slurm_cluster.waiting import wait_until
from submitting import IMPATIENT
from sweep_journals import attempts_in, read_records
from trainyard.planning.attempts import Attempt
from trainyard.planning.journal import journal_files

SUBMITTED = re.compile(r"submitted with SLURM jobid (\d+)")
RAN = {"RUNNING", "COMPLETING"}  # states of a job that has started and not ended
FREE = 2  # trials that may finish before the fault

# The trials. All but the first FREE that start wait for the file `open`; what they report depends on `n` only. A file
# `trouble-<n>` holds what trial n then runs once.
TRIALS = (
    PLACE_IN_ORDER
    + """
import builtins, ctypes, os, resource, signal, sys, time

def results(n):
    state = n
    for epoch in range(3):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state / 2**64

def run(config, context):
    (HERE / f"trial-{config['n']}").write_text(f"{os.uname().nodename} {os.getpid()}")
    place = place_in_order()
    broken = HERE / f"broken-{os.uname().nodename}-{os.environ['CUDA_VISIBLE_DEVICES']}"
    while place >= FREE and not (HERE / "open").exists():
        time.sleep(0.05)
    if broken.exists():
        raise RuntimeError("planned trouble")
    assert not hasattr(builtins, "poison"), "this process ran a trial that failed"
    trouble = HERE / f"trouble-{config['n']}"
    if trouble.exists():
        code = trouble.read_text()
        trouble.unlink()
        exec(code, globals() | {"config": config})
    for value in results(config["n"]):
        context.report(val_accuracy=value * config.get("factor", 1))
    time.sleep(config["lasts"])
""".replace("FREE", str(FREE))
)

# The model of a training. Rank 0 waits for the file `open` once there is a checkpoint of epoch 1, and the other ranks
# wait for it in their next all-reduce. A file `trouble-<rank>` holds what this rank then runs once.
MODEL = """
import os, signal, time
from pathlib import Path
from trainyard.training.models import SmallConvNet

HERE, RANK = Path(__file__).parent, os.environ.get("RANK")

class Gated(SmallConvNet):
    def forward(self, images):
        if RANK == "0" and self.training and next(HERE.glob("results/scaling/s/2x1/checkpoints/*/epoch-*"), None):
            (HERE / "waiting").touch()
            while not (HERE / "open").exists():
                time.sleep(0.05)
        trouble, scores = HERE / f"trouble-{RANK}", super().forward(images)
        if self.training and trouble.exists():
            code = trouble.read_text()
            trouble.unlink()
            found = {}
            exec(code, {"os": os, "signal": signal, "time": time}, found)
            scores = scores * found.get("factor", 1)
        return scores

def build(*, channels, classes):
    (HERE / f"rank-{RANK}").write_text(f"{os.uname().nodename} {os.getpid()}")
    return Gated(channels=channels, classes=classes, width=4)
"""


class Run:
    """A project folder on the shared file system, and the `snakemake` commands that were started in it.

    `folder` is its path on the cluster, `seen` the same for this process.
    """

    target, code = "", ("", "")  # the last file of the work; the name and the text of the user's module
    rules: tuple[str, ...] = ()

    def __init__(self, cluster: Cluster, folder: Path, *, resources: Sequence[str] = (), nodes: int = 1) -> None:
        self.cluster, self.folder, self.resources, self.nodes = cluster, folder, tuple(resources), nodes
        self.commands: list[subprocess.Popen[bytes]] = []

    @property
    def seen(self) -> Path:
        """The folder as this process sees it: a host may mount file systems that the machine does not have."""
        return self.cluster.head.path(self.folder)

    def config(self) -> dict[str, Any]:
        raise NotImplementedError

    def write(self) -> None:
        """Write the files of the user."""
        self.seen.mkdir(parents=True, exist_ok=True)
        name, text = self.code
        (self.seen / name).write_text(text)
        (self.seen / "config.yaml").write_text(yaml.safe_dump(self.config()))

    # Commands

    def start(self, *options: str, minutes: int = 30) -> None:
        """Start the `snakemake` command, each time the same one but for `options` and the walltime.

        A predicted walltime may be too short on a machine that becomes busy.
        """
        program = [sys.executable, "-c", IMPATIENT, "--snakefile", str(ROOT / "Snakefile")]
        common = ["--profile", str(ROOT / "profiles/slurm"), "--configfile", "config.yaml", "--latency-wait", "5"]
        common += ["--slurm-init-seconds-before-status-checks", "1"]
        set_resources = [f"{rule}:{item}" for rule in self.rules for item in (f"runtime={minutes}", *self.resources)]
        common += ["--set-resources", *set_resources]
        command = self.cluster.command([*program, *common, *options, "--", self.target], cwd=self.folder)
        with open(self.seen / f"snakemake-{len(self.commands)}.log", "w") as output:
            environment = job_environment({"PYTHONPATH": str(self.folder)})
            self.commands.append(
                subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            )

    def kill_snakemake(self) -> None:
        self.commands[-1].kill()
        self.commands[-1].wait()

    def wait_for_command(self) -> int:
        """The exit code of the last command."""
        return self.commands[-1].wait(timeout=900)

    def output(self) -> str:
        """The output of the commands, the jobs and the programs."""
        logs = [*self.seen.glob("snakemake-*.log"), *self.seen.glob("results/**/*.log")]
        return "\n".join(path.read_text(errors="replace") for path in logs)

    def story(self) -> str:
        """The last lines of each log, for the message of a failed test."""
        logs = [*self.seen.glob("snakemake-*.log"), *self.seen.glob("results/logs/slurm/**/*.log")]
        return "\n".join(f"--- {path.name}\n{tail(path, lines=25)}" for path in logs)

    # Jobs

    def jobs(self) -> list[int]:
        """The jobs that were submitted, in order."""
        texts = [(self.seen / f"snakemake-{number}.log").read_text() for number in range(len(self.commands))]
        return [int(job) for text in texts for job in SUBMITTED.findall(text)]

    def job_state(self, job: int) -> str:
        shown = self.cluster.run(["scontrol", "show", "job", "--oneliner", str(job)], check=False).stdout
        found = re.search(r"JobState=(\w+)", shown)
        return found[1] if found else "GONE"

    def wait_for_end_of(self, job: int, *, timeout_seconds: float = 600) -> str:
        """Wait until this job does not run any more; a requeued one is pending then."""
        wait_until(
            lambda: self.job_state(job) not in RAN,
            what=f"job {job} to end",
            poll_seconds=0.2,
            timeout_seconds=timeout_seconds,
        )
        return self.job_state(job)

    # The gate

    def open(self) -> None:
        (self.seen / "open").touch()

    # Work

    def units(self) -> dict[str, Any]:
        """The finished trials or epochs, with what they have reported."""
        raise NotImplementedError

    def is_complete(self) -> bool:
        return (self.seen / self.target).exists()

    def wait_for_progress(self) -> None:
        """Wait until a part of the work is finished, and another one runs."""
        raise NotImplementedError

    def repeated(self, before: dict[str, Any]) -> list[str]:
        """The trials or epochs that had finished and started again."""
        raise NotImplementedError

    def leftovers(self, *, except_for: Sequence[str] = ()) -> list[str]:
        """Processes, GPUs, listening ports, locks and temporary files that outlive the job, but for these patterns."""
        self.cluster.repair()
        wait_until(lambda: not self.cluster.processes_left(), what="all processes to end")
        files = [path for host in self.cluster.hosts.values() for path in host.path("/tmp").glob("ty-*")]
        files += [path for pattern in ("*.tmp", "*token*") for path in self.seen.rglob(pattern)]
        left = [
            f"{path} with {[each.name for each in path.rglob('*')]}"
            for path in files
            if ".snakemake" not in path.parts and not any(path.match(pattern) for pattern in except_for)
        ]
        left += [f"{count} GPUs" for count in [self.cluster.gpus_allocated()] if count]
        locks = [path for path in (self.seen / "results").rglob("*.lock") if is_locked(path)]
        return [*left, *map(str, locks), *listening(self.cluster)]


class Sweep(Run):
    """A sweep of six trials on two slots: two GPUs of one node, or two whole nodes, each of which is a job."""

    target, code = "results/sweeps/s/trials.csv", ("mine.py", TRIALS)
    rules = ("sweep",)
    trials, lasts = 6, 0.2  # seconds
    options: dict[str, Any] = {}

    @property
    def sweep_folder(self) -> Path:
        return self.seen / "results/sweeps/s"

    @property
    def journal(self) -> Path:
        """The journal of the last driver that has written one."""
        return max(journal_files(self.sweep_folder), key=lambda path: path.stat().st_mtime_ns)

    def config(self) -> dict[str, Any]:
        slots = {"jobs": self.nodes, "gpus_per_node": 2, "gpus_per_trial": self.nodes}
        grid = {"n": list(range(self.trials)), "lasts": [self.lasts]}
        return {"sweeps": {"s": {"function": "mine:run", "grid": grid, "slots": slots, **self.options}}}

    def attempts(self) -> list[Attempt]:
        return attempts_in(self.sweep_folder)

    def finished(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts() if attempt.outcome == "finished"]

    def running(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts() if attempt.outcome == "running"]

    def units(self) -> dict[str, Any]:
        return {attempt.trial: attempt.metrics for attempt in self.finished()}

    def is_complete(self) -> bool:
        return super().is_complete() and len(self.units()) == self.trials

    def results(self) -> dict[int, float]:
        """The result of each finished trial by its number, with all digits."""
        numbers = pd.read_csv(self.seen / self.target).set_index("trial")["n"]
        return {int(numbers[name]): metrics["val_accuracy"] for name, metrics in self.units().items()}

    def undisturbed(self) -> dict[int, float]:
        found: dict[str, Any] = {"__file__": str(self.seen / "mine.py")}
        exec(TRIALS, found)
        return {number: list(found["results"](number))[-1] for number in range(self.trials)}

    def wait_for_progress(self) -> None:
        wait_until(
            lambda: len(self.finished()) >= FREE and len(self.running()) == 2,
            what="two trials to finish and two to run",
            while_running=self.commands[-1],
        )

    def repeated(self, before: dict[str, Any]) -> list[str]:
        tries = self.attempts()
        twice = [name for name in before if sum(attempt.trial == name for attempt in tries) > 1]
        return twice + [name for name in before if [each.trial for each in self.finished()].count(name) > 1]

    # Who does what

    @property
    def session(self) -> dict[str, Any]:
        return [each for each in read_records(self.sweep_folder) if each["event"] == "session"][-1]

    @property
    def driver_host(self) -> Host:
        return self.cluster.hosts[self.session["node"]]

    @property
    def other_host(self) -> Host:
        """The host of the other job."""
        names = {attempt.location.node for attempt in self.attempts()} - {self.driver_host.name}
        return self.cluster.hosts[names.pop()]

    @cached_property
    def driver(self) -> int:
        return int(self.session["process"])

    def place_of(self, trial: Attempt) -> tuple[Host, int]:
        """The host and the PID there of the worker that runs a trial."""
        starts = [each for each in read_records(self.sweep_folder) if each["event"] == "started"]
        number = next(each for each in reversed(starts) if each["trial"] == trial.trial)["values"]["n"]
        host, process = (self.seen / f"trial-{number}").read_text().split()
        return self.cluster.hosts[host], int(process)


class FaultyTrials(Sweep):
    """A sweep with a trial for each of some pieces of code, which it runs in its first attempt, and four others."""

    options = {"timeout_minutes": 0.5, "metric": "val_accuracy"}

    def __init__(self, cluster: Cluster, folder: Path, *, codes: Sequence[str]) -> None:
        super().__init__(cluster, folder)
        self.codes, self.trials = codes, len(codes) + 4

    def write(self) -> None:
        super().write()
        for number, code in enumerate(self.codes):
            (self.seen / f"trouble-{number}").write_text(code)
        self.open()


class Training(Run):
    """A training of three epochs on one GPU of each of two hosts."""

    target, code = "results/scaling/s/2x1/summary.json", ("gated.py", MODEL)
    rules = ("train",)
    logs_before: dict[Path, str] = {}
    epoch_line = re.compile(r"Epoch \[(\d)/3\] .*Loss \(train, val\): (\S+) (\S+) ")

    def config(self) -> dict[str, Any]:
        train = {"model": "gated:build", "batch_size": 8, "epochs": 3}
        return {
            "datasets": TINY["datasets"],
            "scaling": {"s": {"dataset": "tiny", "train": train, "scales": ["2x1"], "keep_checkpoints": "all"}},
        }

    def write(self) -> None:
        super().write()
        stage_tiny(self.seen / "results")

    def logs(self) -> dict[Path, str]:
        """The output of all jobs."""
        paths = sorted(self.seen.glob("results/logs/slurm/*/*/*.log"), key=lambda path: int(path.stem))
        return {path: path.read_text(errors="replace") for path in paths}

    def units(self) -> dict[str, Any]:
        """The epochs with their losses, as in the log."""
        if not self.is_complete():
            return {
                number: losses for text in self.logs().values() for number, *losses in self.epoch_line.findall(text)
            }
        rows = pd.read_csv(self.seen / "results/scaling/s/2x1/history.csv").to_dict("records")
        return {str(row["epoch"]): [f"{row['train_loss']:.3f},", f"{row['val_loss']:.3f}"] for row in rows}

    def results(self) -> dict[int, Any]:
        history = pd.read_csv(self.seen / "results/scaling/s/2x1/history.csv", dtype=str).set_index("epoch")
        metrics = history[["lr", "train_loss", "train_accuracy", "val_loss", "val_accuracy"]].T.to_dict()
        return metrics | {"weights": weights_digest(self.checkpoints()[-1])}

    def undisturbed(self) -> dict[int, Any]:
        """The results of the same training without a fault and without Snakemake, which runs once per cluster."""
        kept = self.cluster.shared / "undisturbed"
        if not kept.exists():
            other = Training(self.cluster, kept)
            other.write()
            other.open()
            line = f"{sys.executable} {ROOT}/scripts/train.py --scale 2x1 --config config.yaml --study s"
            shape = ["--nodes=2", "--ntasks-per-node=1", "--gres=gpu:1"]
            job = self.cluster.submit(f"export PYTHONPATH={kept}\nexec {line}", *shape, cwd=kept)
            assert self.cluster.wait_for_job(job).state == "COMPLETED", (kept / f"slurm-{job}.out").read_text()
        return Training(self.cluster, kept).results()

    def wait_for_progress(self) -> None:
        ready = (self.seen / "waiting", self.seen / "rank-1")
        wait_until(
            lambda: all(path.exists() for path in ready) and self.units(),
            what="an epoch to end",
            while_running=self.commands[-1],
        )
        self.logs_before = self.logs()

    def repeated(self, before: dict[str, Any]) -> list[str]:
        new = [text.removeprefix(self.logs_before.get(path, "")) for path, text in self.logs().items()]
        return [number for text in new for number, *_ in self.epoch_line.findall(text) if number in before]

    def rank(self, number: int) -> tuple[Host, int]:
        """The host of a rank, and its PID there."""
        host, process = (self.seen / f"rank-{number}").read_text().split()
        return self.cluster.hosts[host], int(process)

    def trouble(self, rank: int, code: str) -> None:
        """Let this rank run some code in its next step."""
        (self.seen / f"trouble-{rank}").write_text(code)

    def checkpoints(self) -> list[Path]:
        return sorted(self.seen.glob("results/scaling/s/2x1/checkpoints/*/epoch-*.pt"))


def processes_named(host: Host, *words: str) -> list[Process]:
    """The processes of a host in whose command line all these words are."""
    found = []
    for process in host.processes():
        try:
            line = Path(f"/proc/{process.pid}/cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if all(word in line for word in words):
            found.append(process)
    return found


def weights_digest(checkpoint: Path) -> str:
    """The digest of a model's weights, bit by bit."""
    model = torch.load(checkpoint, weights_only=True)["state"]["module"]
    parts = [name.encode() + tensor.numpy().tobytes() for name, tensor in sorted(model.items())]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock on a file."""
    inode = path.stat()
    name = f":{inode.st_ino} "
    return any(name in line for line in Path("/proc/locks").read_text().splitlines())


def listening(cluster: Cluster) -> list[str]:
    """The ports on which the hosts listen besides slurmd's."""
    found = []
    for host in cluster.hosts.values():
        shown = host.run(["ss", "--listening", "--tcp", "--numeric", "--no-header"]).stdout
        ports = {int(line.split()[3].rpartition(":")[2]) for line in shown.splitlines()}
        found += [f"port {port} of {host.name}" for port in ports - {6818}]
    return found


@contextmanager
def ended_at_last(run: Run) -> Iterator[None]:
    """End the commands of a run after the block, also if it fails."""
    try:
        yield
    finally:
        for command in run.commands:
            command.kill()
            command.wait()
        if run.folder.is_relative_to(run.cluster.small):
            shutil.rmtree(run.seen)


def seconds_since(moment: float) -> float:
    return round(time.time() - moment, 1)


def write_record(name: str, values: dict[str, Any], output: str) -> None:
    """Keep what was measured, and the output of the run, if $TRAINYARD_FAULTS names a folder."""
    if folder := os.environ.get("TRAINYARD_FAULTS"):
        path = Path(folder) / re.sub(r"[^a-zA-Z0-9]+", "-", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = values | {"time": time.time(), "load": os.getloadavg()[0]}
        path.with_suffix(".json").write_text(json.dumps(record))
        path.with_suffix(".log").write_text(output)
