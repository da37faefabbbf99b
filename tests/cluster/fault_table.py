"""The table of faults: how each is injected into a running sweep or training, and what must hold."""

import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import yaml
from fault_runs import Run, Sweep, Training, processes_named
from slurm_cluster.waiting import wait_until
from trainyard.planning.journal import journal_files
from trainyard.training.checkpoints import CheckpointStore

Step = Callable[[Any], None]


def nothing(run: Run) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Fault:
    """A row of the table."""

    name: str
    inject: Step
    bound_seconds: float  # from the fault to the end of the job
    shows: tuple[str, ...] = ()  # patterns, each in the output of a command or job
    job: type[Run] = Sweep
    nodes: int = 1  # of a sweep, with a job each; a training has two
    resources: tuple[str, ...] = ()  # of the job
    minutes: int = 30  # the walltime of the first job
    before: Step = nothing  # once the files are written, before the first command
    opens: bool = True  # whether the rest of the work can go on after the fault
    then: Step | None = None  # after the first command has ended, which then retries nothing
    decision: str = ""  # the line in which the next command shows what a person must decide
    decide: Step = nothing  # what the person does
    in_small: bool = False  # in a folder of a small file system
    in_test: bool = False  # run by `make test`
    leaves: tuple[str, ...] = ()  # patterns of files in /tmp that stay until the next job on their host removes them
    defect: str = ""  # why the row does not hold


@dataclass(frozen=True)
class TrialFault:
    """A row whose fault is in a trial's own code; all of them are in one sweep."""

    name: str
    code: str  # what the trial runs in its first attempt
    shows: str  # a pattern in the error of the attempt
    outcomes: tuple[str, ...] = ("failed", "finished")  # of all attempts
    bound_seconds: float = 60  # from the fault to the end of the attempt
    defect: str = ""  # why the row does not hold


TRIALS = [
    TrialFault("trial raises", "raise RuntimeError('planned trouble')", "RuntimeError: planned trouble"),
    TrialFault("trial exits", "os._exit(3)", "process ended|exit"),
    TrialFault("trial segfaults", "ctypes.string_at(0)", "process ended|killed|SIGSEGV"),
    TrialFault("trial hangs (time limit 30 s)", "time.sleep(3600)", "time limit|timeout|longer than", bound_seconds=90),
    TrialFault(
        "trial runs out of host memory",
        "resource.setrlimit(resource.RLIMIT_AS, (2**20, 2**20)); bytearray(2**30)",
        "MemoryError",
    ),
    TrialFault("trial killed, as for host memory", "os.kill(os.getpid(), signal.SIGKILL)", "killed"),
    TrialFault("trial poisons its process", "builtins.poison = 1; raise ValueError('poisoned')", "poisoned"),
    TrialFault("trial reports NaN", "config['factor'] = float('nan')", "NaN", outcomes=("diverged",)),
]


# Sweeps


def kill_driver(run: Sweep) -> None:
    run.driver_host.run(["kill", "-KILL", str(run.driver)])


def kill_worker(run: Sweep) -> None:
    host, process = run.place_of(run.running()[0])
    host.run(["kill", "-KILL", str(process)])


def break_gpu(run: Sweep) -> None:
    """Let every trial on one of the two GPUs fail from now on."""
    place = run.running()[0].location
    (run.seen / f"broken-{place.node}-{place.gpu}").touch()


def kill_ray(name: str) -> Step:
    """Kill the process of Ray with this name."""

    def kill(run: Sweep) -> None:
        found = [process for process in run.driver_host.processes() if process.name.startswith(name)]
        assert found, f"{name} runs on {run.driver_host.name}"
        for process in found:
            process.signal(signal.SIGKILL)

    return kill


def suspend(*, seconds: float) -> Step:
    """Let Slurm suspend the job for so long."""

    def stop(run: Run) -> None:
        run.cluster.run(["scontrol", "suspend", str(run.jobs()[-1])])
        time.sleep(seconds)
        run.cluster.run(["scontrol", "resume", str(run.jobs()[-1])])

    return stop


def lose_host(run: Sweep) -> None:
    run.other_host.power_off()


def cut_off(*, seconds: float | None = None) -> Step:
    """Cut the other host off the network, for good or for so long."""

    def cut(run: Sweep) -> None:
        host = run.other_host
        host.disconnect()
        if seconds:
            time.sleep(seconds)
            host.reconnect()

    return cut


def lose_daemon(name: str, *, seconds: float) -> Step:
    """Let the job end while slurmctld or slurmdbd is away, and keep it away for so long after that."""

    def lose(run: Run) -> None:
        if name == "slurmctld":
            save_job(run)
        run.cluster.kill_daemon(name)
        run.open()
        wait_until(run.is_complete, what="the work to be complete", while_running=run.commands[-1])
        time.sleep(seconds)
        run.cluster.start_daemon(name)

    return lose


