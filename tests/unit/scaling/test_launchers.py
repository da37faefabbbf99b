"""Launch commands, compared with golden texts."""

import json
import sys
import threading

import psutil
import pytest
from slurm_cluster.waiting import wait_until
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from trainyard.cluster import host
from trainyard.cluster.slurm_allocation import Allocation
from trainyard.config.scaling import ScriptScaling
from trainyard.config.trials import result_digest
from trainyard.planning.history import is_trained
from trainyard.programs.user_environment import code_record
from trainyard.scaling import launchers, rendezvous, user_script
from trainyard.scaling.launch_records import Launches
from trainyard.scaling.launchers import TRAIN, script_command, training_command
from trainyard.scaling.user_script import UserScript
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import SCRIPTS

AGENT, WATCH = (f"{sys.executable} {SCRIPTS}/trainyard scaling.{name}" for name in ("agent", "node_step"))
OPTIONS = ["--config", "c.yaml", "--study", "s"]


def srun(nodes, tasks, cpus):
    counts = f"--nodes {nodes} --ntasks {tasks} --ntasks-per-node {tasks // nodes} --nodelist n3,n4"
    bound = f"--cpus-per-task {cpus} --cpu-bind=none"
    return f"srun --overlap --mem=0 --export=ALL {counts} {bound} --kill-on-bad-exit=1"


def test_one_node_needs_no_slurm():
    line = training_command("1x4", OPTIONS, folder="/logs", allocation=None)
    assert " ".join(line) == f"{AGENT} /logs {host.node_name()} 4 {TRAIN} --config c.yaml --study s"


def test_several_nodes_run_one_agent_each_on_all_cpus_of_the_job():
    allocation = Allocation(job="1234567", nodes=("n3", "n4"), end_time=0, cpus_per_node=16)
    line = training_command("2x8", OPTIONS, folder="/logs", allocation=allocation)
    assert " ".join(line) == f"{srun(2, 2, 16)} {AGENT} /logs n3,n4 8 {TRAIN} --config c.yaml --study s"


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
    "deepspeed": "-m deepspeed.launcher.runner --hostfile /meeting/hostfile --no_ssh --node_rank {node_rank} "
    "--master_addr {master_addr} --master_port {master_port}",
}


def own(launcher, scale="2x4", **fields):
    line = script_command(
        scale,
        ["train.py", "--lr", "0.1"],
        launcher=launcher,
        launcher_options=["--more"],
        python="/env/python",
        meeting="/meeting",
        cpus_per_gpu=3,
        **{"job_nodes": ("n3", "n4"), **fields},
    )
    return " ".join(line)


@pytest.mark.parametrize("launcher", PYTHON)
def test_a_launcher_is_started_once_per_node_with_telemetry(launcher):
    assert own(launcher) == (
        f"{srun(2, 2, 12)} {WATCH} /meeting /env/python {PYTHON[launcher]} --more train.py --lr 0.1"
    )


def test_srun_starts_the_script_itself_once_per_gpu():
    assert own("srun") == f"{srun(2, 8, 3)} --more {WATCH} /meeting /env/python train.py --lr 0.1"
    with pytest.raises(UserError, match="use torchrun here"):
        own("srun", scale="1x4", job_nodes=())


def test_on_one_node_a_launcher_needs_no_slurm():
    line = own("torchrun", scale="1x4", job_nodes=())
    assert line.startswith(f"{WATCH} /meeting /env/python -m torch.distributed.run --nproc-per-node 4")
    assert "--nnodes 1 " in line


