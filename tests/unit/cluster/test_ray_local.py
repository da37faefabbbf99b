"""The local Ray leaves nothing on the node."""

import os
import subprocess
import sys

import pytest
from slurm_cluster.waiting import PATIENCE_SECONDS
from trainyard.cluster import ray_local
from trainyard.utils.fast_start import WAITING


def test_workers_that_outlive_ray_are_killed_before_they_create_its_folders_again(tmp_path):
    """As on a busy machine, where Ray kills its raylet before that has killed the workers that start."""
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    starting = subprocess.Popen([*sleep, f"--temp-dir={tmp_path}/r"])
    watchdog = subprocess.Popen([*sleep, str(tmp_path)])
    try:
        ray_local._end_starting_workers(tmp_path)
        assert starting.poll() is not None
        assert watchdog.poll() is None
    finally:
        for process in (starting, watchdog):
            process.kill()
            process.wait()


@pytest.mark.parametrize("has_ended", [True, False])
def test_the_stand_in_of_an_agent_of_ray_runs_as_long_as_its_raylet(has_ended):
    """Also if the raylet ended before the stand-in asks for its parent, which then is init or whoever adopts."""
    raylet = 2**22 if has_ended else os.getpid()  # no process can have the first number
    command = [sys.executable, "-I", "-S", "-c", WAITING]
    with subprocess.Popen(command, env={"RAY_RAYLET_PID": str(raylet)}) as standing_in:
        if has_ended:
            assert standing_in.wait(PATIENCE_SECONDS) == 0
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                standing_in.wait(1.0)
            standing_in.kill()
