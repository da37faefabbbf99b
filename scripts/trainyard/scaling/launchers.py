"""The lines that start a training on every GPU of a job: Trainyard's own, or a user's script by the launcher it has."""

import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from trainyard.cluster.slurm_allocation import Allocation, current_allocation
from trainyard.config.scaling import split_scale
from trainyard.training import rank_failures
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import SCRIPTS, helper_command

TRAIN: Final = SCRIPTS / "train.py"
AGENT: Final = "scaling.agent"  # torchrun
WATCH: Final = "scaling.watch"
NODE_RANK: Final = "{node_rank}"  # filled in on each node
log = logging.getLogger(__name__)


def launch(scale: str, options: Sequence[str]) -> int:
    """Start torchrun on all nodes of a scale, pass on a request to end, and end as the training does.

    One node: torchrun with a rendezvous of its own, so that two trainings on one host never meet. Several nodes: inside
    a Slurm job, one torchrun per node, started by srun. Where the training fails, the last line says which rank failed
    first, on which node, and why.
    """
    # torchrun sets one thread, with a warning, where nothing is set; the rank then sets what the study says.
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    # torchrun would leave a folder behind at every run; this one lies where all nodes see it.
    with tempfile.TemporaryDirectory(prefix=".torchrun-", dir=Path.cwd()) as log_dir:
        given = current_allocation() if split_scale(scale)[0] > 1 else None
        line = training_command(scale, options, log_dir=log_dir, allocation=given)
        process = subprocess.Popen(line, env=environment)
        pass_on_sigterm(process)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches torchrun, too: it is for that to end first
        code = process.wait()
        if first := rank_failures.first_failure(Path(log_dir)):
            log.error("rank %d on %s ended the training: %s", first.rank, first.node, first.message)
    return code


def pass_on_sigterm(process: "subprocess.Popen[Any]") -> None:
    """From now on, a request to end this program goes to a process that it waits for."""
    signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of a training meet."""

    host: str
    port: int
    name: str = "trainyard"


def training_command(scale: str, options: Sequence[str], *, log_dir: str, allocation: Allocation | None) -> list[str]:
    """What starts all ranks of a scale, each running train.py with these options, the scale among them.

    Raises:
        UserError: a scale of several nodes outside of a Slurm job, or in one with another number of nodes.
    """
    nodes, gpus = split_scale(scale)
    torchrun = [*helper_command(AGENT), "--nproc-per-node", str(gpus), "--log-dir", log_dir]
    program = [str(TRAIN), *options]
    given = check_allocation(scale, allocation)
    if given is None:
        return [*torchrun, "--standalone", *program]
    srun = ["srun", "--nodes", str(nodes), "--ntasks", str(nodes), "--ntasks-per-node", "1", "--kill-on-bad-exit=1"]
    return [*srun, *torchrun, "--nnodes", str(nodes), *_rendezvous(rendezvous_of(given)), *program]


def check_allocation(scale: str, allocation: Allocation | None) -> Allocation | None:
    """The allocation for a scale of several nodes; None for one node, which can do without.

    Raises:
        UserError: there is none, or it has another number of nodes.
    """
    nodes = split_scale(scale)[0]
    if nodes == 1:
        return None
    if allocation is None or len(allocation.nodes) != nodes:
        held = "this is not a Slurm job" if allocation is None else f"the job has {len(allocation.nodes)}"
        raise UserError(
            f"scale {scale} needs {nodes} nodes, but {held}: run it with `snakemake --profile profiles/slurm`"
        )
    return allocation


def rendezvous_of(allocation: Allocation) -> Rendezvous:
    """A job's first node, at a port of 20000 to 29999 that other jobs there do not use.

    Jobs that run at the same time have neighbouring numbers, so their ports differ; Linux gives ports from 32768 on
    to outgoing connections, so none of those is in the way.
    """
    return Rendezvous(allocation.nodes[0], 20000 + int(allocation.job) % 10000, allocation.job)


def _rendezvous(meeting: Rendezvous) -> list[str]:
    return ["--rdzv-backend", "c10d", "--rdzv-id", meeting.name, "--rdzv-endpoint", f"{meeting.host}:{meeting.port}"]


def script_command(
    scale: str,
    words: Sequence[str],
    *,
    launcher: Literal["torchrun", "accelerate", "deepspeed", "srun"],
    launcher_options: Sequence[str] = (),
    python: str,
    meeting: Rendezvous,
    watching: Sequence[str],
    hostfile: Path,
    cpus_per_gpu: int,
    in_slurm: bool,
) -> list[str]:
    """What starts a user's script on all GPUs of a scale: once per node `watch`, below it the launcher.

    `watching` are its options. With `srun` it is started once per GPU, and below it the script itself.

    Raises:
        UserError: `srun` outside of a Slurm job.
    """
    nodes, gpus = split_scale(scale)
    watch = [*helper_command(WATCH), *watching]
    if launcher == "srun":
        if not in_slurm:
            raise UserError("launcher: srun starts a script in a Slurm job; here, take torchrun")
        meet = ["--rendezvous", f"{meeting.host}:{meeting.port}"]
        srun = _srun(nodes, nodes * gpus, cpus=cpus_per_gpu)
        return [*srun, *launcher_options, *watch, *meet, "--", python, *words]
    module, options = {
        "torchrun": ("torch.distributed.run", _torchrun(nodes, gpus, meeting)),
        "accelerate": ("accelerate.commands.launch", _accelerate(nodes, gpus, meeting)),
        "deepspeed": ("deepspeed.launcher.runner", _deepspeed(meeting, hostfile)),
    }[launcher]
    each = [*watch, "--", python, "-m", module, *options, *launcher_options, *words]
    return [*_srun(nodes, nodes, cpus=cpus_per_gpu * gpus), *each] if nodes > 1 else each


def _srun(nodes: int, tasks: int, *, cpus: int) -> list[str]:
    counts = ["--nodes", str(nodes), "--ntasks", str(tasks), "--ntasks-per-node", str(tasks // nodes)]
    # --overlap: a job of one node holds its CPUs in a step already, in which this runs.
    return ["srun", "--overlap", *counts, "--cpus-per-task", str(cpus), "--cpu-bind=none", "--kill-on-bad-exit=1"]


def _torchrun(nodes: int, gpus: int, meeting: Rendezvous) -> list[str]:
    where = ["--standalone"] if nodes == 1 else ["--nnodes", str(nodes), *_rendezvous(meeting)]
    return ["--nproc-per-node", str(gpus), *where]


def _accelerate(nodes: int, gpus: int, meeting: Rendezvous) -> list[str]:
    count = ["--num_machines", str(nodes), "--num_processes", str(nodes * gpus), "--machine_rank", NODE_RANK]
    where = ["--main_process_ip", meeting.host, "--main_process_port", str(meeting.port)]
    several = ["--multi_gpu"] if nodes * gpus > 1 else []
    return [*several, *count, *where, "--mixed_precision", "no", "--dynamo_backend", "no"]


def _deepspeed(meeting: Rendezvous, hostfile: Path) -> list[str]:
    where = ["--master_addr", meeting.host, "--master_port", str(meeting.port)]
    return ["--hostfile", str(hostfile), "--no_ssh", "--node_rank", NODE_RANK, *where]
