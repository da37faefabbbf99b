"""The local Ray leaves nothing on the node."""

import subprocess

from trainyard.cluster import ray_local


def test_workers_that_outlive_ray_are_killed_before_they_create_its_folders_again(tmp_path):
    """As on a busy machine, where Ray kills its raylet before that has killed the workers that start."""
    starting = subprocess.Popen(["sh", "-c", "sleep 600; :", f"--temp-dir={tmp_path}/r"])
    watchdog = subprocess.Popen(["sh", "-c", "sleep 600; :", str(tmp_path)])
    try:
        ray_local._end_starting_workers(tmp_path)
        assert starting.poll() is not None
        assert watchdog.poll() is None
    finally:
        for process in (starting, watchdog):
            process.kill()
            process.wait()
