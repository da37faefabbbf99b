"""Ports for users' programs: free, and never the same for two programs at once."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest
from project import ROOT
from trainyard.cluster import ports
from trainyard.cluster.ports import reserved_port

HOLDER = """
import sys
from trainyard.cluster import ports
ports.PORTS = range(20000, 20032)
with ports.reserved_port() as first, ports.reserved_port() as second:
    print(first, second, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def few_ports(monkeypatch):
    first = 20100 + 4 * (os.getpid() % 3000)  # not those of other runs of these tests
    monkeypatch.setattr(ports, "PORTS", range(first, first + 4))
    return list(ports.PORTS)


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
            assert port in ports.PORTS


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
