"""`--profile profiles/slurm` on a cluster, with every rule as a job of its own."""

import json
import re

import pandas as pd
import pytest
from project import TINY
from submitting import nothing_is_left, snakemake

STUDY = {
    "dataset": "tiny",
    "train": {"model": "cnn", "model_args": {"width": 4}, "batch_size": 32, "epochs": 2, "lr": 0.02},
    "scales": ["1x1", "4x1"],
    "mode": "strong",
}
# Each of four trials waits until all four run: otherwise the first slot might run them all.
MEETING = """
import os, time
from pathlib import Path
from trainyard.training.models import SmallConvNet

class Meeting(SmallConvNet):
    def forward(self, images):
        if self.training:
            (self.folder / f"met-{self.number}").touch()
            while len(list(self.folder.glob("met-*"))) < 4:
                time.sleep(0.1)
        return super().forward(images)

def build(*, channels, classes, folder, number):
    model = Meeting(channels=channels, classes=classes, width=4)
    model.folder, model.number = Path(folder), number
    return model

def see(config, context):
    folder = Path(config["folder"])
    (folder / f"came-{config['number']}").touch()
    while len(list(folder.glob("came-*"))) < 4:
        time.sleep(0.1)
    return {"hidden": float(os.environ["CUDA_VISIBLE_DEVICES"] == "")}
"""


@pytest.fixture(scope="module")
def finished(cluster):
    """The folder of a sweep on two nodes, one on four CPUs, and a study on one to four nodes, after one Snakemake."""
    folder = cluster.shared / "profile"
    folder.mkdir()
    (folder / "meeting.py").write_text(MEETING)
    trials = [{"model_args": {"folder": str(folder), "number": number}} for number in range(4)]
    slots = {"jobs": 2, "gpus_per_node": 2}
    train = {"model": "meeting:build", "batch_size": 32}
    sweep = {"dataset": "tiny", "train": train, "trials": trials, "slots": slots}
    numbers = [{"folder": str(folder), "number": number} for number in range(4)]
    on_cpus = {"function": "meeting:see", "trials": numbers}
    on_cpus["slots"] = {"cpus": 4}
    studies = {"sweeps": {"s": sweep, "without_gpus": on_cpus}, "scaling": {"s": STUDY}}
    config = {"datasets": TINY["datasets"], "data": {"local": "/tmp/fast"}, **studies}
    output = snakemake(cluster, folder, config, "--", "sweeps", "scaling")
    (folder / "output.txt").write_text(output)
    nothing_is_left(cluster)
    return folder


def test_a_run_ends_with_one_summary(finished):
    summary = (finished / "output.txt").read_text().partition("Trainyard: done after ")[2].splitlines()
    finished_last = ("sweep s, sweep without_gpus", "sweep without_gpus, sweep s")
    assert summary[1] in [f"  finished  dataset tiny, {each}, scaling s (1x1, 4x1)" for each in finished_last]
    assert summary[2] == "  answers   sweep s: 4 trials finished, 0 failed"
    assert summary[3].startswith("              best val_accuracy (highest): ")
    assert "Trainyard: " not in "".join(summary)
    for log in (finished / "results/logs/slurm").rglob("*.log"):
        assert "Trainyard: done" not in log.read_text(), "jobs have none"
        assert "Snakemake version" not in log.read_text()


def test_losses_agree_from_one_gpu_to_four_nodes(finished):
    """Strong scaling without batch normalization: every scale sees the same global batches, so the losses agree.

    The tolerance is 1e-5: float32 gradients are summed in another order at each world size, which differs in the
    last of about seven digits, and eight steps add up to no more than a few times that.
    """
    rows = pd.read_csv(finished / "results/scaling/s/scaling.csv").set_index("scale")
    assert rows["gpus"].tolist() == [1, 4]
    assert (rows["global_batch"] == 32).all()
    for metric in ("train_loss", "val_loss"):
        assert (rows[metric] - rows.loc["1x1", metric]).abs().max() < 1e-5


