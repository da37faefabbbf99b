"""One job array, in the order in which people write configurations, and the longest first."""

from peers.participants import Peer

PAGES = ("https://slurm.schedmd.com/job_array.html",)
ASCENDING = "sbatch --array=1-{trials} job.sh trials.txt"
DESCENDING = "sbatch --array=1-{trials} job.sh longest-first.txt"

PEERS = [
    Peer(
        name="array-ascending",
        title="Job array, as written",
        folder="job_array",
        documentation=PAGES,
        version="sbatch --version",
        submit=(ASCENDING,),
        resume=(ASCENDING,),
        note="In the order of the list. A task that failed is not retried; to resume, the whole array is submitted "
        "again, and tasks with a result end at once.",
    ),
    Peer(
        name="array-descending",
        title="Job array, longest first",
        folder="job_array",
        documentation=PAGES,
        version="sbatch --version",
        submit=("sort -rn trials.txt > longest-first.txt", DESCENDING),
        resume=(DESCENDING,),
        note="The same with a sorted list.",
    ),
]
