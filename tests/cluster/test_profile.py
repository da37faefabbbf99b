"""`--profile profiles/slurm` does on a cluster what profiles/local does on one machine."""

import sys
from pathlib import Path

import pandas as pd
import yaml
from slurm_cluster import Cluster
from trainyard.journal import attempts, read_events
from waiting import wait_until
from yard import ROOT, TINY

STUDY = {
    "dataset": "tiny",
    "train": {"model": "cnn", "model_args": {"width": 4}, "batch_size": 32, "epochs": 2, "lr": 0.02},
    "scales": ["1x1", "1x2", "2x2", "4x2"],
    "mode": "strong",
}


def snakemake(cluster: Cluster, folder: Path, config: dict, *options: str) -> None:
    """Run a config in a folder of the cluster's shared file system, as a user on the login node would."""
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    program = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(ROOT / "Snakefile")]
    common = ["--profile", str(ROOT / "profiles/slurm"), "--configfile", "config.yaml", "--latency-wait", "5"]
    common += ["--slurm-init-seconds-before-status-checks", "2"]  # the wait grows by ten seconds at each look
    cluster.run([*program, *common, *options], cwd=folder, env={"PYTHONPATH": str(folder)}, timeout_seconds=280)


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


def test_a_sweep_over_two_nodes_is_one_job(cluster, shared_dir):
    config = slow_sweep(shared_dir, 10, 10, 10, 10)  # else the first slot that is up does them all
    config["sweeps"]["s"]["slots"] = {"nodes": 2, "gpus_per_node": 2}
    snakemake(cluster, shared_dir, config, "--", "sweeps")
    timeline = pd.read_csv(shared_dir / "results/sweeps/s/timeline.csv")
    assert timeline["job"].nunique() == 1
    assert (timeline["outcome"] == "finished").all()
    assert len(timeline[["node", "gpu"]].drop_duplicates()) == 4
    assert [job.state for job in cluster.jobs(int(timeline["job"][0]))] == ["COMPLETED"]
    assert not any(cluster.processes_left().values())
    assert cluster.gpus_allocated() == 0


SLOW = """
import time
from trainyard.models import SmallConvNet

def build(*, channels, classes, seconds):
    time.sleep(seconds)
    return SmallConvNet(channels=channels, classes=classes, width=4)
"""


def slow_sweep(folder: Path, *seconds: float) -> dict:
    """A sweep on one slot whose trials take so many seconds; their model lies in the folder."""
    (folder / "slow.py").write_text(SLOW)
    trials = [{"model_args.seconds": each, "seed": number} for number, each in enumerate(seconds)]
    sweep = {"dataset": "tiny", "train": {"model": "slow:build", "batch_size": 32}, "trials": trials}
    return {**TINY, "sweeps": {"s": sweep}}


def journal_of(folder: Path):
    return attempts(read_events(folder / "results/sweeps/s/journal.jsonl"))


def test_a_walltime_too_short_for_a_sweep_is_made_up_for_by_retries(cluster, shared_dir):
    """Three trials of 14 s and a walltime of one minute, ten seconds of which are kept for the end."""
    config = slow_sweep(shared_dir, 14, 14, 14)
    snakemake(cluster, shared_dir, config, "--set-resources", "sweep:runtime=1", "--", "sweeps")
    tries = journal_of(shared_dir)
    assert [attempt.outcome for attempt in tries] == ["finished"] * 3, "no trial was begun twice"
    jobs = list(dict.fromkeys(attempt.where["job"] for attempt in tries))
    assert len(jobs) >= 2, "one job did not do"
    assert cluster.jobs(int(jobs[0]))[0].state == "FAILED", "it ended itself, Slurm did not have to"
    assert not any(cluster.processes_left().values())


def test_after_scancel_only_pending_trials_run(cluster, shared_dir):
    """The sweep program in a job of its own: Snakemake's look at the queue, minutes apart, is left out."""
    (shared_dir / "config.yaml").write_text(yaml.safe_dump(slow_sweep(shared_dir, 0, 0, 60)))
    scripts = [f"{sys.executable} {ROOT}/scripts/{name} --config config.yaml" for name in ("stage.py", "sweep.py")]
    script = f"export PYTHONPATH={shared_dir}\n{scripts[0]} --dataset tiny\n{scripts[1]} --sweep s"

    def outcomes():
        return [attempt.outcome for attempt in journal_of(shared_dir)]

    job = cluster.submit(script, "--gpus=1", cwd=shared_dir)
    expected = ["finished", "finished", "running"]
    wait_until(lambda: outcomes() == expected, timeout_seconds=60, what="the last trial runs")
    cluster.run(["scancel", str(job)])
    cluster.wait_for_job(job, state="CANCELLED")
    wait_until(lambda: not any(cluster.processes_left().values()), timeout_seconds=20, what="nothing is left running")

    before = (shared_dir / "results/sweeps/s/journal.jsonl").read_text()
    (shared_dir / "slow.py").write_text(SLOW.replace("sleep(seconds)", "sleep(0)"))
    cluster.wait_for_job(cluster.submit(script, "--gpus=1", cwd=shared_dir), state="COMPLETED")
    assert (shared_dir / "results/sweeps/s/journal.jsonl").read_text().startswith(before)
    assert outcomes() == ["finished", "finished", "interrupted", "finished"]
    assert {attempt.where["job"] for attempt in journal_of(shared_dir)[:3]} == {str(job)}
