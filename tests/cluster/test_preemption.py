"""A preemption loses no step, although Slurm tells only the first process of each job step about it."""

import sys

import pytest
import yaml
from project import ROOT, TINY, stage_tiny
from slurm_cluster.waiting import wait_until
from trainyard.planning.attempts import fold_attempts
from trainyard.planning.journal import read_journal

pytestmark = pytest.mark.slow

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


def test_a_preempted_sweep_over_two_nodes_repeats_no_step(second_site, second_dir):
    """One trial on each node, eight steps per epoch. Slurm gives five seconds, from SIGTERM to SIGKILL."""
    (second_dir / "gated.py").write_text(GATED)
    stage_tiny(second_dir / "results")
    train = {"model": "gated:build", "batch_size": 8, "epochs": 3}
    trials = [{"lr": 0.01, "model_args.name": name} for name in ("a", "b")]
    sweep = {"dataset": "tiny", "train": train, "trials": trials, "slots": {"nodes": 2, "gpus_per_node": 1}}
    (second_dir / "config.yaml").write_text(yaml.safe_dump({**TINY, "sweeps": {"s": sweep}}))
    program = f"{sys.executable} {ROOT}/scripts/"
    script = f"export PYTHONPATH={second_dir}\n{program}sweep.py --config config.yaml --sweep s"
    shape = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", "--gres=gpu:1"]

    def steps() -> list[int]:
        return [len(path.read_text().splitlines()) for path in second_dir.glob("steps-*")]

    def outcomes() -> list[str]:
        journal = read_journal(second_dir / "results/sweeps/s/journal.jsonl")
        return [attempt.outcome for attempt in fold_attempts(journal)]

    lesser = second_site.submit(script, "--partition=scavenger", "--nodelist=g01,g02", *shape, cwd=second_dir)
    wait_until(lambda: steps() == [12, 12], what="both trials to be in their second epoch")
    second_site.run(["srun", "--nodes=2", "--nodelist=g01,g02", "--gres=gpu:2", "true"])  # has priority
    assert second_site.wait_until_out_of_queue(lesser) == "PREEMPTED"
    assert outcomes() == ["interrupted"] * 2, (second_dir / f"slurm-{lesser}.out").read_text()
    assert steps() == [12, 12], "they have stopped within a step"
    (second_dir / "go").touch()
    second_site.wait_until_out_of_queue(second_site.submit(script, *shape, cwd=second_dir))
    assert outcomes() == ["interrupted"] * 2 + ["finished"] * 2
    assert steps() == [24, 24], "no step is repeated"
