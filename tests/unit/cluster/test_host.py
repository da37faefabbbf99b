"""The addresses of this host towards others, the names of users, and free ports."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest
from project import ROOT
from trainyard.cluster import host
from trainyard.cluster.host import reserved_port


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


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("no username set in the environment")])
def test_a_user_without_a_name_is_known_by_number(monkeypatch, error):
    """As in a container; Python 3.13 raises another exception than the versions before."""

    def fail():
        raise error

    monkeypatch.setattr(host.getpass, "getuser", fail)
    assert host.user_name() == str(os.getuid())


HOLDER = """
import sys
from trainyard.cluster import host
host.PORTS = range(20000, 20032)
with host.reserved_port() as first, host.reserved_port() as second:
    print(first, second, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def few_ports(monkeypatch):
    first = 10000 + 4 * (os.getpid() % 1000)  # not those of other runs of these tests, nor of other programs
    monkeypatch.setattr(host, "PORTS", range(first, first + 4))
    return list(host.PORTS)


def test_processes_that_reserve_ports_at_the_same_time_get_different_ones():
    environment = {"PYTHONPATH": str(ROOT / "scripts")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as stack:
        holders = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", HOLDER], env=environment, **pipes))
            for _ in range(8)
        ]
        found = [port for each in holders for port in each.stdout.readline().split()]
        assert len(set(found)) == 16, "of 32 ports"


def test_a_port_can_be_reserved_again_when_its_program_has_ended(few_ports):
    for _ in range(9):
        with reserved_port() as port, socket.create_server(("", port)):
            assert port in host.PORTS


def test_ports_that_listen_or_have_a_connection_left_are_not_free(few_ports):
    with ExitStack() as stack:
        stack.enter_context(socket.create_server(("127.0.0.1", few_ports[0])))
        stack.enter_context(socket.create_server(("::1", few_ports[1]), family=socket.AF_INET6))
        left_in_time_wait(few_ports[2])
        for _ in range(5):
            with reserved_port() as port:
                assert port == few_ports[3]


def left_in_time_wait(port):
    """Leave a connection of the port whose first end was closed by the server."""
    with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)) as client:
        accepted, _ = server.accept()
        accepted.close()
        assert client.recv(1) == b""
