"""Trainyard itself."""

from peers.participants import HERE, Peer

ROOT = HERE.parents[1]
VERSION = f"git -C {ROOT} describe --tags --always --dirty"
# The list of trials is data, as trials.txt is for the others.
CONFIG = (
    "(sed 's/JOBS/{jobs}/; s/GPUS/{gpus_per_job}/' sweep.yaml; "
    """awk '{{print "    - {{length: " $1 ", index: " $2 "}}"}}' trials.txt) > config.yaml"""
)
RUN = f"trainyard run --profile {ROOT}/profiles/slurm --config config.yaml -- sweeps"
STARTS = (
    "Snakemake starts on the login node, then the job's program with Ray and its workers, one to two seconds each "
    "([startup.py](../startup.py))"
)
HOLDS = "the job holds its GPUs while its program and Ray start and end, and until the last trial has ended"
HANDS_OVER = (
    "between two commands, the worker reports the end to the driver, which writes it to the journal and sends the next "
    "trial; a guard then starts its process ([slot_pause.py](../slot_pause.py) measures 4 ms for `true` on one host; "
    "here, all hosts share two CPU cores)"
)

PEERS = [
    Peer(
        name="trainyard",
        title="Trainyard",
        documentation=("../../docs/your-script.md",),
        version=VERSION,
        submit=(CONFIG, RUN),
        resume=(RUN,),
        causes={
            "seconds": STARTS,
            "over_seconds": "Snakemake and Ray start first, as above; after the job, two programs write the tables",
            "over_bound": HANDS_OVER,
            "overhead_p50_seconds": HANDS_OVER,
            "overhead_p95_seconds": HANDS_OVER,
            "repeated_seconds": "trials that run at the kill start again, as they write no checkpoint",
            "first_seconds": STARTS,
            "gpu_seconds": HOLDS,
            "extra_gpu_seconds": HOLDS,
            "idle_fraction": HOLDS,
            "lines": "its config has more keys than a job script has options",
        },
        note="`profiles/slurm` as it is; one job per node, or per GPU in the crowded queue; `cost:` says which trials "
        "are long.",
    )
]
