"""Users' programs and launchers on two hosts of a real Slurm, in one job."""

import json
import stat
import subprocess
import sys

import pandas as pd
import pytest
import yaml
from project import ROOT
from slurm_cluster.waiting import wait_until
from submitting import run_on_two_nodes
from sweep_journals import attempts_in

pytestmark = pytest.mark.slow

PROGRAMS = {
    "shell.sh": "#!/bin/sh\necho hello from $(uname -n) GPU $CUDA_VISIBLE_DEVICES\necho '{\"score\": 1}' > $1/m.json\n",
    "where.sh": "#!/bin/sh\necho $VIRTUAL_ENV ${PYTHONBREAKPOINT-none} $PATH\necho '{\"score\": 3}' > $1/m.json\n",
    "failing.sh": "#!/bin/sh\necho cannot open the data >&2\nexit 3\n",
    "endless.sh": "#!/bin/sh\nsetsid sleep 1000 &\nsleep 1001\n",
}
COMPILED = r"""
#include <stdio.h>
int main(int argc, char **argv) {
    char path[4096];
    snprintf(path, sizeof path, "%s/m.json", argv[1]);
    FILE *file = fopen(path, "w");
    fprintf(file, "{\"score\": 2}\n");
    return fclose(file);
}
"""
FUNCTION = """
import os
def run(config, context):
    for epoch in range(1, 4):
        context.report(epoch=epoch, val_accuracy=config["x"] * epoch / 10)
    return {"process": os.getpid()}
"""
# A script that only runs under accelerate.
ACCELERATED = """
import os
from accelerate import Accelerator
import torch
accelerator = Accelerator()
model, optimizer = torch.nn.Linear(4, 2), None
model = accelerator.prepare(model)
loss = model(torch.ones(8, 4)).sum()
accelerator.backward(loss)
world = accelerator.reduce(torch.ones(1), "sum").item()
if accelerator.is_main_process:
    print(f"epoch 1: {world:.0f} ranks, {accelerator.distributed_type}, 100 img/s", flush=True)
"""
# A script for torchrun.
PLAIN = """
import os
import torch
from torch import distributed
distributed.init_process_group("gloo")
places = [None] * distributed.get_world_size()
distributed.all_gather_object(places, (os.uname().nodename, os.environ["LOCAL_RANK"]))
if distributed.get_rank() == 0:
    print(f"epoch 1: {len(set(places))} ranks, plain, 100 img/s", flush=True)
open(f"rank-{distributed.get_rank()}", "w").close()
distributed.destroy_process_group()
"""
# A script for srun. Its ranks connect to the first one with the environment variables that launchers of torch set.
BARE = """
import os, socket, sys, time
open(f"rank-{os.environ['RANK']}", "w").close()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert (sys.argv[1:], rank) == (["--bare"], int(os.environ["SLURM_PROCID"]))
place = f"{os.uname().nodename} {os.environ['LOCAL_RANK']}"
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank:
    while True:
        try:
            with socket.create_connection((address, port)) as connection:
                connection.sendall(place.encode())
                break
        except ConnectionRefusedError:  # it has not started
            time.sleep(0.1)
else:
    server, places = socket.create_server(("", port)), {place}  # on all interfaces, as torch
    for _ in range(world - 1):
        connection, _ = server.accept()
        places.add(connection.makefile().read())
    print(f"epoch 1: {len(places)} ranks, bare, 100 img/s", flush=True)
"""
# Rank 0 saves its state for longer than Slurm lets other tasks run after one has failed (KillWait, 5 s).
SAVING = """
import os, signal, sys, time
from pathlib import Path
def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.environ["RANK"] == "0":
        time.sleep(10)
        Path("saved").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
Path(f"ready-{os.environ['RANK']}").touch()
while True:
    time.sleep(0.1)
"""
ACTIVATED = "export PATH=/home/me/env/bin:$PATH VIRTUAL_ENV=/home/me/env"  # in the environment of the job
SCRIPTS = {"torchrun": "plain.py", "accelerate": "accelerated.py", "srun": "python bare.py --bare"}
OWN = {
    "sweeps": {
        "programs": {
            "command": "{program} {trial_dir}",
            "metrics": {"file": "m.json"},
            "grid": {"program": ["./shell.sh", "./compiled", "./where.sh", "./failing.sh", "./endless.sh"]},
            "timeout_minutes": 0.5,  # all but the last one end at once, also on a busy machine
            "retries": 0,
            "slots": {"gpus_per_node": 2},
        },
        "function": {"function": "mine:run", "grid": {"x": [1, 2, 3]}, "slots": {"gpus_per_node": 1}},
    },
    "scaling": {
        name: {
            "script": script,
            "launcher": name,
            "env": "trainyard",
            "workdir": "keep" if name == "accelerate" else "trial",
            "metrics": {"pattern": r"epoch (?P<epoch>\d+): (?P<ranks>\d+) ranks, .*, (?P<images_per_second>\d+) img/s"},
            "scales": ["2x2" if name == "srun" else "2x1"],
            "mode": "weak",
        }
        for name, script in SCRIPTS.items()
    },
}


