"""Launch commands, compared with golden texts."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from trainyard.cluster import host
from trainyard.cluster.slurm_allocation import Allocation
from trainyard.config.scaling import ScriptScaling
from trainyard.planning.job_costs import is_trained
from trainyard.scaling import launchers, rendezvous, user_script
from trainyard.scaling.launchers import TRAIN, script_command, training_command
from trainyard.scaling.user_script import UserScript
from trainyard.utils.errors import UserError
from trainyard.utils.files import digest_of
from trainyard.utils.import_path import SCRIPTS

AGENT, WATCH = (f"{sys.executable} {SCRIPTS}/trainyard scaling.{name}" for name in ("agent", "node_step"))
OPTIONS = ["--config", "c.yaml", "--study", "s"]


def srun(nodes, tasks, cpus):
    counts = f"--nodes {nodes} --ntasks {tasks} --ntasks-per-node {tasks // nodes} --nodelist n3,n4"
    bound = f"--cpus-per-task {cpus} --cpu-bind=none"
    return f"srun --overlap --mem=0 --export=ALL {counts} {bound} --kill-on-bad-exit=1"


def test_one_node_needs_no_slurm():
    line = training_command("1x4", OPTIONS, folder="/logs", allocation=None)
    assert " ".join(line) == (
        f"{AGENT} --folder /logs --nodes {host.node_name()} --ranks 4 -- {TRAIN} --config c.yaml --study s"
    )


def test_several_nodes_run_one_agent_each_on_all_cpus_of_the_job():
    allocation = Allocation(job="1234567", nodes=("n3", "n4"), end_time=0, cpus_per_node=16)
    line = training_command("2x8", OPTIONS, folder="/logs", allocation=allocation)
    assert " ".join(line) == (
        f"{srun(2, 2, 16)} {AGENT} --folder /logs --nodes n3,n4 --ranks 8 -- {TRAIN} --config c.yaml --study s"
    )


def test_several_nodes_need_a_job_with_as_many():
    with pytest.raises(UserError, match="scale 2x1 needs 2 nodes, but this is not a Slurm job"):
        training_command("2x1", OPTIONS, folder="/logs", allocation=None)
    three = Allocation(job="7", nodes=("a", "b", "c"), end_time=0)
    with pytest.raises(UserError, match="needs 2 nodes, but the job has 3"):
        training_command("2x1", OPTIONS, folder="/logs", allocation=three)


# `node_step` replaces the placeholders on each node.
PYTHON = {
    "torchrun": "-m torch.distributed.run --nproc-per-node 4 --nnodes 2 --node-rank {node_rank} "
    "--rdzv-backend static --master-addr {master_addr} --master-port {master_port}",
    "accelerate": "-m accelerate.commands.launch --multi_gpu --num_machines 2 --num_processes 8 "
    "--machine_rank {node_rank} --main_process_ip {master_addr} --main_process_port {master_port} "
    "--rdzv_backend static --mixed_precision no --dynamo_backend no",
    "deepspeed": "-m deepspeed.launcher.runner --hostfile /out/hostfile --no_ssh --node_rank {node_rank} "
    "--master_addr {master_addr} --master_port {master_port}",
}


def own(launcher, scale="2x4", **fields):
    line = script_command(
        scale,
        ["train.py", "--lr", "0.1"],
        launcher=launcher,
        launcher_options=["--more"],
        python="/env/python",
        watch_options=["--folder", "/out"],
        hostfile=Path("/out/hostfile"),
        cpus_per_gpu=3,
        **{"job_nodes": ("n3", "n4"), **fields},
    )
    return " ".join(line)


@pytest.mark.parametrize("launcher", PYTHON)
def test_a_launcher_is_started_once_per_node_with_telemetry(launcher):
    assert own(launcher) == (
        f"{srun(2, 2, 12)} {WATCH} --folder /out -- /env/python {PYTHON[launcher]} --more train.py --lr 0.1"
    )


def test_srun_starts_the_script_itself_once_per_gpu():
    assert own("srun") == (f"{srun(2, 8, 3)} --more {WATCH} --folder /out --per-gpu -- /env/python train.py --lr 0.1")
    with pytest.raises(UserError, match="use torchrun here"):
        own("srun", scale="1x4", job_nodes=())


def test_on_one_node_a_launcher_needs_no_slurm():
    line = own("torchrun", scale="1x4", job_nodes=())
    assert line.startswith(f"{WATCH} --folder /out -- /env/python -m torch.distributed.run --nproc-per-node 4")
    assert "--nnodes 1 " in line


@pytest.mark.parametrize("script", ["t.py {resume} --n={n}", ["t.py", "{resume}", "--n={n}"]])
def test_the_resume_option_is_inserted_at_its_placeholder(tmp_path, script):
    options = {"args": {"n": "a b"}, "checkpoint": "*.pt", "resume": "--from {resume_from}", "scales": ["1x1"]}
    study = ScriptScaling.model_validate({"script": script, **options})
    (tmp_path / "1x1").mkdir()
    made = UserScript(study, "1x1", tmp_path)
    assert made._command(tmp_path, None, "/meeting")[-2:] == ["t.py", "--n=a b"]
    assert made._command(tmp_path, tmp_path / "x y.pt", "/meeting")[-4:] == [
        "t.py",
        "--from",
        f"{tmp_path}/x y.pt",
        "--n=a b",
    ]
    at_the_end = UserScript(study.model_copy(update={"script": "t.py\n--n={n}\n"}), "1x1", tmp_path)
    assert at_the_end._command(tmp_path, tmp_path / "x.pt", "/meeting")[-4:] == [
        "t.py",
        "--n=a b",
        "--from",
        f"{tmp_path}/x.pt",
    ]


def test_naming_another_environment_runs_a_script_again_and_nothing_else_does(tmp_path):
    def folder(**options):
        study = ScriptScaling.model_validate({"script": "t.py", "scales": ["1x1"], **options})
        return UserScript(study, "1x1", tmp_path)._out.name

    earlier = {"launcher": "torchrun", "args": {}, "retrain": 0, "script": "t.py"}  # of versions without `env`
    assert folder() == digest_of(earlier | {"python": None}, length=10)
    assert folder(python="/env/bin/python") == digest_of(earlier | {"python": "/env/bin/python"}, length=10)
    assert folder(env="mine") not in (folder(), folder(env="other"))


def _torchruns_report(code):
    return str(ChildFailedError("train.py", {0: ProcessFailure(local_rank=0, pid=7, exitcode=code, error_file="")}))


ENDS = {
    "its own error": ("exit 3", True),
    "its own error below torchrun": (f"echo '{_torchruns_report(1)}'; exit 1", True),
    "a crash below torchrun": (f"echo '{_torchruns_report(-11)}'; exit 1", True),
    "killed": ("kill -9 $$", False),
    "killed below srun": ("exit 137", False),
    "ended by srun after the error of another rank": ("exit 143", True),
    "killed below torchrun": (f"echo '{_torchruns_report(-9)}'; exit 1", False),
}


@pytest.mark.parametrize(("end", "is_bad"), ENDS.values(), ids=ENDS)
def test_a_checkpoint_is_given_up_after_an_error_of_the_script_only(tmp_path, monkeypatch, end, is_bad):
    """Not if the kernel killed a rank when memory ran out, or its node failed."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its handlers
    monkeypatch.setattr(user_script, "script_command", lambda *_, **__: ["sh", "-c", end])
    options = {"script": "t.py", "checkpoint": "*.pt", "resume": "{resume_from}", "scales": ["1x1"]}
    script = UserScript(ScriptScaling.model_validate(options), "1x1", tmp_path)
    script._out.mkdir(parents=True)
    (script._out / "1.pt").write_text("state")
    with pytest.raises(UserError, match="the script failed"):
        script.run(tmp_path)
    assert bool(script._launches.failed_checkpoints()) == is_bad


