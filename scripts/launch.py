"""Start train.py on every GPU of this job: what rule `train` runs. Its further options are train.py's.

One node:      torchrun with a rendezvous of its own, so that two trainings on one host never meet.
Several nodes: inside a Slurm job, one torchrun per node, started by srun. They meet at the job's first node, at a port
derived from the job; a rank that dies ends the whole job at once.

Where the training fails, the last line says which rank failed first, on which node, and why.
"""

import argparse
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from trainyard import failures, programs, slurm
from trainyard.config import split_scale
from trainyard.errors import UserError

TRAIN = Path(__file__).with_name("train.py")
AGENT = Path(__file__).with_name("agent.py")  # torchrun
log = logging.getLogger("launch")


def launch_line(
    scale: str, options: Sequence[str], *, log_dir: str, allocation: slurm.Allocation | None = None
) -> list[str]:
    """The command that starts all ranks of a scale, each running train.py with these options.

    Raises:
        UserError: a scale of several nodes outside of a Slurm job, or in one with another number of nodes.
    """
    nodes, gpus = split_scale(scale)
    torchrun = [sys.executable, str(AGENT), "--nproc-per-node", str(gpus), "--log-dir", log_dir]
    program = [str(TRAIN), "--scale", scale, *options]
    if nodes == 1:
        return [*torchrun, "--standalone", *program]
    if allocation is None or len(allocation.nodes) != nodes:
        held = "this is not a Slurm job" if allocation is None else f"the job has {len(allocation.nodes)}"
        raise UserError(
            f"scale {scale} needs {nodes} nodes, but {held}: run it with `snakemake --profile profiles/slurm`"
        )
    srun = ["srun", "--nodes", str(nodes), "--ntasks", str(nodes), "--ntasks-per-node", "1", "--kill-on-bad-exit=1"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-id", allocation.job, "--rdzv-endpoint", rendezvous(allocation)]
    return [*srun, *torchrun, "--nnodes", str(nodes), *meeting, *program]


def rendezvous(allocation: slurm.Allocation) -> str:
    """Where the torchruns of a job meet: its first node, at a port of 20000 to 29999 that other jobs there do not use.

    Jobs that run at the same time have neighbouring numbers, so their ports differ; Linux gives ports from 32768 on
    to outgoing connections, so none of those is in the way.
    """
    return f"{allocation.nodes[0]}:{20000 + int(allocation.job) % 10000}"


def main() -> int:
    """Launch, pass on a request to end, and end as the training does."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python scripts/launch.py --scale 1x2 --config config/config.yaml --study width",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scale", required=True, metavar="NxG", help="nodes x GPUs per node, or 1x2/repeat-2")
    parser.add_argument("--log-file", type=Path, metavar="FILE", help="write what is said to this file, too")
    arguments, options = parser.parse_known_args()
    programs.set_up_logging(arguments.log_file)
    if arguments.log_file:
        options += ["--log-file", str(arguments.log_file)]
    # torchrun sets one thread, with a warning, where nothing is set; train.py then sets what the study says.
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    # torchrun would leave a folder behind at every run; this one lies where all nodes see it.
    with tempfile.TemporaryDirectory(prefix=".torchrun-", dir=Path.cwd()) as log_dir:
        try:
            allocation = slurm.allocation() if split_scale(arguments.scale)[0] > 1 else None
            line = launch_line(arguments.scale, options, log_dir=log_dir, allocation=allocation)
        except UserError as error:
            log.error("%s", error)
            return 1
        process = subprocess.Popen(line, env=environment)

        def pass_on(number: int, frame: FrameType | None) -> None:
            process.send_signal(number)

        signal.signal(signal.SIGTERM, pass_on)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches torchrun, too: it is for that to end first
        code = process.wait()
        if first := failures.cause(Path(log_dir)):
            log.error("rank %d on %s ended the training: %s", first.rank, first.node, first.message)
    return code


if __name__ == "__main__":
    sys.exit(main())