def python_that_runs(folder, line):
    """An interpreter that runs a line of a shell, whatever it is asked to run."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o700)
    return str(program)


def launches_of(study, folder):
    return Launches(folder / "1x1/out" / result_digest(study, "1x1", "no dataset"))


def test_a_script_resumes_from_its_checkpoint_with_the_option_at_its_placeholder(tmp_path, monkeypatch, handlers):
    save = f"printf '%s\\n' \"$@\" > {tmp_path}/words; cd {tmp_path}/1x1/out/*; echo state > 'x y.pt'; exit 3"
    code = iter(["1a", "2b"])
    monkeypatch.setattr(user_script, "code_record", lambda study, *, config: {"code": next(code), "config": config})
    monkeypatch.setattr(user_script, "may_be_of_checkpoint", lambda *_, **options: False)  # as if it failed after hours
    options = {"args": {"n": "a b"}, "checkpoint": "*.pt", "resume": "--from {resume_from}", "scales": ["1x1"]}
    study = ScriptScaling(script="t.py {resume} --n={n}", env=python_that_runs(tmp_path, save), **options)
    saved = launches_of(study, tmp_path).output.with_name("x y.pt")
    for words in (["t.py", "--n=a b"], ["t.py", "--from", str(saved), "--n=a b"]):
        with pytest.raises(UserError, match="the script failed"):
            UserScript(study, "1x1", tmp_path, tmp_path, config="0123abcd").run()
        assert (tmp_path / "words").read_text().splitlines()[-len(words) :] == words
    sessions = launches_of(study, tmp_path).facts(["code", "versions", "config"])
    assert sessions == [{"code": code, "versions": None, "config": "0123abcd"} for code in ("1a", "2b")]


@pytest.mark.parametrize("change", [{"launcher": "torchrun --max-restarts 1"}, {"mode": "strong"}, {"args": {"n": 2}}])
def test_what_changes_the_result_starts_a_script_without_the_checkpoints_of_before(
    tmp_path, monkeypatch, handlers, change
):
    """It would resume from the last one, find nothing left to do, and have the old metrics."""
    python = python_that_runs(tmp_path, f"echo $* >> {tmp_path}/words; touch 1.pt")
    options = {"script": "t.py --n {n} {resume}", "checkpoint": "*.pt", "resume": "--from-it", "scales": ["1x1"]}
    options |= {"args": {"n": 1}, "env": python, "workdir": "trial"}
    for study in (options, options | change):
        UserScript(ScriptScaling.model_validate(study), "1x1", tmp_path, tmp_path).run()
    first, second = (tmp_path / "words").read_text().splitlines()
    assert "--from-it" not in first + second


def test_a_script_finds_its_settings_in_its_folder(tmp_path, monkeypatch, handlers):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.json").write_text('{"lr": 0.5, "depth": 2}')
    python = python_that_runs(tmp_path, f'for last; do :; done; cp "$last" {tmp_path}/seen.json')
    options = {"script": "t.py {settings}", "settings": "base.json", "args": {"lr": 0.1}, "scales": ["1x1"]}
    study = ScriptScaling.model_validate({**options, "env": python})
    UserScript(study, "1x1", tmp_path, tmp_path).run()
    assert json.loads((tmp_path / "seen.json").read_text()) == {"lr": 0.1, "depth": 2}


def test_naming_another_environment_runs_a_script_again_and_nothing_else_does():
    def folder(**options):
        study = ScriptScaling.model_validate({"script": "t.py", "scales": ["1x1"], **options})
        return result_digest(study, "1x1", "no dataset")

    assert folder() == folder(repeats=2)
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
def test_a_checkpoint_is_given_up_after_an_error_of_the_script_only(tmp_path, monkeypatch, handlers, end, is_bad):
    """Not if the kernel killed a rank when memory ran out, or its node failed."""
    monkeypatch.setattr(user_script, "script_command", lambda *_, **__: ["sh", "-c", end])
    options = {"script": "t.py", "checkpoint": "*.pt", "resume": "{resume_from}", "scales": ["1x1"]}
    launches = launches_of(study := ScriptScaling.model_validate(options), tmp_path)
    launches.output.parent.mkdir(parents=True)
    launches.output.with_name("1.pt").write_text("state")
    with pytest.raises(UserError, match="the script failed"):
        UserScript(study, "1x1", tmp_path, tmp_path).run()
    assert bool(launches.failed_checkpoints()) == is_bad


@pytest.mark.parametrize(("of_user", "expected"), [({}, "91"), ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "45"}, "45")])
def test_torchrun_grants_its_ranks_the_grace_period_of_the_study(tmp_path, monkeypatch, handlers, of_user, expected):
    """By default, it sends SIGKILL 30 s after SIGTERM."""
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    for name, value in of_user.items():
        monkeypatch.setenv(name, value)
    python = python_that_runs(tmp_path, "echo granted $TORCH_ELASTIC_SHUTDOWN_TIMEOUT s")
    options = {"script": "t.py", "env": python, "grace_seconds": 90.5, "scales": ["1x1"]}
    UserScript(study := ScriptScaling.model_validate(options), "1x1", tmp_path, tmp_path).run()
    assert launches_of(study, tmp_path).output.read_text() == f"granted {expected} s\n"
    (session,) = json.loads((tmp_path / "1x1/summary.json").read_text())["sessions"]
    assert session == code_record(study, config=None)
    assert is_trained(study, "1x1", tmp_path, tmp_path)
    for change in ({"retrain": 1}, {"launcher": "torchrun --max-restarts 1"}):
        assert not is_trained(ScriptScaling.model_validate(options | change), "1x1", tmp_path, tmp_path)


@pytest.fixture
def at_once(monkeypatch):
    """srun has no time to end by itself."""
    for name in ("SRUN_SECONDS", "KILL_SECONDS"):
        monkeypatch.setattr(rendezvous, name, 0.0)
    monkeypatch.setattr(rendezvous, "LOOK_SECONDS", 0.1)


@pytest.mark.parametrize(("codes", "expected"), [([0, 0], 0), ([0, 3], 3), ([1], 1)])
def test_srun_ends_soon_after_all_tasks_of_its_step_or_a_failed_one(
    tmp_path, monkeypatch, slurm, at_once, handlers, codes, expected
):
    """If slurmstepd was killed, srun waits for its tasks until the end of the walltime."""
    monkeypatch.chdir(tmp_path)
    slurm.allocate("n1", "n2")
    slurm.runs("srun", f"echo $$ > {tmp_path}/srun; exec sleep 3600")

    def end_tasks():
        wait_until(lambda: (tmp_path / "srun").exists(), what="srun")
        [folder] = tmp_path.glob(".torchrun-*")
        for task, code in enumerate(codes):
            rendezvous.end_together(folder, task=task, tasks=2, code=code)

    tasks = threading.Thread(target=end_tasks)
    tasks.start()
    assert launchers.launch("2x1", []) == expected
    tasks.join()
    assert not psutil.pid_exists(int((tmp_path / "srun").read_text()))


@pytest.mark.parametrize("codes", [[0], []])
def test_srun_does_not_end_while_a_task_runs(tmp_path, at_once, codes):
    for task, code in enumerate(codes):
        rendezvous.end_together(tmp_path, task=task, tasks=2, code=code)
    assert rendezvous.StepEnd(tmp_path, tasks=2).overdue_code() is None
