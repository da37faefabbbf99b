"""One job array with a task per slot, each of which runs several trials."""

from peers.participants import Peer

RUN = "sbatch --array=1-{slots} job.sh"

PEERS = [
    Peer(
        name="array-chunks",
        title="Job array, a chunk per task",
        folder="job_array_chunks",
        documentation=("https://help.rc.ufl.edu/doc/SLURM_Job_Arrays",),
        version="sbatch --version",
        submit=("sort -rn trials.txt > longest-first.txt", RUN),
        resume=(RUN,),
        note="As many tasks as GPUs, each with its share of the sorted list: tasks share no queue, and each holds its "
        "GPU until its own share is done. Nothing retries a trial that failed.",
    ),
]
