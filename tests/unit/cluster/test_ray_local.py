"""The local Ray leaves nothing on the node."""

import subprocess
import sys

from trainyard.cluster import ray_local


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
