"""A real Slurm cluster of a few hosts with two fake GPUs each, on one machine, for tests and for trying things out.

Each host is a set of Linux namespaces with its own name, network, processes, /tmp and /dev/shm; all other folders are
shared, as on a cluster with a shared file system. slurmctld, the accounting and the clients run on a fifth host, the
head node, which has its own /etc/slurm and /etc/hosts. All networks are in namespaces: nothing can be reached from
outside, nothing reaches out, and the settings of the machine stay unchanged. All files are in one state folder:
$TRAINYARD_CLUSTER, by default /tmp/trainyard-cluster, with "-<site>" added for all sites but the first.
"""

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from slurm_cluster import config, freezer
from slurm_cluster.client import Client
from slurm_cluster.hosts import BRIDGE, PRIVATE_FOLDERS, Host
from slurm_cluster.namespaces import (
    Namespaces,
    Process,
    daemon_environment,
    end_processes_with_mount,
    processes_with_mount,
    tail,
)
from slurm_cluster.prerequisites import ensure_prerequisites, require_root
from slurm_cluster.record import Record, exclusive
from slurm_cluster.site import FIRST, Site
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until

DEFAULT_STATE = "/tmp/trainyard-cluster"
HEAD_DAEMONS = {"munged", "slurmctld"}
SLURM_DAEMONS = {  # on the head: the command and the port of each
    "slurmctld": (["slurmctld", "-D", "-i"], config.SLURMCTLD_PORT),
    "slurmdbd": (["slurmdbd", "-D"], config.SLURMDBD_PORT),
}
ACCOUNTING_DAEMONS = {"mariadbd", "slurmdbd"}
MAX_STATE_PATH = 70  # characters: paths of sockets in it may have 107
START_SECONDS = PATIENCE_SECONDS  # for one daemon
SMALL_MIB = 8  # the size of the small file system
LOCK_SECONDS = 1200  # the longest time of another test run
REPOSITORY = Path(__file__).resolve().parents[2]


class ClusterError(RuntimeError):
    """The cluster cannot be used; the message says why and what to do, in one or two lines."""


