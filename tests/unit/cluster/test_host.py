"""The addresses of this host towards others, and the names of nodes."""

import os
import socket
import sys
from types import SimpleNamespace

import pytest
from trainyard.cluster import host, ray_job, ray_node
from trainyard.cluster.ray_job import start_ray
from trainyard.cluster.slurm_allocation import Allocation
from trainyard.config.sweep import Slots
from trainyard.utils.errors import UserError


@pytest.mark.parametrize("loopback", ["127.0.0.1", "::1"])
def test_the_source_address_has_the_family_of_the_destination(loopback):
    assert host.source_address(loopback) == loopback
    assert host.source_interface(loopback) == "lo"


def test_ipv4_is_preferred(monkeypatch):
    six = (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("::1", 9, 0, 0))
    four = (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", 9))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [six, four])
    assert host.source_address("both") == "127.0.0.1"


def test_a_name_without_an_address_has_no_interface():
    assert host.source_interface("no-such-host.invalid") == ""


def test_a_sweep_on_nodes_without_an_address_ends_with_an_explanation(tmp_path, monkeypatch):
    allocation = Allocation("7", (host.node_name(), "no-such-host.invalid"), end_time=0.0)
    monkeypatch.setattr("trainyard.cluster.slurm_allocation.current_allocation", lambda: allocation)
    slots = Slots(nodes=2, gpus_per_node=1)
    with (
        pytest.raises(UserError, match=r"does not reach no-such-host.invalid: .*`getent hosts no-such-host.invalid`"),
        start_ray(slots, folder=tmp_path, local="", processes=1),
    ):
        pass


def test_nodes_have_their_names_in_slurm_which_may_differ_from_host_names(tmp_path, monkeypatch):
    """As with NodeName=gpu-1 NodeHostname=ip-10-0-0-5 in slurm.conf: no host name is in the allocation."""
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-1")
    monkeypatch.setattr(
        "trainyard.cluster.slurm_allocation.current_allocation", lambda: Allocation("7", ("gpu-1", "gpu-2"), 0.0)
    )
    lines = []

    def unreachable(destination):
        raise OSError("no route")

    monkeypatch.setattr(ray_job, "_srun_line", lambda nodes, command, *, cpus: lines.append(nodes))
    monkeypatch.setattr(host, "source_address", unreachable)
    with (
        pytest.raises(UserError, match="gpu-1 does not reach gpu-2: no route"),
        start_ray(Slots(nodes=2, gpus_per_node=1), folder=tmp_path, local="", processes=1),
    ):
        pass
    assert lines == [["gpu-2"]]


def test_ray_on_another_node_joins_under_the_name_of_the_node_in_slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-2")
    arguments = ray_node._start_arguments(tmp_path, gpus=1, cpus=1, address="127.0.0.1:6379")
    name = arguments[arguments.index("--node-name") + 1]
    known = [{"NodeName": name, "NodeManagerHostname": "ip-10-0-0-6", "Alive": True}]
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(nodes=lambda: known))
    others = ray_job._OtherNodes.__new__(ray_job._OtherNodes)
    others._nodes = ["gpu-2", "gpu-3"]
    assert others._missing() == ["gpu-3"]


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("no username set in the environment")])
def test_a_user_without_a_name_is_known_by_number(monkeypatch, error):
    """As in a container; Python 3.13 raises another exception than the versions before."""

    def fail():
        raise error

    monkeypatch.setattr(host.getpass, "getuser", fail)
    assert host.user_name() == str(os.getuid())
