"""`--profile profiles/slurm` does on a cluster what profiles/local does on one machine."""

import sys
from pathlib import Path

import pandas as pd
import yaml
from slurm_cluster import Cluster
from yard import ROOT, TINY

STUDY = {
    "dataset": "tiny",
    "train": {"model": "cnn", "model_args": {"width": 4}, "batch_size": 32, "epochs": 2, "lr": 0.02},
    "scales": ["1x1", "1x2", "2x2", "4x2"],
    "mode": "strong",
}


def snakemake(cluster: Cluster, folder: Path, config: dict, *options: str, check: bool = True):
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    program = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(ROOT / "Snakefile")]
    common = ["--profile", str(ROOT / "profiles/slurm"), "--configfile", "config.yaml", "--latency-wait", "5"]
    return cluster.run([*program, *common, *options], cwd=folder, check=check, timeout_seconds=280)


def test_one_loss_from_one_gpu_to_four_nodes(cluster, shared_dir):
    """Strong scaling without batch normalisation: every scale sees the same global batches, so the losses agree.

    The tolerance is 1e-5: float32 gradients are summed in another order at each world size, which differs in the
    last of about seven digits, and eight steps add up to no more than a few times that.
    """
    snakemake(cluster, shared_dir, {**TINY, "sweeps": {}, "scaling": {"s": STUDY}}, "--", "scaling")
    rows = pd.read_csv(shared_dir / "results/scaling/s/scaling.csv").set_index("scale")
    assert rows["gpus"].tolist() == [1, 2, 4, 8]
    assert (rows["global_batch"] == 32).all()
    for metric in ("train_loss", "val_loss"):
        assert (rows[metric] - rows.loc["1x1", metric]).abs().max() < 1e-5
    assert not any(cluster.processes_left().values())
    assert cluster.gpus_allocated() == 0


def test_a_sweep_is_one_job(cluster, shared_dir):
    snakemake(cluster, shared_dir, TINY, "--", "sweeps")
    timeline = pd.read_csv(shared_dir / "results/sweeps/lr/timeline.csv")
    assert timeline["job"].nunique() == 1
    assert set(timeline["gpu"]) == {0, 1}
    assert (timeline["outcome"] == "finished").all()
    jobs = cluster.jobs(int(timeline["job"][0]))
    assert len(jobs) == 1
    assert jobs[0].state == "COMPLETED"
    assert not any(cluster.processes_left().values())
