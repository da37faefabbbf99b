"""Optuna: processes in one job that share a study."""

from peers.participants import Peer

RUN = "sbatch --ntasks={slots} job.sh"

PEERS = [
    Peer(
        name="optuna",
        title="Optuna with processes",
        documentation=(
            "https://optuna.readthedocs.io/en/stable/tutorial/10_key_features/004_distributed.html",
            "https://optuna.readthedocs.io/en/stable/tutorial/20_recipes/011_journal_storage.html",
            "https://optuna.readthedocs.io/en/stable/tutorial/20_recipes/008_specify_params.html",
        ),
        version="""python -c 'from importlib.metadata import version; print("optuna", version("optuna"))'""",
        programs=".tools/peers/bin",
        submit=(RUN,),
        resume=(RUN,),
        note="The longest first, by `enqueue_trial`; a study in `JournalStorage`, as recommended for a shared file "
        "system without a database. Its file has no heartbeat: after a kill, the user's own lines enqueue again what "
        "was running, and a callback what failed.",
    )
]
