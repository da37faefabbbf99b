"""Linux namespaces that stand in for a host, and the processes in them; util-linux does the system calls.

A host is opened by `unshare`; its first process sleeps, and ending it ends every process of the host at once, because
the kernel empties a PID namespace whose first process is gone. So nothing that a job leaves behind outlives its host.
"""

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from slurm_cluster.prerequisites import SYSTEM_PATH
from slurm_cluster.waiting import PATIENCE_SECONDS, finished, wait_until

# The first process of a PID namespace adopts its orphans. With SIGCHLD ignored the kernel reaps them: no zombies.
FIRST_PROCESS = ["env", "--ignore-signal=CHLD", "sleep", "infinity"]
TCP_LISTEN = "0A"  # the state column of /proc/<pid>/net/tcp


class CommandFailed(RuntimeError):
    """A command in the cluster exited non-zero; the message holds the command, its exit status and its last lines."""


@dataclass(frozen=True)
class Process:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start_ticks: int  # since boot, as in /proc/<pid>/stat
    name: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process with this pid (of this PID namespace), or None: gone, or a zombie."""
        with suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            return cls(pid=pid, start_ticks=int(fields[19]), name=name) if fields[0] not in "ZX" else None
        return None

    def alive(self) -> bool:
        """Whether this process, and not another with its pid, is running."""
        now = Process.of(self.pid)
        return now is not None and now.start_ticks == self.start_ticks

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this very process: the descriptor pins the pid while the start time is compared."""
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.alive():
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    def namespace(self, kind: str) -> str | None:
        """The identity of its namespace of this kind, such as "pid:[4026532201]"; None if it is gone, or guarded."""
        with suppress(OSError):
            return os.readlink(f"/proc/{self.pid}/ns/{kind}")
        return None


def all_processes() -> Iterator[Process]:
    """Every process of this PID namespace but zombies."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (process := Process.of(int(entry))):
            yield process


def processes_with_mount(source: str) -> list[Process]:
    """The processes that have a file system of this source mounted, whoever started them and however they got there."""
    known: dict[str | None, bool] = {None: False}
    found = []
    for process in all_processes():
        namespace = process.namespace("mnt")
        if namespace not in known:
            known[namespace] = _has_mount(process.pid, source)
        if known[namespace]:
            found.append(process)
    return found


def _has_mount(pid: int, source: str) -> bool:
    with suppress(OSError):  # the process may be gone by now
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        return any(line.partition(" - ")[2].split()[1] == source for line in lines)
    return False


def end_processes_with_mount(source: str, *, timeout_seconds: float = PATIENCE_SECONDS) -> None:
    """SIGKILL them, and those they start meanwhile, until there is none."""

    def none_left() -> bool:
        found = processes_with_mount(source)
        for process in found:
            process.signal(signal.SIGKILL)
        for process in found:
            _reap(process.pid)
        return not found

    wait_until(none_left, timeout_seconds=timeout_seconds, what="the cluster's processes to end")


def _reap(pid: int) -> None:
    """Collect the exit status if the process was this one's child: a zombie would stay in the process list."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