def save_job(run: Run) -> None:
    """Wait until slurmctld has saved the job: after a crash, it does not know what it had not, and reuses its ID."""
    mark, file = "saved before the fault", run.cluster.state / "slurmctld/job_state"
    run.cluster.run(["scontrol", "update", f"JobId={run.jobs()[-1]}", f"AdminComment={mark}"])
    wait_until(lambda: file.exists() and mark.encode() in file.read_bytes(), what="slurmctld to save the job")


def cut_off_until_requeued(run: Sweep) -> None:
    """Cut the driver's host off until Slurm has started the job again elsewhere, where it finds the first driver."""
    host, sessions = run.driver_host, run.sweep_folder / "sessions"
    host.disconnect()
    wait_until(
        lambda: len([*sessions.glob("*.beat")]) == 2, what="the job to start again", while_running=run.commands[-1]
    )
    host.reconnect()


def kill_slurmd(run: Sweep) -> None:
    run.other_host.kill_slurmd()


def kill_slurmstepd(run: Run) -> None:
    """Kill the slurmstepd of the job's batch script."""
    host = run.driver_host if isinstance(run, Sweep) else run.rank(0)[0]
    found = processes_named(host, "slurmstepd", ".batch]") or processes_named(host, "slurmstepd", "batch")
    assert found, [process for process in host.processes() if process.name == "slurmstepd"]
    for process in found:
        process.signal(signal.SIGKILL)


def kill_slurmstepd_of_step(run: Run) -> None:
    """Kill the slurmstepd of the step in which the sweep, or rank 1 of the training, runs."""
    host = run.driver_host if isinstance(run, Sweep) else run.rank(1)[0]
    found = [each for each in processes_named(host, "slurmstepd") if each not in processes_named(host, "batch")]
    assert found, [process for process in host.processes() if process.name == "slurmstepd"]
    for process in found:
        process.signal(signal.SIGKILL)


def cancel(run: Run) -> None:
    run.cluster.run(["scancel", str(run.jobs()[-1])])


def preempt(run: Run) -> None:
    """Submit a job that needs all GPUs, to the partition whose jobs come first."""
    run.cluster.submit("true", "--nodes=4", "--ntasks-per-node=1", "--gres=gpu:2", cwd=run.cluster.shared)


def preempt_and_cancel(run: Run) -> None:
    """Preempt the job as a site does whose PreemptMode is CANCEL."""
    mode = ["scontrol", "update", "partitionname=preempt"]
    run.cluster.run([*mode, "preemptmode=cancel"])
    try:
        preempt(run)
        run.wait_for_end_of(run.jobs()[-1])
    finally:
        run.cluster.run([*mode, "preemptmode=requeue"])


def kill_snakemake_and_start_again(run: Run) -> None:
    run.kill_snakemake()
    start_a_second(run)


def start_a_second(run: Run) -> None:
    """Run the same command again, until it waits for the job of the first one or has submitted one."""
    run.start()
    log, submitted = run.seen / "snakemake-1.log", ("is already in the queue", "submitted with SLURM")
    wait_until(
        lambda: any(words in log.read_text() for words in submitted),
        what="the second command to wait or to submit",
        while_running=run.commands[-1],
    )


