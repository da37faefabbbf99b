"""Free TCP ports of this host for programs that are told at which port to listen, such as torchrun."""

import errno
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

PORTS: Final = range(20000, 32768)  # Linux uses ports from 32768 on for outgoing connections


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that nothing uses on any address of this host, and that no other caller here gets during the block.

    The reservation is a Unix socket with an abstract name. As a port, it belongs to a network namespace, so that it
    counts for all jobs and users on the host, and it disappears with this process.
    """
    while True:
        port = secrets.choice(PORTS)
        with socket.socket(socket.AF_UNIX) as reservation:
            if _binds(reservation, f"\0trainyard-port-{port}") and _is_free(port):
                yield port
                return


def _is_free(port: int) -> bool:
    """Whether a program can listen at a port of all addresses, also without SO_REUSEADDR: no connection is left."""
    if not socket.has_dualstack_ipv6():
        with socket.socket() as probe:
            return _binds(probe, ("", port))
    with socket.socket(socket.AF_INET6) as probe:
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # IPv4, too
        return _binds(probe, ("", port))


def _binds(probe: socket.socket, address: str | tuple[str, int]) -> bool:
    try:
        probe.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
