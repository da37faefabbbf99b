"""wait_until returns, times out, or fails at once with the output of a process that has ended."""

import subprocess
import time

import pytest
from slurm_cluster.waiting import ProcessEnded, wait_until


def start(script, **options):
    return subprocess.Popen(["sh", "-c", script], text=True, **options)


def test_a_process_that_ends_fails_the_wait_with_its_output():
    process = start("echo no such file >&2; exit 3", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with pytest.raises(ProcessEnded, match=r"waited for the moon, but sh -c .* exited 3:\nno such file\n"):
        wait_until(lambda: False, what="the moon", while_running=process)


def test_a_condition_that_the_process_met_before_it_ended_counts(tmp_path):
    process = start(f"touch {tmp_path}/done")
    process.wait()
    assert wait_until((tmp_path / "done").exists, what="the file", while_running=process)


def test_output_that_a_child_holds_open_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("slurm_cluster.waiting.OUTPUT_SECONDS", 0.1)
    process = start("sleep 600 & exit 1", stdout=subprocess.PIPE, start_new_session=True)
    try:
        with pytest.raises(ProcessEnded, match="children still hold"):
            wait_until(lambda: False, what="the moon", while_running=process)
    finally:
        subprocess.run(["pkill", "--session", str(process.pid)], check=True)


def test_a_condition_that_stays_false_times_out():
    start_time = time.monotonic()
    with pytest.raises(TimeoutError, match=r"waited 0\.2 s for the moon; last value: 0"):
        wait_until(lambda: 0, what="the moon", timeout_seconds=0.2)
    assert time.monotonic() - start_time >= 0.2
