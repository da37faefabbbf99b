"""Linux namespaces that act as a host, and the processes in them, created with the programs of util-linux.

`unshare` starts the first process of a host, which sleeps. When it ends, the kernel kills all processes of its PID
namespace, so that nothing that a job leaves behind outlives the host.
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

# The first process of a PID namespace adopts orphans. With SIGCHLD ignored, the kernel reaps them.
FIRST_PROCESS = ["env", "--ignore-signal=CHLD", "sleep", "infinity"]
TCP_LISTEN = "0A"  # the state column of /proc/<pid>/net/tcp


class CommandFailed(RuntimeError):
    """A command failed; the message has the command, its exit code and the last lines of its output."""


@dataclass(frozen=True)
class Process:
    """A process, distinct from later processes with the same PID."""

    pid: int
    start_ticks: int  # since boot, as in /proc/<pid>/stat
    name: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process with this PID in this PID namespace; None if it has ended or is a zombie."""
        with suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            return cls(pid=pid, start_ticks=int(fields[19]), name=name) if fields[0] not in "ZX" else None
        return None

    def alive(self) -> bool:
        """Whether this process is running."""
        now = Process.of(self.pid)
        return now is not None and now.start_ticks == self.start_ticks

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process; does nothing if it has ended, even if its PID is in use again."""
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.alive():
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    def namespace(self, kind: str) -> str | None:
        """The ID of its namespace of this kind, such as "pid:[4026532201]"; None if it is not accessible."""
        return _namespace(self.pid, kind)


def _namespace(pid: int, kind: str) -> str | None:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    return None


def _all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def all_processes() -> Iterator[Process]:
    """All processes of this PID namespace except zombies."""
    return (process for pid in _all_pids() if (process := Process.of(pid)))


def processes_with_mount(source: str) -> list[Process]:
    """The processes in whose mount namespace a file system of this source is mounted."""
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
    with suppress(OSError):  # the process may have ended
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        return any(line.partition(" - ")[2].split()[1] == source for line in lines)
    return False


def end_processes_with_mount(source: str, *, timeout_seconds: float = PATIENCE_SECONDS) -> None:
    """Kill the processes that have a file system of this source mounted, including those they start meanwhile."""

    def none_left() -> bool:
        found = processes_with_mount(source)
        for process in found:
            process.signal(signal.SIGKILL)
        for process in found:
            _reap(process.pid)
        return not found

    wait_until(none_left, timeout_seconds=timeout_seconds, what="the cluster's processes to end")


def _reap(pid: int) -> None:
    """Collect the exit status if it was a child of this process: otherwise it would remain as a zombie."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


