"""What the test cluster requires of the machine: root, namespaces, and Debian packages, which it installs."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until

# Daemons are in sbin, which is often not in $PATH.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CLUSTER = "the test cluster"

PACKAGE_OF = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "mariadbd": "mariadb-server-core",  # the server without a service, a user and /var/lib/mysql
    "mariadb-install-db": "mariadb-server-core",
    "ip": "iproute2",
    "nsenter": "util-linux",
}

POLICY = Path("/usr/sbin/policy-rc.d")  # Debian runs this program before a package starts a service


# Created by Debian's packages, whose programs read their configuration only here.
SLURM_CONFIG = Path("/etc/slurm")


class PrerequisiteMissing(RuntimeError):
    """The machine cannot run the cluster; the message says in one line what is missing."""


def ensure_prerequisites() -> None:
    """Install missing packages; raise PrerequisiteMissing if the machine still cannot run the cluster."""
    require_root()
    packages = missing_packages()
    if packages:
        with _no_service_starts():
            install_packages(packages)
        if still_missing := missing_packages():
            raise PrerequisiteMissing(
                f"installed, but their programs are not in {SYSTEM_PATH}: {' '.join(still_missing)}"
            )
    _check_namespaces()
    if not SLURM_CONFIG.is_dir():
        raise PrerequisiteMissing(f"no {SLURM_CONFIG} to mount the configuration over: this is not Debian's Slurm")


def require_root() -> None:
    """Raise PrerequisiteMissing unless this process runs as root."""
    if os.geteuid() != 0:
        raise PrerequisiteMissing("the test cluster needs root, to create namespaces for its four hosts")


def missing_packages() -> list[str]:
    """The packages of which a program is missing, each once."""
    return sorted({package for program, package in PACKAGE_OF.items() if not shutil.which(program, path=SYSTEM_PATH)})


def install_packages(packages: list[str], *, needed_by: str = CLUSTER) -> None:
    """Install Debian packages as root; raise PrerequisiteMissing if that fails."""
    if not shutil.which("apt-get", path=SYSTEM_PATH):
        raise PrerequisiteMissing(f"{needed_by} needs {' '.join(packages)}, and there is no apt-get to install them")
    print(f"installing {' '.join(packages)} ...", flush=True)
    _apt_get("update", packages=packages, needed_by=needed_by)
    _apt_get("install", "--yes", "--no-install-recommends", *packages, packages=packages, needed_by=needed_by)


def _apt_get(*arguments: str, packages: list[str], needed_by: str) -> None:
    """Run apt-get, repeatedly while another process holds its locks: apt-get does not wait for all of them."""
    environment = {**os.environ, "PATH": SYSTEM_PATH, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    problem = ""

    def has_lock() -> bool:
        nonlocal problem
        result = subprocess.run(["apt-get", "-qq", *arguments], env=environment, capture_output=True, text=True)
        locked = result.returncode != 0 and "Could not get lock" in result.stderr
        if locked and not problem:
            print("waiting for another apt-get to end ...", flush=True)
        problem = (result.stderr.strip() or f"exit code {result.returncode}") if result.returncode else ""
        return not locked

    with suppress(TimeoutError):  # apt-get names the holder of the lock
        wait_until(has_lock, timeout_seconds=PATIENCE_SECONDS, poll_seconds=1, what="another apt-get to end")
    if problem:
        lines = problem.splitlines()
        reason = next((line for line in lines if "Could not get lock" in line), lines[-1])
        raise PrerequisiteMissing(f"{needed_by} needs {' '.join(packages)}; 'apt-get {arguments[0]}' failed: {reason}")


@contextmanager
def _no_service_starts() -> Iterator[None]:
    """Prevent packages from starting services, unless the machine has its own policy."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101  # action forbidden by policy\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)  # another process may have begun at the same time


def _check_namespaces() -> None:
    """Raise PrerequisiteMissing where root may not create namespaces, as in unprivileged containers."""
    command = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "true"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise PrerequisiteMissing(f"the test cluster needs permission to create namespaces: {result.stderr.strip()}")
