"""What the test cluster needs of the machine, and how to get it: root, namespaces, a few Debian packages."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # daemons lie in sbin, often not on $PATH

PACKAGE_OF = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "mariadbd": "mariadb-server-core",  # the server without its service, user and /var/lib/mysql
    "mariadb-install-db": "mariadb-server-core",
    "ip": "iproute2",
    "nsenter": "util-linux",
}

POLICY = Path("/usr/sbin/policy-rc.d")  # Debian asks this program before a package may start a service


# Debian's package brings this folder and its programs look nowhere else.
SLURM_CONFIG = Path("/etc/slurm")


class PrerequisiteMissing(RuntimeError):
    """The machine cannot hold the cluster; the message is one line that says what is missing."""


def ensure_prerequisites() -> None:
    """Install what is missing where that is possible; raise PrerequisiteMissing with one line where it is not."""
    require_root()
    packages = missing_packages()
    if packages:
        _install(packages)
    _check_namespaces()
    if not SLURM_CONFIG.is_dir():
        raise PrerequisiteMissing(f"no {SLURM_CONFIG} to lay the cluster's own over: this is not Debian's Slurm")


def require_root() -> None:
    """Raise PrerequisiteMissing unless this process runs as root."""
    if os.geteuid() != 0:
        raise PrerequisiteMissing("the test cluster needs root (it makes namespaces for its four hosts)")


def missing_packages() -> list[str]:
    """The packages whose program is not there, each once."""
    return sorted({package for program, package in PACKAGE_OF.items() if not shutil.which(program, path=SYSTEM_PATH)})


def _install(packages: list[str]) -> None:
    if not shutil.which("apt-get", path=SYSTEM_PATH):
        raise PrerequisiteMissing(
            f"the test cluster needs {' '.join(packages)}, and there is no apt-get to install them"
        )
    print(f"installing {' '.join(packages)} ...", flush=True)
    with _no_service_starts():
        _apt_get("update", packages=packages)
        _apt_get("install", "--yes", "--no-install-recommends", *packages, packages=packages)
    still_missing = missing_packages()
    if still_missing:
        raise PrerequisiteMissing(f"installed, but their programs are not in {SYSTEM_PATH}: {' '.join(still_missing)}")


def _apt_get(*arguments: str, packages: list[str], timeout_seconds: float = PATIENCE_SECONDS) -> None:
    """Run apt-get, once another one is done: it waits for no lock but dpkg's, and not even for that unless told."""
    environment = {**os.environ, "PATH": SYSTEM_PATH, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    said = ""

    def is_done() -> bool:
        nonlocal said
        result = subprocess.run(["apt-get", "-qq", *arguments], env=environment, capture_output=True, text=True)
        locked = result.returncode != 0 and "Could not get lock" in result.stderr
        if locked and not said:
            print("waiting for another apt to be done ...", flush=True)
        said = result.stderr.strip() or f"exit code {result.returncode}, without a word" if result.returncode else ""
        return not locked

    with suppress(TimeoutError):  # then it is said who has the lock
        wait_until(is_done, timeout_seconds=timeout_seconds, poll_seconds=1, what="another apt to be done")
    if said:
        why = next((line for line in said.splitlines() if "Could not get lock" in line), said.splitlines()[-1])
        raise PrerequisiteMissing(
            f"the test cluster needs {' '.join(packages)}; 'apt-get {arguments[0]}' failed: {why}"
        )


@contextmanager
def _no_service_starts() -> Iterator[None]:
    """Keep packages from starting their services; a machine that has its own policy keeps that."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101  # action forbidden by policy\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def _check_namespaces() -> None:
    """Root in an unprivileged container is refused here."""
    command = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "true"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise PrerequisiteMissing(f"the test cluster needs the right to make namespaces: {result.stderr.strip()}")
