"""One host of the test cluster: its namespaces, network, private folders and slurmd; and how to break it."""

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_cluster import config
from slurm_cluster.namespaces import Namespaces, Process, run
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until

BRIDGE = "cluster"
PRIVATE_FOLDERS = (Path("/tmp"), Path("/dev/shm"))
DAEMONS = ("slurmd", "slurmstepd")


def job_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without its Slurm variables: they would speak of another cluster, or of another job."""
    theirs = ("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_")
    return {name: value for name, value in os.environ.items() if not name.startswith(theirs)} | dict(extra or {})


@dataclass
class Host:
    """A compute host, n1 to n4. `spaces` is None while it has no power."""

    name: str
    state: Path
    mark: str
    visible: Sequence[Path]  # what must be seen on every host although it lies in a private folder
    head: Namespaces
    changed: Callable[[], None]  # called when the host has lost or got power
    spaces: Namespaces | None = None

    @property
    def link(self) -> str:
        """The head's end of the host's cable."""
        return self.name.replace("n", "v")

    @property
    def log(self) -> Path:
        """The log of its namespaces and its slurmd."""
        return self.state / "log" / f"slurmd-{self.name}.log"

    @property
    def inside(self) -> Namespaces:
        """The namespaces of a host that is up."""
        if self.spaces is None:
            raise RuntimeError(f"{self.name} is powered off; boot() it first")
        return self.spaces

    # Up and down

    def boot(self) -> None:
        """Make the host: namespaces, a cable to the bridge, private folders. slurmd is not started."""
        self.spaces = self.head.open_another(log=self.log)
        self._head_shell(
            f"ip link delete {self.link} 2>/dev/null || true",  # of an earlier life of this host
            f"ip link add {self.link} type veth peer name eth0 netns {self.spaces.first.pid}",
            f"ip link set {self.link} master {BRIDGE} up",
        )
        network = [
            f"hostname {self.name}",
            "ip link set lo up",
            f"ip link set eth0 address {config.hardware_address(self.name)}",
            f"ip address add {config.address(self.name)}/24 dev eth0",
            "ip link set eth0 up",
        ]
        folders = [line for folder in PRIVATE_FOLDERS for line in self._private_folder(folder)]
        self.run(["sh", "-ec", "\n".join(network + folders)], cwd="/")
        self.changed()

    def power_off(self) -> None:
        """End every process of the host at once, slurmd too, as when the power fails."""
        first = self.inside.first
        first.signal(signal.SIGKILL)
        wait_until(lambda: not first.alive(), what=f"{self.name} to lose its power")
        self.spaces = None
        self.changed()

    def start_slurmd(self) -> None:
        """Start slurmd in the background; it registers with slurmctld a moment later."""
        (self.state / "slurmd" / self.name).mkdir(parents=True, exist_ok=True)
        self.inside.start_daemon(["slurmd", "-D", "-N", self.name], log=self.log)

    def slurmd(self) -> Process | None:
        """The host's slurmd, if it runs."""
        return next((process for process in self.inside.processes() if process.name == "slurmd"), None)

    def kill_slurmd(self) -> None:
        """SIGKILL slurmd; the jobs on the host go on."""
        if slurmd := self.slurmd():
            slurmd.signal(signal.SIGKILL)
            wait_until(lambda: not slurmd.alive(), what=f"{slurmd.name} to end on {self.name}")

    def cut_off(self) -> None:
        """Pull the network cable; the jobs on the host go on."""
        self._head_shell(f"ip link set {self.link} down")

    def reconnect(self) -> None:
        """Plug the network cable in again."""
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
        """Run argv on this host, output captured; raises CommandFailed if it exits non-zero and check is set."""
        shown = f"on {self.name}: {shlex.join(argv)}"
        command = self.command(argv, cwd=cwd)
        return run(command, shown=shown, timeout_seconds=timeout_seconds, check=check, env=job_environment(env))

    def processes(self) -> list[Process]:
        """What runs on this host; nothing while it has no power."""
        return self.spaces.processes() if self.spaces else []

    def processes_left(self) -> list[Process]:
        """What runs on this host beside Slurm's daemons: jobs, and whatever jobs left behind."""
        return [process for process in self.processes() if process.name not in DAEMONS]

    def path(self, inside: Path | str) -> Path:
        """Where the machine sees a path of this host: host.path("/tmp") is its private /tmp."""
        return self.inside.path(inside)

    # Parts

    def _head_shell(self, *lines: str) -> None:
        script = "\n".join(lines)
        command = self.head.client_command(["sh", "-ec", script], cwd="/")
        run(command, shown=f"on the head: {script}")

    def _private_folder(self, folder: Path) -> list[str]:
        """Shell lines that put an empty file system over a folder, with what must be visible bound back into it.

        It is put together in a folder of its own first: once it lies over /tmp, nothing below /tmp can be reached.
        """
        stage = self.state / "stage"
        lines = [f"mount -t tmpfs -o mode=1777 {shlex.quote(self.mark)} {stage}"]
        for path in self.visible:
            if path.is_relative_to(folder):
                target = shlex.quote(str(stage / path.relative_to(folder)))
                lines += [f"mkdir -p {target}", f"mount --bind {shlex.quote(str(path))} {target}"]
        return [*lines, f"mount --move {stage} {folder}"]