@pytest.fixture(scope="module")
def finished(cluster):
    """The folder with the results of OWN."""
    folder = cluster.shared / "own"
    folder.mkdir()
    scripts = {"mine.py": FUNCTION, "accelerated.py": ACCELERATED, "plain.py": PLAIN, "bare.py": BARE}
    for name, text in (PROGRAMS | scripts).items():
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    (folder / "compiled.c").write_text(COMPILED)
    subprocess.run(["cc", "-o", folder / "compiled", folder / "compiled.c"], check=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(OWN))
    program = f"{sys.executable} {ROOT}/scripts/"
    lines = [f"{program}sweep.py --config config.yaml --sweep {name}" for name in OWN["sweeps"]]
    lines += [
        f"{program}train.py --config config.yaml --study {name} --scale {study['scales'][0]}"
        for name, study in OWN["scaling"].items()
    ]
    run_on_two_nodes(cluster, folder, "\n".join(["set -e", ACTIVATED, *lines]), cpus=2)
    return folder


def read(folder, path):
    return pd.read_csv(folder / "results" / path)


def journal_of(folder, sweep):
    return attempts_in(folder / f"results/sweeps/{sweep}")


@pytest.mark.parametrize(
    ("launcher", "scale", "ranks"), [("torchrun", "2x1", 2), ("accelerate", "2x1", 2), ("srun", "2x2", 4)]
)
def test_launchers_start_a_rank_on_every_gpu_of_several_nodes(finished, launcher, scale, ranks):
    folder = finished / "results/scaling" / launcher / scale
    assert pd.read_csv(folder / "history.csv")["ranks"].tolist() == [ranks]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["launcher"] == launcher
    assert summary["images_per_second"] == 100
    assert {path.stem for path in (folder / "telemetry").glob("cpu-*.csv")} == {
        f"cpu-{n}" for n in summary["node_names"]
    }
    assert len(summary["node_names"]) == 2
    if launcher != "accelerate":  # in a folder of its own
        assert len(list(folder.glob("out/*/rank-*"))) == ranks
    assert not list(finished.glob("rank-*"))


def test_programs_of_any_kind_are_trials_and_one_that_exceeds_its_timeout_is_ended(finished):
    rows = read(finished, "sweeps/programs/trials.csv").set_index("program")
    assert rows["status"].to_dict() == {
        "./shell.sh": "finished", "./compiled": "finished", "./where.sh": "finished", "./failing.sh": "failed",
        "./endless.sh": "failed",
    }  # fmt: skip
    assert rows.loc[["./shell.sh", "./compiled"], "score"].tolist() == [1, 2]
    tries = {attempt.trial: attempt for attempt in journal_of(finished, "programs")}
    assert tries[rows.loc["./failing.sh", "trial"]].error == "exit code 3: cannot open the data"
    assert tries[rows.loc["./endless.sh", "trial"]].error == "it exceeded timeout_minutes (0.5)"
    shell = tries[rows.loc["./shell.sh", "trial"]]
    output = (finished / f"results/sweeps/programs/trials/{shell.trial}/output-1.log").read_text()
    assert output == f"hello from {shell.location.node} GPU {shell.location.gpu}\n"
    where = finished / f"results/sweeps/programs/trials/{rows.loc['./where.sh', 'trial']}/output-1.log"
    assert where.read_text().startswith("/home/me/env none /home/me/env/bin:")


def test_a_function_is_called_in_one_process_for_all_trials(finished):
    rows = read(finished, "sweeps/function/trials.csv")
    assert rows["val_accuracy"].tolist() == pytest.approx([0.3, 0.6, 0.9])
    tries = journal_of(finished, "function")
    assert rows["process"].nunique() == 1
    assert [row["epoch"] for row in tries[0].epochs] == [1, 2, 3]


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_a_script_on_two_nodes_saves_its_state_within_its_grace_period(cluster, shared_dir, launcher):
    """Slurm passes SIGUSR1 for `node_step` to all processes of a step, and ends a step soon after one of its tasks."""
    (shared_dir / "saving.py").write_text(SAVING)
    study = {"script": "saving.py", "launcher": launcher, "env": "trainyard", "scales": ["2x1"]}
    (shared_dir / "config.yaml").write_text(yaml.safe_dump({"scaling": {"s": study}}))
    program = f"{sys.executable} {ROOT}/scripts/train.py --config config.yaml --study s --scale 2x1"
    shape = ["--nodes=2", "--ntasks-per-node=1", "--nodelist=n1,n2", "--cpus-per-task=2", "--gres=gpu:1"]
    job = cluster.submit(f"echo $$ > process\nexec {program}", *shape, cwd=shared_dir)
    wait_until(
        lambda: len(list(shared_dir.glob("ready-*"))) == 2 or not cluster.run(["squeue", "--noheader"]).stdout,
        what="both ranks",
        poll_seconds=0.5,
    )
    cluster.host(1).run(["sh", "-c", f"kill {(shared_dir / 'process').read_text()}"], cwd="/")
    assert cluster.wait_until_out_of_queue(job) == "FAILED"
    output = (shared_dir / f"slurm-{job}.out").read_text()
    assert "the script was ended by a signal" in output
    assert (shared_dir / "saved").exists(), output
