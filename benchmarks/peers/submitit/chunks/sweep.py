# https://facebookincubator.github.io/submitit/api.html: FunctionSequence puts many short calls into one job.
import sys

import submitit
from trial import wait

slots = int(sys.argv[1])
chunks = [submitit.helpers.FunctionSequence() for _ in range(slots)]
for number, (seconds, index) in enumerate(map(str.split, open("trials.txt"))):
    chunks[number % slots].add(wait, float(seconds), int(index))

executor = submitit.AutoExecutor(folder="logs")
executor.update_parameters(timeout_min=10, gpus_per_node=1, cpus_per_task=1)
with executor.batch():
    jobs = [executor.submit(chunk) for chunk in chunks]
for job in jobs:
    job.result()