def damage_journal(*, torn: bool) -> Step:
    def damage(run: Sweep) -> None:
        lines = run.journal.read_bytes().splitlines(keepends=True)
        if torn:
            lines.append(lines[-1][: len(lines[-1]) // 2])
        else:
            lines.insert(len(lines) // 2, b"\x00\xff garbage \x80\n")
        run.journal.write_bytes(b"".join(lines))

    return damage


def protect_journal(run: Sweep) -> None:
    """Make the journal immutable, also for root."""
    subprocess.run(["chattr", "+i", str(run.journal)], check=True)


def release_journal(run: Sweep) -> None:
    subprocess.run(["chattr", "-i", *map(str, journal_files(run.sweep_folder))], check=True)


def fill_disk(run: Run) -> None:
    """Fill the file system of the results."""
    with open(run.seen / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 4096)
        except OSError:
            pass


def free_disk(run: Run) -> None:
    (run.seen / "filler").unlink()


def delete_results(run: Run) -> None:
    """Delete all results while the job runs."""
    (run.seen / "results").rename(run.seen / "deleted")


def fill_tmp(run: Run) -> None:
    """Leave no space in /tmp of the hosts."""
    for host in run.cluster.hosts.values():
        host.run(["mount", "-o", "remount,size=1m", "/tmp"])
        host.run(["sh", "-c", "cat /dev/zero > /tmp/filler"], check=False)


def free_tmp(run: Run) -> None:
    complete = run.is_complete()
    for host in run.cluster.hosts.values():
        host.run(["sh", "-c", "rm /tmp/filler; mount -o remount,size=50% /tmp"])
    assert complete, run.story()


def move_project(run: Run) -> None:
    target = run.folder.with_name(run.folder.name + "-moved")
    run.seen.rename(run.cluster.head.path(target))
    run.folder = target


# In the processes of one host, the clock is a minute ahead.
AHEAD = """
import os, time
if os.uname().nodename == "n2":
    true = time.time
    time.time = lambda: true() + 60
"""


def set_clock_ahead(run: Run) -> None:
    (run.seen / "sitecustomize.py").write_text(AHEAD)


# Trainings


def signal_rank(number: int, name: str) -> Step:
    def send(run: Training) -> None:
        host, process = run.rank(number)
        host.run(["kill", f"-{name}", str(process)])

    return send


def shorten_timeout(run: Training) -> None:
    """Let ranks wait for each other for 15 s only."""
    path = run.seen / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["scaling"]["s"]["ddp"] = {"timeout_minutes": 0.25}
    path.write_text(yaml.safe_dump(config))


def trouble_rank(number: int, code: str) -> Step:
    return lambda run: run.trouble(number, code)


def cut_rank_0_off(run: Training) -> None:
    """Cut the host off on which Snakemake runs in the job. It returns when all work is finished."""
    run.rank(0)[0].disconnect()


def lose_rank_1(run: Training) -> None:
    run.rank(1)[0].power_off()


def damage_checkpoint(how: str) -> Step:
    """Truncate the latest checkpoint or flip one of its bits."""

    def damage(run: Training) -> None:
        latest = run.checkpoints()[-1]
        content = bytearray(latest.read_bytes())
        if how == "truncate":
            content = content[: len(content) // 2]
        else:
            content[len(content) // 2] ^= 1
        latest.write_bytes(content)

    return damage


def change_spec(run: Training) -> None:
    """Replace the latest checkpoint by one that a training with another learning rate has written."""
    latest = run.checkpoints()[-1]
    found = torch.load(latest, weights_only=True)
    _, epoch, _, step = latest.name.partition(".")[0].split("-")
    latest.unlink()
    CheckpointStore(latest.parent, found["spec"] | {"lr": 0.5}).save(found["state"], epoch=int(epoch), step=int(step))


def remove_latest_checkpoint(run: Training) -> None:
    run.checkpoints()[-1].unlink()


def take_ports(run: Run) -> None:
    """Listen on the ports that follow from job numbers, on all hosts."""
    code = (
        "import socket, time\n"
        "held = []\n"
        "for port in range(20000, 20200):\n"
        "    held.append(socket.create_server(('', port)))\n"
        "time.sleep(3600)"
    )
    for host in run.cluster.hosts.values():
        host.inside.start_daemon(["python3", "-c", code], log=run.cluster.state / "log/ports.log")
    wait_until(
        lambda: all(host.inside.listens(20199) for host in run.cluster.hosts.values()), what="the ports to be taken"
    )


def free_ports(run: Run) -> None:
    for host in run.cluster.hosts.values():
        for process in processes_named(host, "create_server"):
            process.signal(signal.SIGKILL)


def kill_sampler(run: Training) -> None:
    found = processes_named(run.rank(0)[0], "cluster.telemetry")
    assert found
    for process in found:
        process.signal(signal.SIGKILL)


WAITS = ("is already in the queue as Slurm job",)
REQUEUED = ("slurm_partition=preempt",)
KILLED_AT_ITS_RETURN = (
    "ty-ray-*",
)  # once a host is back, Slurm kills there what was given up, without a signal before
SWEEP = [
    Fault("driver killed", kill_driver, 60, shows=("task 0: Killed",)),
    Fault("worker of a slot killed", kill_worker, 60, shows=("the worker's process ended: it was killed.*see .*log",)),
    Fault("GPU on which every trial fails", break_gpu, 60, shows=(r"planned trouble \(.*, line \d+\); see .*\.log",)),
    Fault("Ray's head killed", kill_ray("gcs_server"), 120),
    Fault("Ray's raylet killed", kill_ray("raylet"), 60, shows=("starting Ray again",)),
    Fault("suspended for 45 s", suspend(seconds=45), 120),
    Fault("host of one of two jobs lost", lose_host, 120, nodes=2, in_test=True),
    Fault("host of one of two jobs cut off", cut_off(), 240, nodes=2, leaves=KILLED_AT_ITS_RETURN),
    Fault("host of one of two jobs cut off for 90 s", cut_off(seconds=90), 240, nodes=2, leaves=KILLED_AT_ITS_RETURN),
    Fault("driver's host cut off until the job runs again", cut_off_until_requeued, 300, leaves=KILLED_AT_ITS_RETURN),
    Fault("slurmd of one of two jobs killed", kill_slurmd, 60, nodes=2),
    Fault("slurmdbd away while the job ends", lose_daemon("slurmdbd", seconds=15), 120, opens=False),
    Fault("slurmctld away while the job ends", lose_daemon("slurmctld", seconds=15), 120, opens=False),
    Fault("slurmstepd killed", kill_slurmstepd, 300),
    Fault("slurmstepd of the step killed", kill_slurmstepd_of_step, 120),
    Fault("scancel", cancel, 60),
    Fault("walltime", nothing, 180, minutes=1, opens=False, shows=("before the end of the walltime",)),
    Fault("preempted and requeued", preempt, 60, resources=REQUEUED, shows=("DUE TO PREEMPTION",)),
    Fault("preempted and cancelled", preempt_and_cancel, 60, resources=REQUEUED),
    Fault("disk full", fill_disk, 60, in_small=True, then=free_disk, shows=("no space (left )?on",)),
    Fault("journal: last line torn", kill_driver, 60, then=damage_journal(torn=True)),
    Fault("journal: garbage in its middle", kill_driver, 60, then=damage_journal(torn=False)),
    Fault("journal: read-only", protect_journal, 60, then=release_journal, shows=(r"sessions/.*\.jsonl",)),
    Fault("second snakemake on the same sweep", start_a_second, 120, shows=WAITS),
    Fault("snakemake killed, and started while its job runs", kill_snakemake_and_start_again, 120, shows=WAITS),
    Fault("clocks of two jobs a minute apart", nothing, 60, nodes=2, before=set_clock_ahead),
    Fault("results deleted", delete_results, 60),
    Fault("results moved to another path", kill_driver, 60, then=move_project),
]
RAISES = trouble_rank(1, "raise RuntimeError('planned trouble')")
ENDED = r"rank 1 on n2 ended the training: "
SKIPPED = ("damaged|skipped",)
TRAINING = [
    Fault("rank raises", RAISES, 30, job=Training, shows=(f"{ENDED}RuntimeError: planned trouble",)),
    Fault("rank killed", signal_rank(1, "KILL"), 30, job=Training, shows=(rf"{ENDED}.*SIGKILL",), in_test=True),
    Fault(
        "rank stopped in a collective",
        signal_rank(1, "STOP"),
        60,
        job=Training,
        before=shorten_timeout,
        shows=("rank 0 timed out in a collective operation.* takes longer than timeout_minutes of `ddp`",),
    ),
    Fault("host lost", lose_rank_1, 120, job=Training),
    Fault("slurmstepd of the step killed", kill_slurmstepd_of_step, 120, job=Training),
    Fault(
        "host cut off until all work is finished",
        cut_rank_0_off,
        240,
        job=Training,
        before=shorten_timeout,
        leaves=KILLED_AT_ITS_RETURN,
    ),
    Fault("full /tmp", nothing, 60, job=Training, before=fill_tmp, then=free_tmp),
    Fault("ports taken", nothing, 60, job=Training, before=take_ports, then=free_ports),
    Fault("NaN on one rank", trouble_rank(1, "factor = float('nan')"), 60, job=Training),
    Fault("checkpoint truncated", cancel, 60, job=Training, then=damage_checkpoint("truncate"), shows=SKIPPED),
    Fault("checkpoint with a flipped bit", cancel, 60, job=Training, then=damage_checkpoint("flip"), shows=SKIPPED),
    Fault(
        "checkpoint of another spec",
        cancel,
        60,
        job=Training,
        then=change_spec,
        decision="belongs to another training and is not used",
        decide=remove_latest_checkpoint,
    ),
    Fault("walltime", nothing, 180, job=Training, minutes=2, opens=False),  # two hosts import torch first
    Fault(
        "preempted and requeued",
        preempt,
        60,
        job=Training,
        resources=REQUEUED,
        shows=("DUE TO PREEMPTION",),
        in_test=True,
    ),
    Fault("preempted and cancelled", preempt_and_cancel, 60, job=Training, resources=REQUEUED),
    Fault("disk full while saving", fill_disk, 60, job=Training, in_small=True, then=free_disk),
    Fault("telemetry killed", kill_sampler, 60, job=Training, shows=("telemetry stops: ",)),
]
