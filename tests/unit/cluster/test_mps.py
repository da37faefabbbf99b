"""MPS for the trials of a job, with a program that behaves as NVIDIA documents `nvidia-cuda-mps-control`."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from project import FAKE_MPS, ROOT, is_alive
from slurm_cluster.waiting import wait_until
from trainyard.cluster import gpus
from trainyard.cluster.gpus import CONTROL, LOGS, PIPES, PROBE, run_mps

RUN = """
import os, time
from trainyard.cluster import gpus
gpus.PROBE = "print(0)"
with gpus.run_mps(True):
    print(os.environ[gpus.PIPES], flush=True)
    time.sleep(60)
"""


@pytest.fixture
def told(tmp_path, monkeypatch, caplog):
    """The lines that the fake daemon writes; it is the only one on the PATH."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / CONTROL
    program.write_text(FAKE_MPS)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_MPS_LOG", str(tmp_path / "told"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    for name in (PIPES, LOGS, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    probe = "import os; exec(os.environ.get('FAKE_PROBE', 'print(0)'))"  # with a GPU, it would look for the real daemon
    monkeypatch.setattr(gpus, "PROBE", probe)
    caplog.set_level(logging.INFO)
    return lambda: (tmp_path / "told").read_text().splitlines() if (tmp_path / "told").exists() else []


def daemon():
    return psutil.Process(int(Path(os.environ[PIPES], f"{CONTROL}.pid").read_text()))


def has_ended(process):
    return not is_alive(process)


def test_the_daemon_runs_within_the_block(told, caplog):
    with run_mps(True):
        running, folder = daemon(), Path(os.environ[PIPES]).parent
        assert not has_ended(running)
        assert Path(os.environ[LOGS]).is_dir()
        assert folder.stat().st_mode & 0o777 == 0o700
    wait_until(lambda: has_ended(running), what="the end of the daemon")
    assert told() == ["start", "quit"]
    assert not folder.exists()
    assert not {PIPES, LOGS} & os.environ.keys()
    assert ["MPS runs on" in line for line in caplog.messages] == [True]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_daemon_ends_after_a_failure(told, error):
    def fail():
        raise error

    with pytest.raises(error), run_mps(True):
        fail()
    assert told() == ["start", "quit"]


def test_the_daemon_ends_when_the_job_is_killed(told):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    with subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, env=environment, text=True) as job:
        folder = Path(job.stdout.readline().strip()).parent
        assert folder.exists()
        job.send_signal(signal.SIGKILL)
    wait_until(lambda: told() == ["start", "quit"] and not folder.exists(), what="the end of the daemon")


def test_a_daemon_that_does_not_answer_is_killed(told, monkeypatch):
    monkeypatch.setattr(gpus, "QUIT_SECONDS", 0.2)
    monkeypatch.setenv("FAKE_MPS_HANGS", "1")
    with run_mps(True):
        running = daemon()
    wait_until(lambda: has_ended(running), what="the end of the daemon")


UNUSED = [
    ({"PATH": "/usr/bin:/bin"}, f"there is no {CONTROL}", []),
    ({"FAKE_MPS_ERROR": "An instance of this daemon is already running"}, "An instance of this daemon is", []),
    ({"CUDA_VISIBLE_DEVICES": "2,3"}, "CUDA_VISIBLE_DEVICES is 2,3, whose numbers mean other GPUs", []),
    ({PIPES: "/tmp/nvidia-mps"}, "CUDA_MPS_PIPE_DIRECTORY is set", []),
    ({"FAKE_PROBE": "print(805)"}, "CUDA does not start with it (error 805)", ["start", "quit"]),
    ({"FAKE_PROBE": "import os; os.abort()"}, "CUDA does not start with it (error unknown)", ["start", "quit"]),
]


@pytest.mark.parametrize(("environment", "why", "lines"), UNUSED)
def test_where_mps_does_not_work_one_line_says_so_and_trials_run_without(
    told, monkeypatch, caplog, environment, why, lines
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with run_mps(True):
        assert os.environ.get(PIPES) == environment.get(PIPES)
        assert told() == lines, "the daemon is not left running"
    (line,) = caplog.messages
    assert line.startswith("MPS is not used on ")
    assert why in line


@pytest.mark.parametrize("visible", ["0", "0,1,2", "GPU-8932f937,GPU-b3d6a1a1"])
def test_gpus_that_mean_the_same_to_clients_are_used(told, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with run_mps(True):
        assert PIPES in os.environ


def test_nothing_happens_unless_it_is_wanted(told, caplog):
    with run_mps(False):
        assert PIPES not in os.environ
    assert (told(), caplog.messages) == ([], [])


def test_the_probe_needs_no_gpu(told):
    """Where there is no driver, nothing can be wrong with MPS."""
    done = subprocess.run([sys.executable, "-c", PROBE], text=True, capture_output=True, check=True)
    assert done.stdout.strip().isdecimal()
