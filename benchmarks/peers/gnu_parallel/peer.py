"""GNU parallel in one job."""

from peers.participants import Peer

RUN = "sbatch --nodes={nodes} job.sh"

PEERS = [
    Peer(
        name="gnu-parallel",
        title="GNU parallel in one job",
        folder="gnu_parallel",
        package="parallel",
        documentation=(
            "https://docs.nersc.gov/jobs/workflow/gnuparallel/",
            "https://www.gnu.org/software/parallel/parallel_examples.html",
        ),
        version="parallel --version",
        submit=(RUN,),
        resume=(RUN,),
        note="One on each node, with every second or fourth trial of the list, the longest first: the nodes share no "
        "queue, as they would by `--sshlogin` where nodes accept ssh. A trial that fails is tried once more, and "
        "`--joblog --resume-failed` skips what had finished.",
    )
]
