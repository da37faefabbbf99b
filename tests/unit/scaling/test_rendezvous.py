"""The rendezvous of the launchers, with and without all nodes. tests/cluster has it on several hosts."""

import json
import os
import socket
import time

import pytest
from trainyard.scaling import rendezvous
from trainyard.scaling.launchers import training_command
from trainyard.scaling.rendezvous import LOOPBACK, SECONDS, Rendezvous, RendezvousError, find_node_rank
from trainyard.utils.errors import UserError
from trainyard.utils.files import write_json


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setenv(SECONDS, "0.1")
    monkeypatch.setattr(rendezvous, "GRACE_SECONDS", 0.1)


def test_one_node_listens_on_loopback_at_a_port_that_differs_each_time(tmp_path):
    met = []
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        met.append(Rendezvous(tmp_path / str(number), ["n1"], rank=0).meet())
    assert len({endpoint.port for endpoint, _ in met}) > 1
    for endpoint, listener in met:
        assert endpoint.address == LOOPBACK
        assert listener.getsockname() == (LOOPBACK, endpoint.port)
        socket.create_connection((endpoint.address, endpoint.port), timeout=10).close()
        listener.close()
    assert rendezvous.problem(tmp_path / "3") == ""


def test_ranks_start_once_the_port_is_free(tmp_path):
    """A rank that connects to the listener of the rendezvous instead of the script's would wait for ever."""
    (tmp_path / "1").mkdir()
    Rendezvous(tmp_path / "1", ["n1"], rank=0).meet()[1].close()
    with pytest.raises(RendezvousError, match=r"n1 has not met the other nodes within 0\.8 s, as n1 reports"):
        Rendezvous(tmp_path / "1", ["n1"], rank=0).await_release()
    (tmp_path / "2").mkdir()
    endpoint = Rendezvous(tmp_path / "2", ["n1"], rank=0, everywhere=True).meet_and_release()
    assert Rendezvous(tmp_path / "2", ["n1"], rank=0, everywhere=True).await_release() == endpoint
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((endpoint.address, endpoint.port), timeout=10)


def failure(folder, nodes, rank=0):
    with pytest.raises(RendezvousError) as raised:
        Rendezvous(folder, nodes, rank=rank).meet()
    assert rendezvous.problem(folder) == str(raised.value), "the launcher reports it"
    return str(raised.value).removeprefix("the nodes of the training did not meet: ")


def test_nodes_that_do_not_start_are_named(tmp_path):
    write_json(tmp_path / "signed-in-2.json", {"address": LOOPBACK})
    assert failure(tmp_path, ["n1", "n2", "n3", "n4"]) == "n2, n4 did not start within 0.5 s"


def test_a_node_that_reports_while_this_process_is_suspended_is_not_missing(tmp_path, monkeypatch):
    list_files = os.listdir

    def list_and_pause(folder):
        files = list_files(folder)
        (tmp_path / "report").touch()
        time.sleep(0.02)
        return files

    monkeypatch.setattr(os, "listdir", list_and_pause)
    assert rendezvous._await(tmp_path, ["report"], 0.01) == []


def test_nodes_that_cannot_connect_are_named_with_the_address_that_they_tried(tmp_path):
    for rank in (1, 2):
        write_json(tmp_path / f"signed-in-{rank}.json", {"address": LOOPBACK})
    write_json(tmp_path / "connected-2.json", {"error": "has no route"})
    message = failure(tmp_path, ["n1", "n2", "n3"])
    port = json.loads((tmp_path / "endpoint.json").read_text())["port"]
    assert message == (
        f"n2 could not connect to n1 at 127.0.0.1, port {port}, within 0.1 s ({SECONDS}); n3 has no route"
    )


def test_a_node_whose_hosts_file_calls_the_first_one_loopback_says_so(tmp_path):
    assert failure(tmp_path, ["localhost", "n2"], rank=1) == (
        "n2 takes localhost for a loopback address: correct its /etc/hosts"
    )
    assert failure(tmp_path, ["n.invalid", "n2"], rank=1).startswith("n2 cannot resolve or reach the name n.invalid: ")


@pytest.mark.parametrize("value", ["a minute", "0", "-1", "nan"])
def test_an_invalid_time_to_connect_is_an_error_before_anything_starts(value, monkeypatch):
    monkeypatch.setenv(SECONDS, value)
    with pytest.raises(UserError, match=f"the environment variable {SECONDS} is '{value}', but must be a positive"):
        training_command("1x2", [], folder="/logs", allocation=None)


@pytest.mark.parametrize(
    ("nodes", "rank"),
    [("a,b", 0), ("b,a", 1), ("a.cluster,b.cluster", 0), ("c,d", 1), ("d", 0)],
    ids=["first", "second", "full names", "names that only Slurm has", "one node of a larger job"],
)
def test_a_node_finds_its_rank_by_its_name_in_the_list(nodes, rank, monkeypatch):
    """The list is sorted by name. A step may number its nodes in another order."""
    monkeypatch.setenv("SLURMD_NODENAME", "a")
    monkeypatch.setenv("SLURM_NODEID", "1")
    assert find_node_rank(nodes.split(",")) == rank