class Cluster(Client):
    """The cluster of one state folder: use `with Cluster() as cluster:`, up() and down(), or attach().

    `visible` are folders below /tmp or /dev/shm that all hosts share although these two are private to each host.
    The state folder, this repository and the running Python are always visible.
    """

    def __init__(self, state: Path | None = None, *, site: Site = FIRST, visible: Sequence[Path] = ()) -> None:
        self.site = site
        self.state = (state or _default_state(site)).absolute()
        if len(str(self.state)) > MAX_STATE_PATH or any(character.isspace() for character in str(self.state)):
            limits = f"at most {MAX_STATE_PATH} characters and no spaces"
            raise ClusterError(f"{self.state} cannot be a state folder: the path must have {limits}")
        # The source of a mount that exactly the processes of this cluster see: down() finds them by it.
        self.mark = f"trainyard-cluster:{self.state}"
        self.visible = _private_paths([self.state, REPOSITORY, Path(sys.prefix), *visible])
        self.shared = self.state / "shared"  # visible on all hosts and on the machine
        self.small = self.state / "small"  # on all hosts, not on the machine: a full disk for tests
        self.hosts: dict[str, Host] = {}
        self._owner: Process | None = None
        self._at_exit = ExitStack()

    # Up and down

    def __enter__(self) -> Self:
        """Lock the cluster until the end of the block, and take it down then unless it was up before."""
        with ExitStack() as stack:
            stack.enter_context(self.exclusive())
            if self.up(owned=True):
                stack.callback(self._clean)
            self._at_exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._at_exit.close()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the cluster against other processes, waiting for one that holds the lock."""
        if any(process.pid == os.getpid() for process in processes_with_mount(self.mark)):
            raise ClusterError("this process runs inside the cluster; leave its shell first")
        with exclusive(self.mark, timeout_seconds=LOCK_SECONDS):
            yield

    def up(self, *, owned: bool = False) -> bool:
        """Start the cluster (True) or attach to it (False); call it under exclusive().

        An owned cluster ends with the thread that calls this, however that ends.
        """
        ensure_prerequisites()
        problem = self._attach_problem()
        if not problem and not self._orphaned():
            return False
        if self.state.exists() or processes_with_mount(self.mark):
            print(f"removing the remains of a cluster: {problem or 'the process that owned it has ended'}", flush=True)
            self._clean()
        try:
            self._owner = Process.of(os.getpid())  # until everything is up
            self._start(owned=owned)
            self._owner = self._owner if owned else None
            self._save_record()
        except BaseException:  # including Ctrl-C: a partial cluster cannot be used
            self._clean()
            raise
        return True

    def down(self) -> bool:
        """End all processes of the cluster and remove its files, under exclusive(); False if there were none."""
        if not self.state.exists() and not processes_with_mount(self.mark):
            return False
        self._clean()
        return True

    def attach(self) -> None:
        """Use the cluster that is up; raises ClusterError if none is up or if it is broken."""
        require_root()
        if problem := self._attach_problem():
            option = "" if self.site is FIRST else f" SITE={self.site.name}"
            raise ClusterError(f"{problem}; start it with: make cluster-up{option}")

    def host(self, number: int) -> Host:
        """The host of this number, counted from 1."""
        return self.hosts[self.site.hosts[number - 1]]

    def processes_left(self) -> dict[str, list[Process]]:
        """The processes of each host other than Slurm's daemons; hosts without any are left out."""
        return {host.name: left for host in self.hosts.values() if (left := host.processes_left())}

    def kill_daemon(self, name: str) -> None:
        """Send SIGKILL to slurmctld or slurmdbd."""
        for process in self.head.processes():
            if process.name == name:
                process.signal(signal.SIGKILL)
        wait_until(lambda: name not in {each.name for each in self.head.processes()}, what=f"{name} to end")

    def start_daemon(self, name: str) -> None:
        """Start slurmctld or slurmdbd on the head, and wait until it listens."""
        command, port = SLURM_DAEMONS[name]
        self._start_on_head(name, command)
        self._wait_for(name, lambda: self.head.listens(port))

    def repair(self) -> None:
        """Restore the head, power, network and slurmd on every host and empty the queue, as the next test expects."""
        running = {process.name for process in self.head.processes()}
        for name in ("slurmdbd", "slurmctld") if self.site.accounting else ("slurmctld",):
            if name not in running:
                self.start_daemon(name)
        for host in self.hosts.values():
            if host.spaces is None:
                host.boot()
            host.reconnect()
            if not host.slurmd():
                host.start_slurmd()
        self.cancel_all_jobs()
        self._wait_for("slurmctld", self._resumed)

    # Parts of starting

    def _start(self, *, owned: bool) -> None:
        config.write_files(self.state, self.site)
        mark = (self.mark, self.state / "database")
        self.spaces = Namespaces.open(log=self._log("head"), mark=mark, ends_with_caller=owned)
        self._set_up_head()
        self._start_on_head("munged", config.munged_command(self.state))
        if self.site.accounting:
            self._start_on_head("mariadbd", config.database_command(self.state))
        for host in self._make_hosts():  # while the database starts
            host.boot()
        self._wait_for("munged", (self.state / "munge/socket").exists)
        if self.site.accounting:
            self._start_accounting()
        self.start_daemon("slurmctld")
        for command in config.limit_commands(self.site):
            self.run(["sacctmgr", "--immediate", *command], cwd="/")
        for host in self.hosts.values():
            host.start_slurmd()
        self._wait_for("slurmctld", lambda: set(self.host_states().values()) == {"idle"})

    def _start_accounting(self) -> None:
        self._wait_for("mariadbd", lambda: self.head.listens(config.DATABASE_PORT))
        self.start_daemon("slurmdbd")
        for command in config.accounting_commands():
            self.run(["sacctmgr", "--immediate", *command], cwd="/")

    def _set_up_head(self) -> None:
        lines = [
            f"mount --bind {self.state}/etc/slurm /etc/slurm",
            f"mount --bind {self.state}/etc/hosts /etc/hosts",
            f"mount -t tmpfs -o size={SMALL_MIB}m,mode=1777 {shlex.quote(self.mark)} {self.small}",
            f"hostname {config.HEAD}",
            "ip link set lo up",
            f"ip link add {BRIDGE} type bridge",
            f"ip address add {config.HEAD_ADDRESS}/24 dev {BRIDGE}",
            f"ip link set {BRIDGE} up",
        ]
        self.run(["sh", "-ec", "\n".join(lines)], cwd="/", env=daemon_environment())

    def _make_hosts(self) -> list[Host]:
        self.hosts = {
            name: Host(
                name=name,
                number=self.site.number(name),
                state=self.state,
                mark=self.mark,
                visible=self.visible,
                head=self.head,
                changed=self._save_record,
                has_freezer=self.site.proctrack == "cgroup",
            )
            for name in self.site.hosts
        }
        return list(self.hosts.values())

    def _start_on_head(self, daemon: str, argv: Sequence[str]) -> None:
        self.head.start_daemon(argv, log=self._log(daemon))

    def _wait_for(self, daemon: str, ready: Callable[[], bool]) -> None:
        try:
            wait_until(ready, timeout_seconds=START_SECONDS, what=f"{daemon} to be ready")
        except TimeoutError as error:
            raise ClusterError(f"{error}; its log ends:\n{tail(self._log(daemon))}") from None

    def _log(self, daemon: str) -> Path:
        return self.state / "log" / f"{daemon}.log"

    # Parts of attaching and ending

    def _resumed(self) -> bool:
        """Whether all hosts are idle; resumes those that are down or, as a process was slow to end, drained."""
        states = self.host_states()
        if unused := [name for name, state in states.items() if "down" in state or "drain" in state]:
            self.run(["scontrol", "update", f"nodename={','.join(unused)}", "state=resume"], check=False)
        return set(states.values()) == {"idle"}

    def _save_record(self) -> None:
        spaces = {config.HEAD: self.spaces} | {host.name: host.spaces for host in self.hosts.values()}
        first = {name: space.first for name, space in spaces.items() if space}
        visible = tuple(map(str, self.visible))
        Record(site=repr(self.site), owner=self._owner, visible=visible, first=first).save(self._record_file)

    @property
    def _record_file(self) -> Path:
        return self.state / "record.json"

    def _attach_problem(self) -> str:
        """Attach to the recorded cluster; return why that is impossible, or an empty string."""
        record = Record.load(self._record_file)
        if record is None:
            return "no cluster is up"
        if record.site != repr(self.site):
            return "another site is up"
        alive = {name for name, first in record.first.items() if first.alive()}
        if dead := {config.HEAD, *self.site.hosts} - alive:
            return f"the cluster is up, but without {', '.join(sorted(dead))}"
        unseen = [str(path) for path in self.visible if str(path) not in record.visible]
        if unseen:
            return f"the cluster is up, but its hosts cannot see {', '.join(unseen)}"
        self._owner = record.owner
        self.spaces = Namespaces(first=record.first[config.HEAD])
        for host in self._make_hosts():
            host.spaces = Namespaces(first=record.first[host.name])
        return self._missing_daemons()

    def _missing_daemons(self) -> str:
        expected = HEAD_DAEMONS | (ACCOUNTING_DAEMONS if self.site.accounting else set())
        missing = expected - {process.name for process in self.head.processes()}
        missing |= {f"slurmd of {host.name}" for host in self.hosts.values() if not host.slurmd()}
        return f"the cluster is up, but without {', '.join(sorted(missing))}" if missing else ""

    def _orphaned(self) -> bool:
        """Whether the test run that owns the cluster ended without taking it down."""
        return self._owner is not None and not self._owner.alive()

    def _clean(self) -> None:
        """Remove everything, found by the mark and not by the record: also the remains of a killed or failed start."""
        end_processes_with_mount(self.mark)
        freezer.remove(self.state)
        shutil.rmtree(self.state, ignore_errors=not self.state.exists())
        self.spaces, self.hosts = None, {}


def _default_state(site: Site) -> Path:
    return Path(os.environ.get("TRAINYARD_CLUSTER", DEFAULT_STATE) + ("" if site is FIRST else f"-{site.name}"))


def _private_paths(paths: Sequence[Path]) -> list[Path]:
    """The paths below a private folder of the hosts, without those below another one of these paths."""
    inside = [path.absolute() for path in paths if any(path.absolute().is_relative_to(f) for f in PRIVATE_FOLDERS)]
    return sorted({path for path in inside if not any(other in path.parents for other in inside)})
