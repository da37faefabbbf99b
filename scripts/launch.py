"""Start train.py on every GPU of this job: what rule `train` runs. Its options are train.py's.

On one node this is torchrun with a rendezvous of its own, so that two trainings on one host never meet.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from trainyard.config import split_scale

TRAIN = Path(__file__).with_name("train.py")


def launch_line(scale: str, options: Sequence[str], *, log_dir: str) -> list[str]:
    """The command that starts all ranks of a scale on this node, each running train.py with these options."""
    _, gpus = split_scale(scale)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)]
    return [*torchrun, "--log-dir", log_dir, str(TRAIN), "--scale", scale, *options]


def main() -> int:
    """Launch, pass on a request to end, and end as the training does."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python scripts/launch.py --scale 1x2 --config config/config.yaml --study width",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scale", required=True, metavar="NxG", help="nodes x GPUs per node")
    arguments, options = parser.parse_known_args()
    environment = os.environ | {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")
    }  # train.py sets what it needs
    with tempfile.TemporaryDirectory(prefix="torchrun-") as log_dir:  # torchrun would leave one behind at every run
        process = subprocess.Popen(launch_line(arguments.scale, options, log_dir=log_dir), env=environment)

        def pass_on(number: int, frame: FrameType | None) -> None:
            process.send_signal(number)

        signal.signal(signal.SIGTERM, pass_on)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches torchrun, too: it is for that to end first
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