@dataclass(frozen=True)
class Namespaces:
    """The mount, network, UTS, IPC and PID namespaces of a host, which exist as long as their first process."""

    first: Process
    ends_with_caller: bool = False  # whether the kernel kills the first process when that which created it ends

    @classmethod
    def open(cls, *, log: Path, mark: tuple[str, Path], ends_with_caller: bool) -> Self:
        """Create namespaces. `mark` is (source, mount point) of a tmpfs that is mounted first.

        /proc remains that of the machine, for processes of the machine that enter all but the PID namespace.
        """
        script = f'mount -t tmpfs "$1" "$2" && exec {shlex.join(FIRST_PROCESS)}'
        first = ["sh", "-c", script, "sh", mark[0], str(mark[1])]
        return cls._spawn(["unshare"], first, log=log, ends_with_caller=ends_with_caller)

    def open_another(self, *, log: Path) -> Self:
        """Create namespaces with a copy of these mounts and their own /proc."""
        unshare = ["nsenter", f"--target={self.first.pid}", "--mount", "unshare", "--mount-proc"]
        return self._spawn(unshare, FIRST_PROCESS, log=log, ends_with_caller=self.ends_with_caller)

    @classmethod
    def _spawn(cls, unshare: Sequence[str], first: Sequence[str], *, log: Path, ends_with_caller: bool) -> Self:
        kinds = ["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        arguments = [*unshare, *kinds, *first]
        if ends_with_caller:
            arguments = ["setpriv", "--pdeathsig=KILL", *arguments]
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # Not subprocess.Popen, whose object would have to live as long as the host. In a new session, so that Ctrl-C
        # and a closed terminal do not end the host.
        holder = os.posix_spawnp(arguments[0], arguments, daemon_environment(), file_actions=actions, setsid=True)
        child = wait_until(lambda: _child_of(holder, log=log), what="the first process of a host")
        return cls(first=child, ends_with_caller=ends_with_caller)

    def command(self, argv: Sequence[str], *, cwd: Path | str | None = None) -> list[str]:
        """The command line that runs argv as a process of this host.

        nsenter forks for it. The command is killed with nsenter, so that killing the caller's child ends it.
        """
        enter = ["--mount", "--net", "--uts", "--ipc", "--pid", f"--wdns={cwd or Path.cwd()}"]
        return ["nsenter", f"--target={self.first.pid}", *enter, "setpriv", "--pdeathsig=KILL", *argv]

    def client_command(self, argv: Sequence[str], *, cwd: Path | str | None = None) -> list[str]:
        """The command line that runs argv with the files, name and network of this host, as a process of the machine.

        nsenter replaces itself by the command, so that signals to the caller's child reach it.
        """
        enter = ["--mount", "--net", "--uts", f"--wdns={cwd or Path.cwd()}"]
        return ["nsenter", f"--target={self.first.pid}", *enter, *argv]

    def start_daemon(self, argv: Sequence[str], *, log: Path) -> None:
        """Start argv in the background as a process of this host; its output goes to the log."""
        enter = ["nsenter", f"--target={self.first.pid}", "--mount", "--net", "--uts", "--ipc", "--pid", "--wdns=/"]
        with log.open("a") as output:
            subprocess.run(
                [*enter, "setsid", "--fork", *argv],
                env=daemon_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=True,
            )

    def processes(self) -> list[Process]:
        """The processes of this host except the first one."""
        here = self.first.namespace("pid")
        inside = (Process.of(pid) for pid in _all_pids() if _namespace(pid, "pid") == here)
        return [process for process in inside if process and process != self.first]

    def listens(self, port: int) -> bool:
        """Whether a process of this host listens on the TCP port."""
        tables = [Path(f"/proc/{self.first.pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
        rows = [line.split() for table in tables for line in table.splitlines()[1:]]
        return any(row[3] == TCP_LISTEN and int(row[1].rpartition(":")[2], 16) == port for row in rows)

    def path(self, inside: Path | str) -> Path:
        """The path on the machine of a path on this host, for example of its private /tmp."""
        return Path(f"/proc/{self.first.pid}/root") / str(inside).lstrip("/")


def _child_of(holder: int, *, log: Path) -> Process | None:
    """The sleeping child of an unshare, or None before it exists; raises CommandFailed if unshare has ended."""
    ended, status = os.waitpid(holder, os.WNOHANG)
    if ended:
        raise CommandFailed(f"unshare exited {os.waitstatus_to_exitcode(status)}: {tail(log)}")
    children = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
    child = Process.of(int(children[0])) if children else None
    return child if child and child.name == "sleep" else None


def daemon_environment() -> dict[str, str]:
    """A fixed environment, so that daemons do not depend on that of the caller."""
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
    """Run a command and capture its output; the error message names it `shown` and has its last lines."""
    result = finished(argv, check=False, timeout_seconds=timeout_seconds, env=env, input=stdin)
    if check and result.returncode != 0:
        last_lines = "\n".join((result.stdout + result.stderr).strip().splitlines()[-20:])
        raise CommandFailed(f"{shown} exited {result.returncode}: {last_lines}")
    return result


def tail(log: Path, *, lines: int = 5) -> str:
    """The last lines of a log, for an error message."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"
