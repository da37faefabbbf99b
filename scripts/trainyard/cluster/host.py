"""This host: its name, its addresses towards other hosts, its free ports, and the file systems that it mounts."""

import errno
import getpass
import os
import re
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

NETWORK_FILE_SYSTEMS: Final = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "panfs", "afs", "orangefs",
                               "gluster", "smb", "cifs", "9p", "fuse")  # fmt: skip


def node_name() -> str:
    """The name of this node, without its domain: Slurm's own in a job, which may differ from the host name."""
    return short_name(os.environ.get("SLURMD_NODENAME") or socket.gethostname())


def short_name(name: str) -> str:
    """A host name without its domain, which one source of names has and another one lacks."""
    return name.split(".")[0]


def user_name() -> str:
    """The name of this user; the number of one who has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return str(os.getuid())


def source_address(destination: str) -> str:
    """The address, IPv4 if there is one, that this host uses as the source of packets to another host.

    Raises:
        OSError: the name has no address, or no route leads there.
    """
    found = socket.getaddrinfo(destination, 9, type=socket.SOCK_DGRAM)
    family, kind, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    with socket.socket(family, kind) as probe:  # connecting a datagram socket sends no packet
        probe.connect(address)
        return str(probe.getsockname()[0])


def source_interface(destination: str) -> str:
    """The network interface, such as `ib0`, through which this host reaches another one; "" if none is found."""
    try:
        address = source_address(destination)
    except OSError:
        return ""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if any(each.address == address for each in addresses)), "")


def file_system_type(path: Path, mounts: Sequence[Any] | None = None) -> str:
    """The type of the file system that contains a path, such as `ext4`, from the innermost mount point above it.

    For an overlay, the type of its writable layer: on nodes without a disk often a tmpfs.
    """
    mounts = psutil.disk_partitions(all=True) if mounts is None else mounts
    innermost = innermost_mount(path, mounts)
    if innermost is None:
        return "an unknown file system"
    upper = re.search(r"upperdir=([^,]+)", innermost.opts) if innermost.fstype == "overlay" else None
    if upper and Path(upper[1]).is_dir():  # in a container, it is a path of the host
        return file_system_type(Path(upper[1]), mounts)
    return str(innermost.fstype)


def innermost_mount(path: Path, mounts: Sequence[Any]) -> Any | None:
    """The innermost of psutil's mounts (`disk_partitions(all=True)`) that contains a path; None without one."""
    real = path.resolve()  # mount points have no symbolic links
    above = [mount for mount in mounts if real.is_relative_to(mount.mountpoint)]
    # Of several mounts at one point, such as autofs and what it mounted there, the last one covers the others.
    return max(reversed(above), key=lambda mount: len(mount.mountpoint), default=None)


def is_in_memory(kind: str) -> bool:
    """Whether the files of a file system of this type take host memory of the job that writes them."""
    return kind in ("tmpfs", "ramfs", "rootfs")


def is_network_file_system(kind: str) -> bool:
    """Whether other nodes may see the files of a file system of this type."""
    return kind.startswith(NETWORK_FILE_SYSTEMS)


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
