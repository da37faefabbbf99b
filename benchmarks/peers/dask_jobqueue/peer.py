"""Dask-jobqueue: a scheduler on the login node, one job per worker."""

from peers.participants import Peer

RUN = "python sweep.py {workers}"

PEERS = [
    Peer(
        name="dask-jobqueue",
        title="Dask-jobqueue",
        folder="dask_jobqueue",
        documentation=(
            "https://jobqueue.dask.org/en/latest/clusters-example-deployments.html",
            "https://jobqueue.dask.org/en/latest/clusters-configuration-setup.html",
            "https://distributed.dask.org/en/stable/api.html#distributed.Client.map",
        ),
        version="""python -c 'import dask_jobqueue; print("dask-jobqueue", dask_jobqueue.__version__)'""",
        programs=".tools/peers/bin",
        submit=(RUN,),
        resume=(RUN,),
        note="`SLURMCluster` with one worker, in a job of its own, per GPU; the longest first; `retries=1`. It keeps "
        "nothing on disk: after a kill, the user's own line skips what had finished. Its program runs on the login "
        "node until all has finished.",
    )
]
