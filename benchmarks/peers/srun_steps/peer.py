"""Steps of one job."""

from peers.participants import Peer

RUN = "sbatch --nodes={nodes} job.sh"

PEERS = [
    Peer(
        name="srun-steps",
        title="srun steps in one job",
        folder="srun_steps",
        documentation=("https://slurm.schedmd.com/srun.html",),
        version="sbatch --version",
        submit=(RUN,),
        resume=(RUN,),
        note="The longest first. All steps are started at once, and Slurm queues them. Nothing retries a step.",
    )
]
