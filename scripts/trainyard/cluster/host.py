"""This host: its name, its addresses towards other hosts, and the file systems that it mounts."""

import getpass
import os
import re
import socket
from collections.abc import Sequence
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
