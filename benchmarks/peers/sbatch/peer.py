"""One sbatch job per trial."""

from peers.participants import Peer

PEERS = [
    Peer(
        name="sbatch",
        title="Separate sbatch jobs",
        documentation=("https://slurm.schedmd.com/sbatch.html",),
        version="sbatch --version",
        submit=("sort -rn trials.txt | while read seconds index; do sbatch job.sh $seconds $index; done",),
        resume=("while read seconds index; do [ -e done/$index ] || sbatch job.sh $seconds $index; done < trials.txt",),
        note="The longest first. Nothing retries a job that failed.",
    )
]
