"""Command lines that start a training on every GPU of a job: Trainyard's own, or a user's script with its launcher."""

import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from trainyard.cluster.slurm_allocation import Allocation, current_allocation
from trainyard.config.scaling import split_scale
from trainyard.scaling.notices import forward_to_launched
from trainyard.training import rank_failures
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import SCRIPTS, helper_command

TRAIN: Final = SCRIPTS / "train.py"
AGENT: Final = "scaling.agent"  # torchrun
WATCH: Final = "scaling.watch"
NODE_RANK: Final = "{node_rank}"  # replaced on each node
log = logging.getLogger(__name__)


def launch(scale: str, options: Sequence[str]) -> int:
    """Run torchrun on all nodes of a scale and forward signals to it; returns its exit code.

    On one node, torchrun has a standalone rendezvous, so that two trainings on a host do not interfere. On several
    nodes of a Slurm job, srun starts one torchrun per node. If the training fails, the last line of the log names the
    rank that failed first, its node and the error.
    """
    # Unset, torchrun sets it to 1 with a warning. Each rank then uses the threads of the study.
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    # torchrun does not remove its log folder. The agents need one on the shared file system.
    with tempfile.TemporaryDirectory(prefix=".torchrun-", dir=Path.cwd()) as log_dir:
        given = current_allocation() if split_scale(scale)[0] > 1 else None
        line = training_command(scale, options, log_dir=log_dir, allocation=given)
        process = subprocess.Popen(line, env=environment)
        forward_to_launched(process, through_srun=given is not None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # torchrun also receives Ctrl-C, and ends first
        code = process.wait()
        if first := rank_failures.first_failure(Path(log_dir)):
            log.error("rank %d on %s ended the training: %s", first.rank, first.node, first.message)
    return code


@dataclass(frozen=True)
class Rendezvous:
    """The address at which the ranks of a training connect, and the ID of the rendezvous."""

    host: str
    port: int
    run_id: str = "trainyard"


def training_command(scale: str, options: Sequence[str], *, log_dir: str, allocation: Allocation | None) -> list[str]:
    """The command that starts all ranks of a scale, each of which runs train.py with these options.

    Raises:
        UserError: the scale has several nodes, but there is no Slurm job with this number of nodes.
    """
    nodes, gpus = split_scale(scale)
    torchrun = [*helper_command(AGENT), "--nproc-per-node", str(gpus), "--log-dir", log_dir]
    program = [str(TRAIN), *options]
    checked = check_allocation(scale, allocation)
    if checked is None:
        return [*torchrun, "--standalone", *program]
    srun = ["srun", "--nodes", str(nodes), "--ntasks", str(nodes), "--ntasks-per-node", "1", "--kill-on-bad-exit=1"]
    return [*srun, *torchrun, "--nnodes", str(nodes), *_rendezvous_options(rendezvous_of(checked)), *program]


def check_allocation(scale: str, allocation: Allocation | None) -> Allocation | None:
    """The allocation for a scale of several nodes; None for one node, which does not need one.

    Raises:
        UserError: there is no allocation, or it has a different number of nodes.
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
    """The first node of a job, with a port from 20000 to 29999 that other jobs on the node do not use.

    The port is derived from the job ID: jobs that run at the same time have close IDs, so their ports differ. Linux
    uses ports from 32768 on for outgoing connections.
    """
    return Rendezvous(allocation.nodes[0], 20000 + int(allocation.job) % 10000, allocation.job)


def _rendezvous_options(rendezvous: Rendezvous) -> list[str]:
    return [
        "--rdzv-backend",
        "c10d",
        "--rdzv-id",
        rendezvous.run_id,
        "--rdzv-endpoint",
        f"{rendezvous.host}:{rendezvous.port}",
    ]


def script_command(
    scale: str,
    words: Sequence[str],
    *,
    launcher: Literal["torchrun", "accelerate", "deepspeed", "srun"],
    launcher_options: Sequence[str] = (),
    python: str,
    rendezvous: Rendezvous,
    watch_options: Sequence[str],
    hostfile: Path,
    cpus_per_gpu: int,
    in_slurm: bool,
) -> list[str]:
    """The command that starts a user's script on all GPUs of a scale.

    It runs `watch` with `watch_options` once per node, which runs the launcher. With the launcher `srun`, it runs
    `watch` once per GPU, which runs the script.

    Raises:
        UserError: the launcher is `srun`, but this is not a Slurm job.
    """
    nodes, gpus = split_scale(scale)
    watch = [*helper_command(WATCH), *watch_options]
    if launcher == "srun":
        if not in_slurm:
            raise UserError("launcher: srun needs a Slurm job; use torchrun here")
        connect = ["--rendezvous", f"{rendezvous.host}:{rendezvous.port}"]
        srun = _srun(nodes, nodes * gpus, cpus=cpus_per_gpu)
        return [*srun, *launcher_options, *watch, *connect, "--", python, *words]
    module, options = {
        "torchrun": ("torch.distributed.run", _torchrun(nodes, gpus, rendezvous)),
        "accelerate": ("accelerate.commands.launch", _accelerate(nodes, gpus, rendezvous)),
        "deepspeed": ("deepspeed.launcher.runner", _deepspeed(rendezvous, hostfile)),
    }[launcher]
    each = [*watch, "--", python, "-m", module, *options, *launcher_options, *words]
    return [*_srun(nodes, nodes, cpus=cpus_per_gpu * gpus), *each] if nodes > 1 else each


def _srun(nodes: int, tasks: int, *, cpus: int) -> list[str]:
    counts = ["--nodes", str(nodes), "--ntasks", str(tasks), "--ntasks-per-node", str(tasks // nodes)]
    # --overlap: a job on one node runs this within a step that already holds its CPUs.
    return ["srun", "--overlap", *counts, "--cpus-per-task", str(cpus), "--cpu-bind=none", "--kill-on-bad-exit=1"]


def _torchrun(nodes: int, gpus: int, rendezvous: Rendezvous) -> list[str]:
    where = ["--standalone"] if nodes == 1 else ["--nnodes", str(nodes), *_rendezvous_options(rendezvous)]
    return ["--nproc-per-node", str(gpus), *where]


def _accelerate(nodes: int, gpus: int, rendezvous: Rendezvous) -> list[str]:
    count = ["--num_machines", str(nodes), "--num_processes", str(nodes * gpus), "--machine_rank", NODE_RANK]
    where = ["--main_process_ip", rendezvous.host, "--main_process_port", str(rendezvous.port)]
    several = ["--multi_gpu"] if nodes * gpus > 1 else []
    return [*several, *count, *where, "--mixed_precision", "no", "--dynamo_backend", "no"]


def _deepspeed(rendezvous: Rendezvous, hostfile: Path) -> list[str]:
    where = ["--master_addr", rendezvous.host, "--master_port", str(rendezvous.port)]
    return ["--hostfile", str(hostfile), "--no_ssh", "--node_rank", NODE_RANK, *where]
