"""The addresses of this host towards others, and the names of users."""

import os
import socket

import pytest
from trainyard.cluster import host


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
