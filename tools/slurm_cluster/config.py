"""The configuration files of the test cluster's daemons."""

import secrets
import shutil
from pathlib import Path

from slurm_cluster.site import Site
from slurm_cluster.waiting import PATIENCE_SECONDS

CLUSTER = "trainyard"
ACCOUNT = "lab"
HEAD = "head"
NETWORK = "10.77.0"
HEAD_ADDRESS = f"{NETWORK}.254"
FOLDERS = ("database", "database-tmp", "etc/slurm", "log", "munge", "shared", "slurmctld", "slurmd", "small", "stage")

JOB_MINUTES = round(2 * PATIENCE_SECONDS / 60)  # longer than any test waits

SLURMCTLD_PORT = 6817
SLURMDBD_PORT = 6819
DATABASE_PORT = 33077


def hardware_address(number: int) -> str:
    """The MAC address of a host, the same after each boot: other hosts keep it in their ARP caches."""
    return f"02:00:00:00:00:{number:02x}"


def address(number: int) -> str:
    """The IP address of a host."""
    return f"{NETWORK}.{number}"


def hosts_file(site: Site) -> str:
    """/etc/hosts: the names of the head and the hosts."""
    lines = [f"{address(site.number(host))} {host}" for host in site.hosts]
    return "\n".join(["127.0.0.1 localhost", f"{HEAD_ADDRESS} {HEAD}", *lines]) + "\n"


def slurm_conf(state: Path, site: Site) -> str:
    """slurm.conf: daemons, nodes, partitions, scheduling, preemption, accounting."""
    shape = f"CPUs={site.cpus_per_host} RealMemory=16000 Feature=nvlink,ib State=UNKNOWN"
    of_type = {gpu_type: ",".join(hosts) for gpu_type, hosts in site.hosts_by_gpu().items()}
    kinds = [f"NodeName={names} {shape} Gres=gpu:{each}:{site.gpus_per_host}" for each, names in of_type.items()]
    nodes = "\n".join(kinds)
    lines = [*(_accounting_lines(state, site) if site.accounting else []), *site.lines]
    lines += [f"PartitionName={each} Nodes={of_type[each]} MaxTime=1-0 PreemptMode=OFF" for each in site.gpu_types]
    return f"""\
ClusterName={CLUSTER}
SlurmctldHost={HEAD}({HEAD_ADDRESS})
SlurmctldPort={SLURMCTLD_PORT}
SlurmUser=root
# A requeued job starts again only after its credential has expired, by default after 120 s.
AuthInfo=socket={state}/munge/socket,cred_expire=10
StateSaveLocation={state}/slurmctld
SlurmctldPidFile={state}/slurmctld/slurmctld.pid
SlurmdSpoolDir={state}/slurmd/%n
SlurmdPidFile={state}/slurmd/%n/slurmd.pid
MailProg=/bin/true
MpiDefault=none

# No limits and no pinning: all hosts share the cores of the machine and report more than it has.
ProctrackType=proctrack/{site.proctrack}
TaskPlugin=task/none
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE

SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1000
GresTypes=gpu

# Start and end jobs as fast as possible.
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,default_queue_depth=1000
KillWait=5
OverTimeLimit=0
CompleteWait=0
MinJobAge=300
# Seconds until a silent host is set down. Hosts on a busy machine of two cores respond late, so it cannot be less.
SlurmdTimeout=30
MessageTimeout=20
ReturnToService=2

PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1

JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2

{nodes}
PartitionName={site.partition} Nodes=ALL Default=YES MaxTime=1-0 DefaultTime={JOB_MINUTES} \
PriorityTier=10 PreemptMode=OFF
# On preemption: SIGTERM to the steps, SIGKILL after KillWait, SIGTERM to the batch script after its steps have ended.
PartitionName={site.preempt_partition} Nodes=ALL MaxTime=1-0 DefaultTime={JOB_MINUTES} PriorityTier=1 \
PreemptMode={site.preempt_mode} GraceTime={site.grace_seconds}
""" + "".join(f"{line}\n" for line in lines)


