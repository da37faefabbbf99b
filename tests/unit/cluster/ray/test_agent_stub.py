"""The program that stands in for Ray's agents."""

import os
import subprocess
import sys

import pytest
from slurm_cluster.waiting import PATIENCE_SECONDS
from trainyard.cluster.ray.patches import WAITING


@pytest.mark.parametrize("has_ended", [True, False])
def test_the_stub_of_an_agent_of_ray_runs_as_long_as_its_raylet(has_ended):
    """Also if the raylet ended before the stub looks up its parent, which then is init or whoever adopts."""
    raylet = 2**22 if has_ended else os.getpid()  # no process can have the first number
    command = [sys.executable, "-I", "-S", "-c", WAITING]
    with subprocess.Popen(command, env={"RAY_RAYLET_PID": str(raylet)}) as stub:
        if has_ended:
            assert stub.wait(PATIENCE_SECONDS) == 0
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                stub.wait(1.0)
            stub.kill()
