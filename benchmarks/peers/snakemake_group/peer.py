"""Snakemake, several trials in a group job."""

from peers.participants import Peer

RUN = (
    "snakemake --executor slurm --jobs unlimited --retries 1 --slurm-init-seconds-before-status-checks 5"
    " --group-components trials={gpus}"
)

PEERS = [
    Peer(
        name="snakemake-group",
        title="Snakemake, group jobs",
        folder="snakemake_group",
        documentation=(
            "https://snakemake.readthedocs.io/en/stable/executing/grouping.html",
            "https://snakemake.github.io/snakemake-plugin-catalog/plugins/executor/slurm.html",
        ),
        version="snakemake --version",
        submit=(RUN,),
        resume=("snakemake --unlock", f"{RUN} --rerun-incomplete"),
        note="As one rule per trial, with as many trials in a group as a node has GPUs: a group requests the GPUs of "
        "its members together. Under this executor, the members run one after another.",
    )
]
