"""Ray on the nodes of a job: it is up on all of them under their names, and leaves nothing behind."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from slurm_cluster.waiting import PATIENCE_SECONDS
from trainyard.cluster import host
from trainyard.cluster.ray import node, start
from trainyard.cluster.ray.patches import WAITING
from trainyard.config.sweep import Slots
from trainyard.utils.errors import UserError


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


def test_a_sweep_on_nodes_without_an_address_ends_with_an_explanation(tmp_path, slurm):
    slurm.allocate(host.node_name(), "no-such-host.invalid")
    slots = Slots(nodes=2, gpus_per_node=1)
    with (
        pytest.raises(UserError, match=r"does not reach no-such-host.invalid: .*`getent hosts no-such-host.invalid`"),
        start.start_ray(slots, folder=tmp_path, local="", processes=1),
    ):
        pass


def test_nodes_have_their_names_in_slurm_which_may_differ_from_host_names(tmp_path, slurm, monkeypatch):
    """As with NodeName=gpu-1 NodeHostname=ip-10-0-0-5 in slurm.conf: no host name is in the allocation."""
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-1")
    slurm.allocate("gpu-1", "gpu-2.invalid")
    with (
        pytest.raises(UserError, match=r"gpu-1 does not reach gpu-2.invalid: "),
        start.start_ray(Slots(nodes=2, gpus_per_node=1), folder=tmp_path, local="", processes=1),
    ):
        pass


def test_ray_on_another_node_joins_under_the_name_of_the_node_in_slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-2")
    arguments = node.start_arguments(tmp_path, gpus=1, cpus=1, address="127.0.0.1:6379")
    name = arguments[arguments.index("--node-name") + 1]
    known = [{"NodeName": name, "NodeManagerHostname": "ip-10-0-0-6", "Alive": True}]
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(nodes=lambda: known))
    assert start.missing_nodes(["gpu-2", "gpu-3"]) == ["gpu-3"]
