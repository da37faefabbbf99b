"""The workflow imported by another one, on Slurm: Snakemake, which runs again in each job, finds it there, too."""

import json

import pytest
from project import ROOT, TINY
from submitting import nothing_is_left, snakemake_command

pytestmark = pytest.mark.slow

IMPORTING = f"""
module training:
    snakefile: "{ROOT}/workflow/Snakefile"
    config: config["training"]
    prefix: "training"

use rule * from training as training_*
"""


def test_a_prefixed_rule_of_a_module_is_a_job(cluster, shared_dir):
    source, folder = shared_dir / "source", shared_dir / "work"
    for each in (source, folder):
        each.mkdir()
    (source / "Snakefile").write_text(IMPORTING)
    config = {"training": {"datasets": TINY["datasets"]}}
    done = cluster.run(
        snakemake_command(folder, config, "--", "training_data", snakefile=source / "Snakefile"), cwd=folder
    )
    assert json.loads((folder / "training/results/data/tiny/meta.json").read_text())["digest"]
    log = (folder / "training/results/logs/stage/tiny.log").read_text()
    assert "submitted with: sbatch" in log, done.stdout + done.stderr
    assert "rule_training_stage" in log
    nothing_is_left(cluster)
