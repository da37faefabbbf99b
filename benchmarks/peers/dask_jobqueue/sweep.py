# https://jobqueue.dask.org/en/latest/clusters-example-deployments.html#slurm-deployments
import sys
from pathlib import Path

from dask.distributed import Client
from dask_jobqueue import SLURMCluster
from trial import wait

trials = sorted((float(seconds), int(index)) for seconds, index in map(str.split, open("trials.txt")))
todo = [trial for trial in reversed(trials) if not Path(f"done/{trial[1]}").exists()]

cluster = SLURMCluster(
    cores=1,
    processes=1,
    memory="3GB",
    walltime="00:10:00",
    job_extra_directives=["--gres=gpu:1"],
    interface="eth0",
    scheduler_options={"interface": "cluster"},
)
cluster.scale(jobs=int(sys.argv[1]))
with Client(cluster) as client:
    client.gather(client.map(wait, *zip(*todo), retries=1))
cluster.close()
