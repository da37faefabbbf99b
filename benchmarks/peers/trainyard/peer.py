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

PEERS = [
    Peer(
        name="trainyard",
        title="Trainyard",
        documentation=("../../config/README.md",),
        version=VERSION,
        submit=(CONFIG, RUN),
        resume=(RUN,),
        note="`profiles/slurm` as it is; one job; `cost:` says which trials are long.",
    )
]
