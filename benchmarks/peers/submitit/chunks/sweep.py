# https://github.com/facebookincubator/submitit/blob/main/submitit/helpers.py: many short calls in one job
import sys

import submitit
from trial import wait

trials = sorted((float(seconds), int(index)) for seconds, index in map(str.split, open("trials.txt")))
slots = int(sys.argv[1])
chunks = [submitit.helpers.FunctionSequence() for _ in range(slots)]
for number, trial in enumerate(reversed(trials)):
    chunks[number % slots].add(wait, *trial)

executor = submitit.AutoExecutor(folder="logs")
executor.update_parameters(timeout_min=10, gpus_per_node=1, cpus_per_task=1)
with executor.batch():
    jobs = [executor.submit(chunk) for chunk in chunks]
for job in jobs:
    job.result()