@pytest.mark.parametrize(("of_user", "expected"), [({}, "91"), ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "45"}, "45")])
def test_torchrun_grants_its_ranks_the_grace_period_of_the_study(tmp_path, monkeypatch, of_user, expected):
    """By default, it sends SIGKILL 30 s after SIGTERM."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its handlers
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    for name, value in of_user.items():
        monkeypatch.setenv(name, value)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho granted $TORCH_ELASTIC_SHUTDOWN_TIMEOUT s\n")
    python.chmod(0o700)
    options = {"script": "t.py", "python": str(python), "grace_seconds": 90.5, "scales": ["1x1"]}
    script = UserScript(study := ScriptScaling.model_validate(options), "1x1", tmp_path)
    script.run(tmp_path)
    assert script._launches.output.read_text() == f"granted {expected} s\n"
    assert is_trained(study, "1x1", tmp_path, tmp_path)
    for change in ({"retrain": 1}, {"launcher": "torchrun --max-restarts 1"}):
        assert not is_trained(ScriptScaling.model_validate(options | change), "1x1", tmp_path, tmp_path)


@pytest.mark.parametrize(("codes", "expected"), [([0, 0], 0), ([0, 3], 3), ([1], 1), ([0], None), ([], None)])
def test_srun_ends_soon_after_all_tasks_of_its_step_or_a_failed_one(tmp_path, monkeypatch, codes, expected):
    """If slurmstepd was killed, srun waits for its tasks until the end of the walltime."""
    for name in ("LOOK_SECONDS", "SRUN_SECONDS", "KILL_SECONDS"):
        monkeypatch.setattr(rendezvous, name, 0.0)
    monkeypatch.setattr(launchers, "WAIT_SECONDS", 0.1)
    for task, code in enumerate(codes):
        rendezvous.end_together(tmp_path, task=task, tasks=2, code=code)
    step = rendezvous.StepEnd(tmp_path, tasks=2)
    if expected is None:
        assert step.overdue_code() is None
        return
    with subprocess.Popen(["sleep", "3600"]) as srun_of_it:
        assert launchers._wait(srun_of_it, step) == expected
        assert srun_of_it.wait(10) < 0
