"""A site with other names, other GPUs, another partition and no accounting database.

Slurm's signals reach only the first process of each step.
"""

import json
import sys

import pandas as pd
import pytest
import yaml
from fault_runs import Sweep, Training, ended_at_last
from fault_table import kill_slurmstepd_of_step
from project import ROOT, TINY, stage_tiny
from slurm_cluster.cluster import Cluster
from slurm_cluster.waiting import wait_until
from submitting import snakemake
from sweep_journals import attempts_in

pytestmark = pytest.mark.slow


def test_a_sweep_and_a_training_over_two_hosts_run_without_accounting(second_site: Cluster) -> None:
    sweep, training = (kind(second_site, second_site.shared / kind.__name__, nodes=2) for kind in (Sweep, Training))
    with ended_at_last(sweep), ended_at_last(training):
        for run in (sweep, training):
            run.write()
            run.start()
        for run in (sweep, training):
            run.wait_for_progress()
            run.open()
        for run in (sweep, training):
            assert run.wait_for_command() == 0, run.story()
            assert run.is_complete()
    assert (len(sweep.jobs()), len(training.jobs())) == (2, 1)
    timeline = pd.read_csv(sweep.seen / "results/sweeps/s/timeline.csv")
    assert set(timeline["gpu_model"]) == {"l40s"}
    assert len(set(timeline["node"])) == 2
    assert sweep.results() == sweep.undisturbed()
    assert len(training.units()) == 3
    assert sweep.leftovers() == []


def test_a_job_ends_soon_after_its_sweep_if_slurmstepd_of_its_steps_was_killed(second_site: Cluster) -> None:
    run = Sweep(second_site, second_site.shared / "killed", nodes=1)
    with ended_at_last(run):
        run.write()
        run.start()
        run.wait_for_progress()
        kill_slurmstepd_of_step(run)
        run.open()
        run.wait_for_end_of(run.jobs()[0], timeout_seconds=120)
        assert run.wait_for_command() == 0, run.story()
    assert run.is_complete()
    assert run.results() == run.undisturbed()
    assert run.leftovers() == []


TRIAL = {"command": "echo epoch 1 val_accuracy 0.5", "trials": [{}], "slots": {"gpus_per_node": 2}}
METRICS = {"pattern": r"epoch (?P<epoch>\d+) val_accuracy (?P<val_accuracy>[0-9.]+)"}


def test_the_end_of_a_job_is_noticed_and_its_memory_is_recorded(second_site, second_dir):
    config = {"sweeps": {"s": TRIAL | {"metrics": METRICS}}}
    snakemake(second_site, second_dir, config, "--", "results/sweeps/s/trials.csv")
    assert pd.read_csv(second_dir / "results/sweeps/s/trials.csv")["status"].tolist() == ["finished"]
    record = json.loads((second_dir / "results/sweeps/s/memory.json").read_text())
    assert (record["requested_mib"], record["processes"], record["ended"]) == (15200, 2, True)
    assert record["peak_mib"] > 100, "of Python and Ray"


# A model that writes a line per step. From step 12 on, each step waits for a file `go`, or until its process has been
# told to stop.
GATED = """
import signal, time
from pathlib import Path
from trainyard.training.models import SmallConvNet

def is_told():
    return getattr(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), "is_made", False)

class Gated(SmallConvNet):
    def forward(self, images):
        steps = Path(__file__).with_name(f"steps-{self.name}")
        if self.training:
            with open(steps, "a") as file:
                file.write("step\\n")
            while len(steps.read_text().splitlines()) >= 12 and not steps.with_name("go").exists() and not is_told():
                time.sleep(0.02)
        return super().forward(images)

def build(*, channels, classes, name):
    model = Gated(channels=channels, classes=classes, width=4)
    model.name = name
    return model
"""


def test_a_preempted_sweep_repeats_no_step(second_site, second_dir):
    """Two trials at a time, eight steps per epoch. Slurm gives five seconds, from SIGTERM to SIGKILL."""
    (second_dir / "gated.py").write_text(GATED)
    stage_tiny(second_dir / "results")
    train = {"model": "gated:build", "batch_size": 8, "epochs": 3}
    trials = [{"lr": 0.01, "model_args.name": name} for name in ("a", "b")]
    sweep = {"dataset": "tiny", "train": train, "trials": trials, "slots": {"gpus_per_node": 2}}
    (second_dir / "config.yaml").write_text(yaml.safe_dump({**TINY, "sweeps": {"s": sweep}}))
    program = f"{sys.executable} {ROOT}/scripts/"
    script = f"export PYTHONPATH={second_dir}\nsrun {program}sweep.py --config config.yaml --sweep s"
    shape = ["--nodes=1", "--ntasks=1", "--cpus-per-task=2", "--gres=gpu:2"]

    def steps() -> list[int]:
        return [len(path.read_text().splitlines()) for path in second_dir.glob("steps-*")]

    def outcomes() -> list[str]:
        return [attempt.outcome for attempt in attempts_in(second_dir / "results/sweeps/s")]

    lesser = second_site.submit(script, "--partition=scavenger", "--nodelist=g01", *shape, cwd=second_dir)
    wait_until(lambda: steps() == [12, 12], what="both trials to be in their second epoch")
    second_site.run(["srun", "--nodes=1", "--nodelist=g01", "--gres=gpu:2", "true"])  # has priority
    assert second_site.wait_until_out_of_queue(lesser) == "PREEMPTED"
    assert outcomes() == ["interrupted"] * 2, (second_dir / f"slurm-{lesser}.out").read_text()
    assert steps() == [12, 12], "they have stopped within a step"
    (second_dir / "go").touch()
    second_site.wait_until_out_of_queue(second_site.submit(script, *shape, cwd=second_dir))
    assert outcomes() == ["interrupted"] * 2 + ["finished"] * 2
    assert steps() == [24, 24], "no step is repeated"