@dataclass(frozen=True)
class Namespaces:
    """The mount, network, UTS, IPC and PID namespaces that a first process holds open."""

    first: Process

    @classmethod
    def open(cls, *, log: Path, mark: tuple[str, Path]) -> Self:
        """Namespaces beside the machine's. `mark` is (source, mount point) of a tmpfs, the first thing that is mounted.

        The machine's /proc stays, so that a process of the machine can enter all but the PID namespace and find itself.
        """
        script = f'mount -t tmpfs "$1" "$2" && exec {shlex.join(FIRST_PROCESS)}'
        return cls._spawn(["sh", "-c", script, "sh", mark[0], str(mark[1])], log=log, before=[], options=[])

    def open_another(self, *, log: Path) -> Self:
        """Namespaces with a copy of this one's mounts and a /proc of their own."""
        before = ["nsenter", f"--target={self.first.pid}", "--mount"]
        return self._spawn(FIRST_PROCESS, log=log, before=before, options=["--mount-proc"])

    @classmethod
    def _spawn(cls, first: Sequence[str], *, log: Path, before: Sequence[str], options: Sequence[str]) -> Self:
        kinds = ["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        arguments = [*before, "unshare", *kinds, *options, *first]
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # Not subprocess.Popen, whose object would have to live as long as the host. A session of its own, so that
        # Ctrl-C and a closed terminal leave the host alone.
        holder = os.posix_spawnp(arguments[0], arguments, daemon_environment(), file_actions=actions, setsid=True)
        child = wait_until(lambda: _child_of(holder, log=log), what="a host's first process")
        return cls(first=child)

    def command(self, argv: Sequence[str], *, cwd: Path | str | None = None) -> list[str]:
        """The command line that runs argv inside, as a process of this host.

        nsenter has to fork for that; the command is killed when nsenter is, so that ending the caller's child ends it.
        """
        enter = ["--mount", "--net", "--uts", "--ipc", "--pid", f"--wdns={cwd or Path.cwd()}"]
        return ["nsenter", f"--target={self.first.pid}", *enter, "setpriv", "--pdeathsig=KILL", *argv]

    def client_command(self, argv: Sequence[str], *, cwd: Path | str | None = None) -> list[str]:
        """The command line that runs argv with this host's files, name and network, but as a process of the machine.

        nsenter becomes argv: the caller's child is the command itself, and signals reach it.
        """
        enter = ["--mount", "--net", "--uts", f"--wdns={cwd or Path.cwd()}"]
        return ["nsenter", f"--target={self.first.pid}", *enter, *argv]

    def start_daemon(self, argv: Sequence[str], *, log: Path) -> None:
        """Start argv inside, in the background, as a child of the first process; its output goes to the log."""
        enter = ["nsenter", f"--target={self.first.pid}", "--mount", "--net", "--uts", "--ipc", "--pid", "--wdns=/"]
        with log.open("a") as output:
            subprocess.run(
                [*enter, "setsid", "--fork", *argv],
                env=daemon_environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=True,
            )  # fmt: skip

    def processes(self) -> list[Process]:
        """The processes of this host, without its first one."""
        here = self.first.namespace("pid")
        return [process for process in all_processes() if process != self.first and process.namespace("pid") == here]

    def listens(self, port: int) -> bool:
        """Whether a process of this host listens on the TCP port."""
        tables = [Path(f"/proc/{self.first.pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
        rows = [line.split() for table in tables for line in table.splitlines()[1:]]
        return any(row[3] == TCP_LISTEN and int(row[1].rpartition(":")[2], 16) == port for row in rows)

    def path(self, inside: Path | str) -> Path:
        """Where the machine sees a path of this host, its private /tmp for instance."""
        return Path(f"/proc/{self.first.pid}/root") / str(inside).lstrip("/")


def _child_of(holder: int, *, log: Path) -> Process | None:
    """The sleeping child of an unshare, or None while there is none; raises CommandFailed if the unshare has ended."""
    ended, status = os.waitpid(holder, os.WNOHANG)
    if ended:
        raise CommandFailed(f"unshare exited {os.waitstatus_to_exitcode(status)}: {tail(log)}")
    children = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
    child = Process.of(int(children[0])) if children else None
    return child if child and child.name == "sleep" else None


def daemon_environment() -> dict[str, str]:
    """A small, fixed environment: a daemon must not depend on who started it."""
    return {"PATH": SYSTEM_PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"}


def run(
    argv: Sequence[str],
    *,
    shown: str,
    timeout_seconds: float = PATIENCE_SECONDS,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, its output captured; its error shows it as `shown`, and the last lines."""
    result = finished(argv, check=False, timeout_seconds=timeout_seconds, env=env, input=stdin)
    if check and result.returncode != 0:
        last_lines = "\n".join((result.stdout + result.stderr).strip().splitlines()[-20:])
        raise CommandFailed(f"{shown} exited {result.returncode}: {last_lines}")
    return result


def tail(log: Path, *, lines: int = 5) -> str:
    """The last lines of a log, for an error message."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"
