"""Programs made for a Slurm job each, as trials that share one: what they do with the ID of their job."""

import subprocess
import sys

import pandas as pd
import pytest
import yaml
from project import ROOT
from submitting import nothing_is_left, snakemake

pytestmark = pytest.mark.slow

# A training per task of an array. The ID of the job makes everything unique: the port, and the checkpoint.
ARRAY = """#!/bin/bash
#SBATCH --job-name=unique
#SBATCH --array=0-3
#SBATCH --gres=gpu:1
LRS=(0.8 0.4 0.2 0.1)
export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
python3 train.py --lr ${LRS[$SLURM_ARRAY_TASK_ID]}
"""
TRAIN = """
import argparse, json, os, pathlib, socket, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
lr = parser.parse_args().lr
job = os.environ["SLURM_JOB_ID"]
server = socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
state = pathlib.Path(f"checkpoint_{job}.json")
first, loss = json.loads(state.read_text()) if state.exists() else (0, lr)
for epoch in range(first + 1, 5):
    if epoch == 3 and lr == 0.8 and not os.path.exists("second_job"):
        os._exit(9)
    time.sleep(0.5)
    loss = loss / 2
    state.write_text(json.dumps([epoch, loss]))
    print(f"epoch {epoch} val_loss {loss:.6f}", flush=True)
"""


def test_the_tasks_of_an_array_name_ports_and_checkpoints_after_their_job(cluster, shared_dir):
    (shared_dir / "job.sbatch").write_text(ARRAY)
    (shared_dir / "train.py").write_text(TRAIN)
    subprocess.run([sys.executable, ROOT / "scripts/init.py", "job.sbatch"], cwd=shared_dir, check=True)
    config = yaml.safe_load((shared_dir / "trainyard.yaml").read_text())
    sweep = config["sweeps"]["unique"]
    sweep["metrics"] = {"pattern": "epoch (?P<epoch>{number}) val_loss (?P<val_loss>{number})"}
    sweep |= {"metric": "val_loss", "retries": 0, "slots": {"gpus_per_node": 2}}
    done = shared_dir / "results/sweeps/unique"

    output = snakemake(cluster, shared_dir, config, "--", "sweeps")
    assert "1 failed" in output, output
    (shared_dir / "second_job").touch()
    again = "results/sweeps/unique/trials.csv"
    output = snakemake(cluster, shared_dir, config, "--forcerun", again, "--", "sweeps")
    trials = pd.read_csv(done / "trials.csv", dtype={"trial": str}).set_index("task")
    assert trials.val_loss.to_dict() == {0: 0.05, 1: 0.025, 2: 0.0125, 3: 0.00625}, output
    assert set(trials.status) == {"finished"}
    epochs = pd.read_csv(done / "epochs.csv", dtype={"trial": str})
    own = epochs[epochs.trial == trials.trial[3]]
    assert list(own.epoch) == [1, 2, 3, 4]
    second = (done / "trials" / trials.trial[0] / "output-2.log").read_text()
    assert second.startswith("epoch 3"), "the second job goes on from the checkpoint of the first"
    assert len(list(shared_dir.glob("checkpoint_*.json"))) == 4
    nothing_is_left(cluster)


# As Lightning, submitit and the traps of sbatch scripts do at a signal: it would start all trials of the job again.
REQUEUING = """
if [ {n} = 1 ]; then srun --jobid $TRAINYARD_JOB_ID --overlap --ntasks 1 echo score=1; exit; fi
for job in $SLURM_JOB_ID $SLURM_JOBID; do echo the job is $job; done
trap 'scontrol requeue $SLURM_JOB_ID; scancel $SLURM_JOB_ID; exit 1' TERM
touch ready; sleep 1000 & wait
"""


def test_a_trial_neither_requeues_nor_cancels_the_job_of_all(cluster, shared_dir):
    sweep = {
        "command": REQUEUING,
        "grid": {"n": [0, 1]},
        "metrics": {"pattern": "score=(?P<score>{number})"},
        "timeout_minutes": 0.1,  # then it gets SIGTERM
        "retries": 0,
        "slots": {"gpus_per_node": 1},
    }
    output = snakemake(cluster, shared_dir, {"sweeps": {"trap": sweep}}, "--", "sweeps")
    done = shared_dir / "results/sweeps/trap"
    timeline = pd.read_csv(done / "timeline.csv", dtype={"job": str, "trial": str})
    assert sorted(timeline.outcome) == ["failed", "finished"], output
    failed = timeline[timeline.outcome == "failed"].iloc[0]
    restarts = {path.name.split("-")[1] for path in (done / "sessions").iterdir()} - {"local.0"}
    assert restarts == {f"{failed.job}.0"}, "the job started once"
    text = (done / "trials" / failed.trial / "output-1.log").read_text()
    assert "Invalid job id specified" in text
    assert cluster.run(["sacct", "-nXj", failed.job, "-o", "state"]).stdout.split() == ["COMPLETED"]
    assert f"the job is {failed.job}\n" not in text
    nothing_is_left(cluster)
