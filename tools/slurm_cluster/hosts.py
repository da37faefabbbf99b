"""One host of the test cluster: namespaces, network, private folders, slurmd, and faults to inject."""

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_cluster import config, freezer
from slurm_cluster.namespaces import Namespaces, Process, run
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until

BRIDGE = "cluster"
PRIVATE_FOLDERS = (Path("/tmp"), Path("/dev/shm"))
DAEMONS = ("slurmd", "slurmstepd")


def job_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without the variables of another Slurm cluster or job, plus `extra`."""
    prefixes = ("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)} | dict(extra or {})


@dataclass
class Host:
    """A compute host. `spaces` is None while it is powered off."""

    name: str
    number: int  # from 1
    state: Path
    mark: str
    visible: Sequence[Path]  # paths in private folders that all hosts share
    head: Namespaces
    changed: Callable[[], None]  # called after power on and off
    has_freezer: bool  # its processes are in control groups
    spaces: Namespaces | None = None

    @property
    def link(self) -> str:
        """The network interface of the head node that is connected to this host."""
        return f"v{self.number}"

    @property
    def log(self) -> Path:
        """The log of the namespaces and of slurmd."""
        return self.state / "log" / f"slurmd-{self.name}.log"

    @property
    def inside(self) -> Namespaces:
        """The namespaces of the host; raises RuntimeError while it is powered off."""
        if self.spaces is None:
            raise RuntimeError(f"{self.name} is powered off; boot() it first")
        return self.spaces

    # Up and down

    def boot(self) -> None:
        """Create the host: namespaces, network link, private folders. It does not start slurmd."""
        self.spaces = self.head.open_another(log=self.log)
        self._head_shell(
            f"ip link delete {self.link} 2>/dev/null || true",  # from before the last power off
            f"ip link add {self.link} type veth peer name eth0 netns {self.spaces.first.pid}",
            f"ip link set {self.link} master {BRIDGE} up",
        )
        network = [
            f"hostname {self.name}",
            "ip link set lo up",
            f"ip link set eth0 address {config.hardware_address(self.number)}",
            f"ip address add {config.address(self.number)}/24 dev eth0",
            "ip link set eth0 up",
        ]
        folders = [line for folder in PRIVATE_FOLDERS for line in self._private_folder(folder)]
        folders += freezer.mount_commands(self.state, self.name) if self.has_freezer else []
        self.run(["sh", "-ec", "\n".join(network + folders)], cwd="/")
        self.changed()

    def power_off(self) -> None:
        """Kill all processes of the host at once, including slurmd, as in a power failure."""
        first = self.inside.first
        first.signal(signal.SIGKILL)
        wait_until(lambda: not first.alive(), what=f"{self.name} to power off")
        self.spaces = None
        self.changed()

    def start_slurmd(self) -> None:
        """Start slurmd in the background; it registers with slurmctld by itself."""
        (self.state / "slurmd" / self.name).mkdir(parents=True, exist_ok=True)
        self.inside.start_daemon(["slurmd", "-D", "-N", self.name], log=self.log)

    def slurmd(self) -> Process | None:
        """The slurmd of the host, or None."""
        return next((process for process in self.inside.processes() if process.name == "slurmd"), None)

    def kill_slurmd(self) -> None:
        """Send SIGKILL to slurmd; jobs on the host continue."""
        if slurmd := self.slurmd():
            slurmd.signal(signal.SIGKILL)
            wait_until(lambda: not slurmd.alive(), what=f"{slurmd.name} to end on {self.name}")

    def disconnect(self) -> None:
        """Take the network link down; jobs on the host continue."""
        self._head_shell(f"ip link set {self.link} down")

    def reconnect(self) -> None:
        """Bring the network link up again."""
        self._head_shell(f"ip link set {self.link} up")

    # Look inside

    def command(self, argv: Sequence[str], *, cwd: Path | str | None = None) -> list[str]:
        """The command line (for subprocess) that runs argv on this host."""
        return self.inside.command(argv, cwd=cwd)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float = PATIENCE_SECONDS,
        check: bool = True,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run argv on this host and capture its output; raises CommandFailed if it fails and check is set."""
        shown = f"on {self.name}: {shlex.join(argv)}"
        command = self.command(argv, cwd=cwd)
        return run(command, shown=shown, timeout_seconds=timeout_seconds, check=check, env=job_environment(env))

    def processes(self) -> list[Process]:
        """All processes of this host; none while it is powered off."""
        return self.spaces.processes() if self.spaces else []

    def processes_left(self) -> list[Process]:
        """The processes of this host other than Slurm's daemons: of jobs, or left behind by jobs."""
        return [process for process in self.processes() if process.name not in DAEMONS]

    def path(self, inside: Path | str) -> Path:
        """The path on the machine of a path on this host: host.path("/tmp") is its private /tmp."""
        return self.inside.path(inside)

    # Parts

    def _head_shell(self, *lines: str) -> None:
        script = "\n".join(lines)
        command = self.head.client_command(["sh", "-ec", script], cwd="/")
        run(command, shown=f"on the head: {script}")

    def _private_folder(self, folder: Path) -> list[str]:
        """Shell lines that mount an empty file system over a folder and bind the visible paths back into it.

        It is prepared in another folder first: once it is mounted over /tmp, nothing below /tmp can be reached.
        """
        stage = self.state / "stage"
        lines = [f"mount -t tmpfs -o mode=1777 {shlex.quote(self.mark)} {stage}"]
        for path in (*self.visible, self.state / "small"):  # a mount of its own, which its parent's does not include
            if path.is_relative_to(folder):
                target = shlex.quote(str(stage / path.relative_to(folder)))
                lines += [f"mkdir -p {target}", f"mount --bind {shlex.quote(str(path))} {target}"]
        return [*lines, f"mount --move {stage} {folder}"]
