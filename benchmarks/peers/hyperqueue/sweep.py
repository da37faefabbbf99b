# https://it4innovations.github.io/hyperqueue/stable/python/
import os
from pathlib import Path

from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

trials = sorted((float(seconds), index) for seconds, index in map(str.split, open("trials.txt")))
# A local cluster has the workers of one node: each node gets its share of the trials.
node, nodes = int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_JOB_NUM_NODES"])
todo = [trial for trial in trials[::-1][node::nodes] if not Path("done", trial[1]).exists()]

with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=2))
    client = cluster.client()
    job = Job(max_fails=None)
    for seconds, index in todo:
        command = f"CUDA_VISIBLE_DEVICES=$HQ_CPUS exec ./trial.sh {seconds} {index}"
        job.program(["sh", "-c", command], priority=round(seconds * 100))
    client.wait_for_jobs([client.submit(job)], raise_on_error=False)
