"""Trainyard itself."""

from peers.participants import HERE, Peer

ROOT = HERE.parents[1]
VERSION = f"git -C {ROOT} describe --tags --always --dirty"
# The list of trials is data, as trials.txt is for the others.
CONFIG = (
    "(sed s/NODES/{nodes}/ sweep.yaml; "
    """awk '{{print "    - {{length: " $1 ", index: " $2 "}}"}}' trials.txt) > config.yaml"""
)
RUN = f"snakemake --snakefile {ROOT}/Snakefile --profile {ROOT}/profiles/slurm --configfile config.yaml -- sweeps"
STARTS = "Snakemake, the job's Python and Ray start before the first trial ([startup.py](../startup.py))"
HOLDS = "the job holds its GPUs while Ray starts and ends, and until the last trial has ended"

PEERS = [
    Peer(
        name="trainyard",
        title="Trainyard",
        documentation=("../../config/README.md",),
        version=VERSION,
        submit=(CONFIG, RUN),
        resume=(RUN,),
        causes={
            "seconds": STARTS,
            "over_seconds": "Snakemake sees that a job has ended when it asks Slurm the next time, then writes tables",
            "first_seconds": f"{STARTS}; and it waits for two GPUs on each of two nodes",
            "gpu_seconds": HOLDS,
            "extra_gpu_seconds": HOLDS,
            "idle_fraction": HOLDS,
            "lines": "its config has more keys than a job script has options",
        },
        note="`profiles/slurm` as it is; one job; `cost:` says which trials are long.",
    )
]
