"""Snakemake, one job per trial."""

from peers.participants import Peer

RUN = "snakemake --executor slurm --jobs unlimited --retries 1 --slurm-init-seconds-before-status-checks 5"

PEERS = [
    Peer(
        name="snakemake-rules",
        title="Snakemake, one rule per trial",
        folder="snakemake_rules",
        documentation=(
            "https://snakemake.github.io/snakemake-plugin-catalog/plugins/executor/slurm.html",
            "https://snakemake.readthedocs.io/en/stable/project_info/faq.html",
        ),
        version="snakemake --version",
        submit=(RUN,),
        resume=("snakemake --unlock", f"{RUN} --rerun-incomplete"),
        note="Its Slurm executor without a limit of jobs, as in its page's example, and 5 s instead of 40 s to the "
        "first check of the jobs, as in Trainyard's profile. Jobs that are ready are submitted at once, in no order: "
        "`priority` chooses only among those that a limit holds back. After a kill, its folder is locked.",
    )
]
