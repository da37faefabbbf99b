"""The launch line is what a user would type: compared with its golden text."""

import sys

from launch import TRAIN, launch_line


def test_one_node_is_a_standalone_torchrun():
    line = launch_line("1x4", ["--config", "c.yaml", "--study", "s"], log_dir="/logs")
    assert " ".join(line) == (
        f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 4 --log-dir /logs "
        f"{TRAIN} --scale 1x4 --config c.yaml --study s"
    )