@pytest.mark.parametrize(("scale", "nodes"), [("1x1", 1), ("4x1", 4)])
def test_a_summary_names_its_job_nodes_and_gpus(finished, cluster, scale, nodes):
    summary = json.loads((finished / f"results/scaling/s/{scale}/summary.json").read_text())
    job = cluster.jobs(int(summary["job"]))[0]
    assert job.state == "COMPLETED"
    assert int(job.allocated["node"]) == len(set(summary["node_names"])) == nodes
    assert int(job.allocated["gres/gpu"]) == summary["gpus"]
    assert (summary["gpu_model"], summary["device"]) == ("a100", "cpu"), "fake GPUs: it ran on the CPU"


def test_a_sweep_on_two_nodes_has_a_job_on_each(finished, cluster):
    timeline = pd.read_csv(finished / "results/sweeps/s/timeline.csv")
    assert timeline.groupby("job")["node"].nunique().tolist() == [1, 1]
    assert (timeline["outcome"] == "finished").all()
    assert len(timeline[["node", "gpu"]].drop_duplicates()) == 4
    assert set(timeline["gpu_model"]) == {"a100"}
    assert set(timeline["device"]) == {"cpu"}
    states = [job.state for number in timeline["job"].unique() for job in cluster.jobs(int(number))]
    assert states == ["COMPLETED"] * 2


def test_a_sweep_without_gpus_gets_none_and_is_charged_for_its_cpus(finished, cluster):
    folder = finished / "results/sweeps/without_gpus"
    timeline, jobs = (pd.read_csv(folder / f"{name}.csv") for name in ("timeline", "jobs"))
    assert (pd.read_csv(folder / "trials.csv")["hidden"] == 1).all(), "trials see no GPU"
    assert timeline["gpu"].isna().all()
    assert timeline["slot"].nunique() == 4
    (job,) = cluster.jobs(int(jobs["job"].item()))
    assert (job.state, job.allocated["cpu"], "gres/gpu" in job.allocated) == ("COMPLETED", "4", False)
    assert (jobs["cpus"].item(), jobs["gpus"].item(), jobs["nodes"].item()) == (4, 0, 1)
    packed = pd.read_csv(folder / "strategies.csv").set_index("strategy").loc["packed"]
    assert packed["requested_cpu_seconds"] == 4 * packed["requested_job_seconds"]
    assert packed["requested_gpu_seconds"] == 0
    assert 0 < packed["wasted_fraction"] < 1


@pytest.mark.parametrize("log", ["stage/tiny", "sweep/s_1", "sweep/without_gpus", "train/s-4x1", "train/s-1x1"])
def test_a_log_has_the_allocation_and_its_sbatch_line(finished, log):
    first, *others = (finished / f"results/logs/{log}.log").read_text().splitlines()
    assert re.search(r"Slurm job \d+ on n\d.*; GPUs per node: (none|[12] a100), CPUs per node: \d$", first)
    assert [line for line in others if re.search(r"submitted with: sbatch --parsable .* --wrap=.* srun .*\.py", line)]


def test_data_are_copied_to_each_node_once_and_removed_at_the_end(finished, cluster):
    output = (finished / "results/logs/train/s-4x1.log").read_text()
    assert sorted(re.findall(r"copied tiny to (n\d):/tmp/fast/ty-data-", output)) == ["n1", "n2", "n3", "n4"]
    assert [path for host in cluster.hosts.values() for path in host.path("/tmp").glob("fast/*")] == []


def test_the_output_of_a_job_is_in_the_documented_file(finished):
    timeline = pd.read_csv(finished / "results/sweeps/without_gpus/timeline.csv")
    printed = finished / f"results/logs/slurm/rule_sweep/without_gpus/{timeline['job'][0]}.log"
    assert printed.read_text().count("4 of 4 trials pending") == 1, "not once for each Snakemake of the job"
    (trained,) = (finished / "results/logs/slurm/rule_train/s_1x1").glob("*.log")
    assert "the time is unknown" not in trained.read_text(), "known before submission"
