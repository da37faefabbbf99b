"""The program that wraps the launcher of a user's script on each node."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import pytest
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until
from trainyard.cluster import host
from trainyard.scaling import node_step, rendezvous
from trainyard.scaling.launchers import STEP, NodeStep
from trainyard.utils.files import write_json
from trainyard.utils.import_path import SCRIPTS

WATCH = (str(SCRIPTS / "trainyard"), "scaling.node_step")
RUNS = "echo ready; while :; do sleep 0.02; done"
SAVES = f"trap 'touch saved; exit 3' TERM; {RUNS}"  # has no handler of other signals
SAVES_AT_SIGUSR1 = """
import pathlib, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(pathlib.Path("saved").touch() or 3))
print("ready", flush=True)
while True:
    signal.pause()
"""
# `node_step` whose handlers of signals are installed only after the command has sent one.
LATE = """
import sys, time
from trainyard.scaling import node_step
forward_stop_request = node_step.forward_stop_request
def forward_late(*arguments, **options):
    time.sleep(0.5)
    return forward_stop_request(*arguments, **options)
node_step.forward_stop_request = forward_late
sys.exit(node_step.main())
"""
# On a node with two GPUs.
TWO_GPUS = """
import sys
from contextlib import nullcontext
from trainyard.scaling import node_step
node_step.visible_gpus = lambda: nullcontext(["the first", "the second"])
node_step.record_telemetry = lambda *_, gpus, **options: nullcontext(print(*gpus))
sys.exit(node_step.main())
"""


@contextmanager
def started(
    folder: Path,
    *command: str,
    program: tuple[str, ...] = WATCH,
    is_per_gpu: bool = False,
    gpus: int | None = None,
    stop_signal: str = "TERM",
    **variables: str,
) -> Iterator[subprocess.Popen]:
    """`node_step` with a command, in a session of its own, without the variables of a job that runs these tests."""
    meeting = folder / "meeting"
    step = NodeStep(
        nodes=[host.node_name()],
        telemetry=str(folder / "telemetry"),
        is_per_gpu=is_per_gpu,
        gpus=gpus,
        stop_signal=stop_signal,
    )
    write_json(meeting / STEP, asdict(step))
    line = [sys.executable, *program, str(meeting), *command]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "CUDA_"))}
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(line, cwd=folder, env=inherited | variables, start_new_session=True, **piped)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def mask(status: str, name: str) -> int:
    """A mask of signals in the text of /proc/<pid>/status."""
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(name)), 16)


@pytest.mark.parametrize(("gpus", "recorded"), [(1, "the first\n"), (None, "the first the second\n")])
def test_of_a_node_with_more_gpus_the_energy_of_those_of_the_training_counts(tmp_path, gpus, recorded):
    with started(tmp_path, "true", program=("-c", TWO_GPUS), gpus=gpus, PYTHONPATH=str(SCRIPTS)) as process:
        assert process.communicate(timeout=PATIENCE_SECONDS)[0] == recorded


def test_the_command_ignores_user_signals_and_blocks_none(tmp_path):
    with started(tmp_path, "cat", "/proc/self/status") as process:
        status = process.communicate(timeout=PATIENCE_SECONDS)[0]
    user_signals = [signal.SIGUSR1, signal.SIGUSR2]
    assert [number for number in user_signals if mask(status, "SigIgn") >> (number - 1) & 1] == user_signals
    assert mask(status, "SigBlk") == 0


@pytest.mark.parametrize("sent", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_user_signal_to_all_processes_of_a_step_is_sigterm_for_the_command(tmp_path, sent):
    """As Slurm sends it with proctrack/linuxproc."""
    with started(tmp_path, "/bin/sh", "-c", SAVES) as process:
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, sent)
        assert process.wait(PATIENCE_SECONDS) == 3
    assert (tmp_path / "saved").exists()


def test_the_stop_signal_of_a_script_reaches_it_behind_its_launcher(tmp_path):
    """A launcher such as torchrun does not know SIGUSR1."""
    (tmp_path / "train.py").write_text(SAVES_AT_SIGUSR1)
    with started(tmp_path, "/bin/bash", "-c", f"{sys.executable} train.py; exit $?", stop_signal="USR1") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        assert process.wait(PATIENCE_SECONDS) == 3
    assert (tmp_path / "saved").exists()


def test_a_stop_request_while_the_command_starts_is_forwarded(tmp_path):
    options = {"program": ("-c", LATE), "PYTHONPATH": str(SCRIPTS)}
    with started(tmp_path, "/bin/sh", "-c", f"kill -USR1 $PPID; {RUNS}", **options) as process:
        assert process.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM


@pytest.mark.parametrize(("per_gpu", "rank"), [(False, 0), (True, 1)], ids=["a launcher per node", "srun"])
def test_a_launchers_rank_is_the_place_of_its_node_in_the_list_and_a_task_of_srun_has_slurms(
    monkeypatch, per_gpu, rank
):
    """With srun, rank 0 is SLURM_PROCID 0, which is on the node with SLURM_NODEID 0."""
    monkeypatch.setenv("SLURMD_NODENAME", "a")
    for name in ("PROCID", "NTASKS", "NODEID", "LOCALID"):
        monkeypatch.setenv(f"SLURM_{name}", "1")
    _, _, node_rank, _ = node_step.find_task(["a", "b"], per_gpu=per_gpu)
    assert node_rank == rank


@pytest.mark.parametrize(
    ("module", "visible", "starts"),
    [
        ("deepspeed.launcher.runner", "2,3", False),
        ("deepspeed.launcher.runner", "GPU-8932f937,GPU-46ffa8c5", False),
        ("deepspeed.launcher.runner", "1,0", True),
        ("deepspeed.launcher.runner", "-1", True),
        ("deepspeed.launcher.runner", None, True),
        ("torch.distributed.run", "2,3", True),
    ],
)
def test_deepspeed_does_not_start_where_it_would_use_the_gpus_of_another_job(tmp_path, module, visible, starts):
    """With a hostfile, its launcher ignores CUDA_VISIBLE_DEVICES and takes the GPUs from 0 on."""
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    with started(tmp_path, "touch", "started", module, **variables) as process:
        error = process.communicate(timeout=PATIENCE_SECONDS)[1]
    assert (tmp_path / "started").exists() == starts
    assert process.returncode == (0 if starts else 1)
    assert error == "" if starts else f"this job has GPU {visible}, but DeepSpeed's launcher" in error
    assert rendezvous.problem(tmp_path / "meeting") == error.strip(), "no checkpoint is to blame"


def task(folder: Path, number: int, command: str):
    """One of two tasks that srun starts on a node."""
    of_slurm = {"PROCID": number, "LOCALID": number, "NODEID": 0, "NTASKS": 2, "NTASKS_PER_NODE": 2}
    variables = {f"SLURM_{name}": str(value) for name, value in of_slurm.items()}
    return started(folder, "/bin/sh", "-c", command, is_per_gpu=True, **variables)


def test_after_a_stop_request_a_task_ends_when_all_tasks_have_saved(tmp_path):
    """srun ends all tasks once one has failed, and torchrun fails at each signal."""
    with task(tmp_path, 0, SAVES.replace("touch", "sleep 1; touch")) as saves, task(tmp_path, 1, RUNS) as ends:
        for process in (saves, ends):
            assert process.stdout.readline() == "ready\n"
        for process in (saves, ends):
            process.send_signal(signal.SIGUSR1)
        assert ends.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM
        assert (tmp_path / "saved").exists()
        assert saves.wait(PATIENCE_SECONDS) == 3


def test_without_a_stop_request_a_task_that_fails_ends_at_once(tmp_path):
    with task(tmp_path, 0, SAVES) as runs, task(tmp_path, 1, "exit 7") as fails:
        assert runs.stdout.readline() == "ready\n"
        assert fails.wait(PATIENCE_SECONDS) == 7
        assert runs.poll() is None
        runs.terminate()
        assert runs.wait(PATIENCE_SECONDS) == 3, "the other task has ended, too"


def test_after_an_interrupt_no_thread_keeps_the_program_alive(tmp_path):
    with started(tmp_path, "/bin/sh", "-c", RUNS) as process:
        assert process.stdout.readline() == "ready\n"
        wait_until((tmp_path / "telemetry" / f"cpu-{host.node_name()}.csv").exists, what="telemetry is recorded")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) != 0
