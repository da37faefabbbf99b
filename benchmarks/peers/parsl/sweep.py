# https://parsl.readthedocs.io/en/stable/userguide/configuration/examples.html
# https://parsl.readthedocs.io/en/stable/userguide/workflows/checkpoints.html
# python sweep.py JOBS GPUS_PER_JOB
import sys

import parsl
from parsl.addresses import address_by_hostname
from parsl.config import Config
from parsl.dataflow.memoization import BasicMemoizer
from parsl.executors import HighThroughputExecutor
from parsl.providers import SlurmProvider
from parsl.utils import get_all_checkpoints

config = Config(
    retries=1,
    memoizer=BasicMemoizer(checkpoint_mode="task_exit", checkpoint_files=get_all_checkpoints()),
    executors=[
        HighThroughputExecutor(
            address=address_by_hostname(),
            available_accelerators=int(sys.argv[2]),
            provider=SlurmProvider(
                init_blocks=int(sys.argv[1]),
                max_blocks=int(sys.argv[1]),
                cores_per_node=int(sys.argv[2]),
                gpus_per_node=int(sys.argv[2]),
                exclusive=False,
                walltime="00:10:00",
                worker_init="export PYTHONPATH=$PWD",
            ),
        )
    ],
)


@parsl.python_app(cache=True)
def train(seconds, index):
    from trial import wait

    wait(seconds, index)


trials = sorted((float(seconds), int(index)) for seconds, index in map(str.split, open("trials.txt")))
with parsl.load(config):
    for future in [train(*trial) for trial in reversed(trials)]:
        future.result()
