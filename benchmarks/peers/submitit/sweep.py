# https://github.com/facebookincubator/submitit/blob/main/docs/examples.md
import sys
from pathlib import Path

import submitit
from trial import wait

trials = sorted((float(seconds), int(index)) for seconds, index in map(str.split, open("trials.txt")))
todo = [trial for trial in reversed(trials) if not Path(f"done/{trial[1]}").exists()]

executor = submitit.AutoExecutor(folder="logs")
executor.update_parameters(timeout_min=10, gpus_per_node=1, cpus_per_task=1, slurm_array_parallelism=int(sys.argv[1]))
jobs = executor.map_array(wait, *zip(*todo))
for job in jobs:
    job.result()
