"""NePS: workers that share a folder, one in each task of an array."""

from peers.participants import Peer

VERSION = """python -c 'from importlib.metadata import version; print("NePS", version("neural-pipeline-search"))'"""
RUN = "sbatch --array=1-{workers} job.sh"

PEERS = [
    Peer(
        name="neps",
        title="NePS",
        documentation=(
            "https://automl.github.io/neps/latest/examples/efficiency",
            "https://automl.github.io/neps/latest/reference/neps_run",
            "https://automl.github.io/neps/latest/reference/clean",
        ),
        version=VERSION,
        programs=".tools/peers/bin",
        submit=(RUN,),
        resume=("python reset.py", RUN),
        note="One worker per GPU, each in a job of its own, that meet in a folder; its grid search over the list, the "
        "longest first; `ignore_errors=True`. It retries nothing by itself: the user's own lines reset what crashed or "
        "was running at a kill (the program `neps.clean` resets only what crashed). Each worker imports PyTorch.",
    )
]