def _accounting_lines(state: Path, site: Site) -> list[str]:
    lines = [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={HEAD}",
        f"AccountingStoragePort={SLURMDBD_PORT}",
        f"AccountingStoragePass={state}/munge/socket",
        "AccountingStorageTRES=gres/gpu",
    ]
    return [*lines, "AccountingStorageEnforce=associations,limits,qos"] if site.limits else lines


def gres_conf(site: Site) -> str:
    """gres.conf: fake GPUs. Slurm requires device files; terminals exist everywhere, and nothing opens these."""
    devices = f"/dev/tty[0-{site.gpus_per_host - 1}]"
    names = {gpu_type: ",".join(hosts) for gpu_type, hosts in site.hosts_by_gpu().items()}
    return "".join(f"NodeName={names[each]} Name=gpu Type={each} File={devices}\n" for each in names)


def slurmdbd_conf(state: Path) -> str:
    """slurmdbd.conf: where the accounting daemon listens, and its database."""
    return f"""\
DbdHost={HEAD}
DbdAddr={HEAD_ADDRESS}
DbdPort={SLURMDBD_PORT}
SlurmUser=root
AuthInfo=socket={state}/munge/socket
PidFile={state}/slurmctld/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={DATABASE_PORT}
StorageUser=root
StorageLoc=slurm
"""


def munged_command(state: Path) -> list[str]:
    """The command line of munged, as the user munge, with all its files in the state folder."""
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={state / 'munge' / name}" for option, name in files.items()]
    return ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "--foreground", *options]


def database_command(state: Path) -> list[str]:
    """The command line of the database server: without accounts, as only root can connect, and without flushing."""
    server = [
        "mariadbd",
        "--no-defaults",
        "--user=root",
        f"--datadir={state}/database",
        f"--tmpdir={state}/database-tmp",  # files there are named by PID, which two clusters may share
        f"--socket={state}/database/socket",
        f"--pid-file={state}/database/pid",
        "--bind-address=127.0.0.1",
        f"--port={DATABASE_PORT}",
        "--skip-grant-tables",
        "--skip-name-resolve",
        "--innodb-flush-method=nosync",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-log-file-size=8M",
        "--innodb-buffer-pool-size=32M",
        "--innodb-lock-wait-timeout=900",
    ]
    return ["sh", "-ec", f'"$@" --bootstrap < {state}/database.sql; exec "$@"', "sh", *server]


# The tables for stored procedures, which slurmdbd uses. `mariadb-install-db` also writes accounts, help pages and time
# zones, which takes seconds.
SYSTEM_TABLES = Path("/usr/share/mysql/mysql_system_tables.sql")


def database_bootstrap() -> str:
    """The SQL that creates the system tables."""
    return "CREATE DATABASE mysql;\nUSE mysql;\n" + SYSTEM_TABLES.read_text()


def accounting_commands() -> list[list[str]]:
    """The sacctmgr commands to run before slurmctld starts; tests submit as the unprivileged user `nobody`."""
    return [
        ["add", "cluster", CLUSTER],
        ["add", "account", ACCOUNT, f"cluster={CLUSTER}", "description=lab", "organization=lab"],
        ["add", "user", "root,nobody", f"account={ACCOUNT}", f"cluster={CLUSTER}"],
    ]


def limit_commands(site: Site) -> list[list[str]]:
    """The sacctmgr command that sets the limits, to run once slurmctld has told the database of the GPUs."""
    return [["modify", "qos", "normal", "set", *site.limits]] if site.limits else []


def write_files(state: Path, site: Site) -> None:
    """Create the state folder with all files that the daemons read."""
    for folder in FOLDERS:
        (state / folder).mkdir(parents=True)
    texts = {
        "etc/hosts": hosts_file(site),
        "etc/slurm/slurm.conf": slurm_conf(state, site),
        "etc/slurm/gres.conf": gres_conf(site),
        "etc/slurm/cgroup.conf": "CgroupPlugin=cgroup/v1\n",
        "etc/slurm/slurmdbd.conf": slurmdbd_conf(state),
        "database.sql": database_bootstrap(),
    }
    for name, text in texts.items():
        (state / name).write_text(text)
    (state / "etc/slurm/slurmdbd.conf").chmod(0o600)  # slurmdbd refuses to start otherwise
    key = state / "munge/key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    for path in (key.parent, key):
        shutil.chown(path, "munge", "munge")
