"""Parsl: a program on the login node, workers in jobs."""

from peers.participants import Peer

RUN = "python sweep.py {jobs} {gpus_per_job}"

PEERS = [
    Peer(
        name="parsl",
        title="Parsl",
        documentation=(
            "https://parsl.readthedocs.io/en/stable/userguide/configuration/executors/htex.html",
            "https://parsl.readthedocs.io/en/stable/userguide/workflows/checkpoints.html",
            "https://parsl.readthedocs.io/en/stable/userguide/workflows/exceptions.html",
        ),
        version="""python -c 'from importlib.metadata import version; print("parsl", version("parsl"))'""",
        programs=".tools/peers/bin",
        submit=(RUN,),
        resume=(RUN,),
        note="`HighThroughputExecutor` with one worker per GPU; one job per node, or per GPU in the crowded queue; the "
        "longest first; `retries=1`; checkpoints at each task's exit. Its program runs on the login node until all has "
        "finished.",
    )
]
