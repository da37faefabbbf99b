"""HyperQueue: the engine in its Python package, one on each node of a job."""

from peers.participants import Peer

RUN = "sbatch --nodes={nodes} job.sh"

PEERS = [
    Peer(
        name="hyperqueue",
        title="HyperQueue (its Python package)",
        documentation=(
            "https://it4innovations.github.io/hyperqueue/stable/python/",
            "https://it4innovations.github.io/hyperqueue/stable/python/client/",
        ),
        version="""python -c 'import hyperqueue; print("HyperQueue", hyperqueue.get_version())'""",
        programs=".tools/peers/bin",
        submit=(RUN,),
        resume=(RUN,),
        note="Not its recommended set-up: that needs the program `hq` (a server, automatic allocation, a journal), "
        "which the Python package does not contain. Its `LocalCluster` serves one node, so each node runs one with its "
        "share of the trials, the longest first. It has no journal, and retries no task that failed (`crash_limit` "
        "counts workers that died): the user's own line skips what had finished.",
    )
]
