"""A command as a trial: it is monitored while it runs, and ends together with all processes that it started."""

import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from driven import drive, drive_on, step_by_step
from project import ROOT
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until
from trainyard.cluster import host
from trainyard.cluster.stop_request import StopRequest
from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import Metrics, UserProgram, checkpoints_of
from trainyard.programs import runner
from trainyard.programs.metrics import MetricsCollector
from trainyard.programs.output import QUEUED_LINES, OutputReader
from trainyard.programs.runner import (
    ProgramRun,
    as_own_job,
    failed_by_itself,
    find_checkpoint,
    run_user_program,
    trial_command,
    trial_environment,
    trial_job_id,
)
from trainyard.programs.trial_messages import EpochReported
from trainyard.programs.user_environment import program_environment, resolve_program_paths
from trainyard.utils.environment_variables import COMPILE_THREADS
from trainyard.utils.errors import UserError
from trainyard.utils.guarded_process import ProcessGuard

PATTERN = Metrics(pattern=r"epoch (?P<epoch>\d+): acc (?P<val_accuracy>\S+)")


@pytest.fixture(scope="module")
def guard():
    return ProcessGuard()


@dataclass
class Call:
    """The command of a trial, and how it runs; `run` begins it."""

    folder: Path
    command: str | list[str]
    args: dict[str, Any] = field(default_factory=dict)
    resume_from: str = ""
    resume: str | None = None
    start: Path | None = None
    metrics: Metrics | None = None
    environment: Mapping[str, str] | None = None
    collector: type[MetricsCollector] = MetricsCollector
    stop_request: StopRequest = field(default_factory=StopRequest)
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, guard):
        """The reports of the command, step by step."""
        return step_by_step(partial(self.report, guard))

    def report(self, guard, report):
        """How the command ends, which calls `report` with its epochs."""
        folder = self.folder
        words = {"trial": "t1", "attempt": 1, "trial_dir": str(folder), "cpus": 1, "resume_from": self.resume_from}
        program = UserProgram(command=self.command, args=self.args)
        with host.reserved_port() as port:
            line = trial_command(program, words | {"dataset": "", "port": port}, resume=self.resume, start=self.start)
            given = program_environment() if self.environment is None else self.environment
            environment = trial_environment(given, trial="t1", folder=folder, cpus=1, start=self.start)
            made = ProgramRun(
                **{"command": line, "cwd": str(folder), "output": folder / "output-1.log"} | self.options,
                environment=as_own_job(environment, folder=folder, cpus=1, port=port),
                metrics=self.collector(self.metrics, folder, resumes=bool(self.resume_from)),
                stop_request=self.stop_request,
            )
            return run_user_program(made, guard, report)


OPTIONS = ("cwd", "output", "timeout_seconds", "deadline", "grace_seconds", "on_line", "overdue_code")


def call(folder, command, **fields):
    return Call(folder, command, **{name: value for name, value in fields.items() if name not in OPTIONS},
                options={name: value for name, value in fields.items() if name in OPTIONS})  # fmt: skip


def run(made, guard, *, stop_at=None):
    """The rows that a command reports, and how it ends; it is stopped after the epoch `stop_at`."""
    return drive(partial(made.report, guard), stop_at=stop_at)


def end_of(made, guard, **options):
    """How a command ends."""
    return run(made, guard, **options)[1]


def test_values_with_special_characters_reach_the_program_unchanged(tmp_path, guard):
    args = {"text": "it's $HOME; `ls` *", "list": [1, 2], "yes": True, "deep": {"number": 1e-4}}
    line = "printf '%s|' {text} {list} {yes} {deep.number} ${HOME:+home}"
    end = end_of(call(tmp_path, line, args=args), guard)
    assert end.tail == "it's $HOME; `ls` *|[1, 2]|true|0.0001|home|"
    end = end_of(call(tmp_path, ["printf", "%s|", "{text}", "a{yes}b"], args=args), guard)
    assert end.tail == "it's $HOME; `ls` *|atrueb|"


def test_a_command_has_a_port_of_its_own_until_it_ends(tmp_path, guard, monkeypatch):
    two = 14000 + 2 * (os.getpid() % 1000)  # not those of other runs of these tests, nor of other programs
    monkeypatch.setattr(host, "PORTS", range(two, two + 2))
    wait = "echo epoch 1: acc {port}; echo epoch 2: acc 0; while [ ! -e go ]; do sleep 0.05; done"
    waiting = call(tmp_path, wait, metrics=PATTERN).run(guard)
    first = next(waiting).row["val_accuracy"]
    for _ in range(3):
        tail = end_of(call(tmp_path, ["sh", "-c", "test $MASTER_PORT = $1 && echo $1", "sh", "{port}"]), guard).tail
        assert {first, int(tail)} == {two, two + 1}
    (tmp_path / "go").touch()
    assert [each.row["epoch"] for each in waiting] == [2]
    assert end_of(call(tmp_path, "echo {port} {args}", args={"port": 1, "n": 2}), guard).tail == "1 --n 2"


def test_a_command_uses_as_many_threads_as_it_has_cpus(tmp_path, guard, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "16")  # of the whole job, from Snakemake
    monkeypatch.setenv("MKL_NUM_THREADS", "16")
    monkeypatch.delenv(COMPILE_THREADS, raising=False)
    echo = f"echo $OMP_NUM_THREADS $MKL_NUM_THREADS ${COMPILE_THREADS}"
    assert end_of(call(tmp_path, echo), guard).tail == "1 1 1"
    monkeypatch.setenv(COMPILE_THREADS, "16")  # only a user sets this one
    assert end_of(call(tmp_path, echo), guard).tail == "1 1 16"


def test_epochs_are_reported_while_a_command_runs(tmp_path, guard):
    line = "echo 'epoch 1: acc 0.5\nepoch 2: acc 0.6'; while [ ! -e go ]; do sleep 0.05; done; echo 'epoch 3: acc 0.75'"
    running = call(tmp_path, line, metrics=PATTERN).run(guard)
    assert next(running) == EpochReported({"epoch": 1, "val_accuracy": 0.5})
    assert running.send(False).row["epoch"] == 2
    (tmp_path / "go").touch()
    assert running.send(False).row["epoch"] == 3
    with pytest.raises(StopIteration) as end:
        running.send(False)
    assert end.value.value.status == TrialStatus.FINISHED
    assert end.value.value.metrics == {"val_accuracy": 0.75}
    assert end.value.value.exit_code == 0
    assert (tmp_path / "output-1.log").read_text() == "epoch 1: acc 0.5\nepoch 2: acc 0.6\nepoch 3: acc 0.75\n"


def test_a_command_that_has_ended_is_not_stopped_early_by_its_last_row(tmp_path, guard):
    end = end_of(call(tmp_path, "echo 'epoch 1: acc 0.5'", metrics=PATTERN), guard, stop_at=1)
    assert end.status == TrialStatus.FINISHED
    assert end.metrics == {"val_accuracy": 0.5}
    end = end_of(call(tmp_path, "echo 'epoch 1: acc 0.5'; exit 3", metrics=PATTERN), guard, stop_at=1)
    assert end.status == TrialStatus.FAILED
    assert end.error == "exit code 3: epoch 1: acc 0.5"


@pytest.mark.parametrize(
    "line",
    [
        "python scripts/train.py > log.txt",
        "LR=1 python scripts/train.py 2>&1 | tee log.txt",
        "(./run | cat) && cat log.txt",
        ["python", "scripts/train.py"],
        "python -m package",
    ],
)
def test_a_program_in_a_folder_of_its_own_is_found_with_its_modules(tmp_path, guard, line):
    start, own = tmp_path / "it's here", tmp_path / "trial"
    for folder in (start / "scripts", start / "package", own):
        folder.mkdir(parents=True)
    program = "import package; open('model.pt', 'w').close(); open('log.txt', 'w').close()"
    (start / "scripts/train.py").write_text(program)
    (start / "package/__init__.py").touch()
    (start / "package/__main__.py").write_text(program)
    (start / "run").write_text("#!/bin/sh\ntouch model.pt log.txt\n")
    (start / "run").chmod(0o755)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    end = end_of(call(own, line, start=start, environment=os.environ | {"PATH": path}), guard)
    assert end.status == TrialStatus.FINISHED, end.error
    assert {"model.pt", "log.txt"} <= {each.name for each in own.iterdir()}
    assert {each.name for each in start.iterdir()} == {"scripts", "package", "run"}


def test_a_word_that_is_too_long_for_the_name_of_a_file_is_no_program(tmp_path):
    code = f"print({'1' * 300}); import train.py"
    assert resolve_program_paths(["python", "-c", code], tmp_path) == ["python", "-c", code]


def test_a_script_whose_path_needs_quotes_is_found_from_another_folder(tmp_path):
    (tmp_path / "my dir").mkdir()
    (script := tmp_path / "my dir/train.py").touch()
    (other := tmp_path / "train.sh").touch()
    line = "python 'my dir/train.py' \"my dir/train.py\" 'my {dir}/train.py'; sh -c 'cd x; exec sh train.sh --lr 1'"
    expected = f"python '{script}' '{script}' 'my {{dir}}/train.py'; sh -c 'cd x; exec sh {other} --lr 1'"
    assert resolve_program_paths(line, tmp_path) == expected


# Commands that fail, and the beginning of their error.
FAILURES = {
    "echo reading; echo 'no such file: x' >&2; exit 3": "exit code 3: no such file: x",
    "kill -SEGV $$": "killed by SIGSEGV: no output",
    "kill -35 $$": "killed by signal 35: no output",  # a real-time signal has no name
    "sh -c 'kill -KILL $$'; exit $?": "exit code 137 (SIGKILL): ",
    "./nowhere": "exit code 127: bash: line 1: ./nowhere: No such file or directory",
    "(echo ValueError: lr; exit 3) 2>&1 | tee log.txt": "exit code 3: ValueError: lr",
    "yes | head -n 1": "exit code 141 (SIGPIPE): a program of a pipe ended before it had read all (`| head`); if it "
    "may, begin the command with `set +o pipefail;`, or leave out its `-o pipefail`",
    "sleep 60": "it exceeded timeout_minutes (0.01)",
}


@pytest.mark.parametrize("line", FAILURES)
def test_the_error_of_a_failed_command_is_one_line(tmp_path, guard, line):
    limit = 0.6 if line.startswith("sleep") else None
    end = end_of(call(tmp_path, line, metrics=PATTERN, timeout_seconds=limit), guard)
    assert end.status == TrialStatus.FAILED
    assert end.error.startswith(FAILURES[line])


def test_the_last_program_of_a_pipe_may_end_early_where_the_command_says_so(tmp_path, guard):
    end = end_of(call(tmp_path, "set +o pipefail; yes 'epoch 1: acc 0.5' | head -n 1", metrics=PATTERN), guard)
    assert (end.status, end.metrics) == (TrialStatus.FINISHED, {"val_accuracy": 0.5})


HYDRA = """
import hydra

@hydra.main(version_base=None, config_path=None)
def main(config):
    raise ValueError(f"lr is {config.lr}")

main()
"""


@pytest.mark.parametrize("full", [None, "0"])
def test_the_error_of_a_hydra_program_is_its_exception_and_not_its_hint(tmp_path, guard, monkeypatch, full):
    if full is not None:
        monkeypatch.setenv("HYDRA_FULL_ERROR", full)
    (tmp_path / "program.py").write_text(HYDRA)
    for argument, error in {
        "+lr=0.1": "ValueError: lr is 0.1",
        "epoch=3": "hydra.errors.ConfigCompositionException: Could not override 'epoch'." if full is None else
                   "object_type=dict",
    }.items():  # fmt: skip
        end = end_of(call(tmp_path, [sys.executable, "program.py", argument]), guard)
        assert end.error == f"exit code 1: {error}"
        assert ("HYDRA_FULL_ERROR" in end.tail) == (full is not None)


SAYS = """
import sys
out = sys.stdout.buffer
out.write(b"." * 2**24 + b"\\n")
out.write(b"\\x1b[32mepoch\\x1b[0m 1: acc \\x1b[1m0.5\\x1b[0m\\n")
out.write(b"epoch 2: acc 1.2e-05\\r\\n")
for byte in "naïve epoch 3: acc 0.925".encode():
    out.write(bytes([byte]))
    out.flush()
"""
BARS = """
from tqdm import tqdm
for epoch in (1, 2, 3):
    bar = tqdm(range(3000, -1, -1), desc=f"epoch {epoch}", mininterval=0, miniters=1)
    for loss in bar:
        bar.set_postfix(loss=loss)
"""


def test_a_command_that_succeeds_without_metrics_is_unreadable(tmp_path, guard):
    for line, metrics, why in (
        ("echo 'epoch 1: acc bad'", PATTERN, r"none were found in its output by epoch \(\?P<epoch>"),
        ("true", Metrics(file="m.jsonl"), "none were found in m.jsonl"),
        ("echo '{]' > m.jsonl", Metrics(file="m.jsonl"), "m.jsonl cannot be read as jsonl"),
    ):
        end = end_of(call(tmp_path, line, metrics=metrics), guard)
        assert end.status == TrialStatus.UNREADABLE
        assert re.search(why, end.error)
        assert end.metrics_digest == metrics.digest
    end = end_of(call(tmp_path, "echo '{]' > m.jsonl; exit 3", metrics=Metrics(file="m.jsonl")), guard)
    assert end.status == TrialStatus.FAILED
    assert end.error.startswith("exit code 3")


def test_metrics_are_found_in_output_with_long_lines_and_escape_codes(tmp_path, guard):
    program = tmp_path / "says.py"
    program.write_text(SAYS)
    metrics = Metrics(pattern=r"epoch (?P<epoch>\d+): acc (?P<val_accuracy>{number})")
    rows, end = run(call(tmp_path, [sys.executable, "says.py"], metrics=metrics), guard)
    assert rows == [
        {"epoch": 1, "val_accuracy": 0.5}, {"epoch": 2, "val_accuracy": 1.2e-05}, {"epoch": 3, "val_accuracy": 0.925},
    ]  # fmt: skip
    assert end.tail.endswith("naïve epoch 3: acc 0.925")
    assert (tmp_path / "output-1.log").stat().st_size > 16 * 2**20, "the whole output is kept"


def test_a_progress_bar_reports_an_epoch_once(tmp_path, guard):
    program = tmp_path / "bars.py"
    program.write_text(BARS)
    metrics = Metrics(pattern=r"epoch (?P<epoch>\d+): .* loss=(?P<loss>{number})")
    rows, end = run(call(tmp_path, [sys.executable, "bars.py"], metrics=metrics), guard)
    assert rows == [{"epoch": epoch, "loss": 0} for epoch in (1, 2, 3)]
    assert end.metrics == {"loss": 0}


def test_the_error_names_a_missing_program(tmp_path, guard):
    with pytest.raises(Exception, match="nowhere cannot be started: No such file"):
        run(call(tmp_path, ["nowhere"]), guard)


def test_the_error_names_a_missing_working_directory(tmp_path, guard):
    elsewhere = call(tmp_path, ["true"], cwd=str(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match=r"true cannot be started in .*/elsewhere: there is no such folder on \w+"):
        run(elsewhere, guard)


def test_an_unreadable_folder_on_path_does_not_hide_that_a_program_is_missing(tmp_path, guard, monkeypatch):
    """The system reports the error of the folder: permission denied, or too many levels of symbolic links."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "closed").mkdir(mode=0)
    monkeypatch.setenv("PATH", f"{tmp_path}/loop:{tmp_path}/closed", prepend=":")
    with pytest.raises(Exception, match="nowhere cannot be started: No such file"):
        run(call(tmp_path, ["nowhere"]), guard)
    (tmp_path / "text").touch(mode=0o644)
    with pytest.raises(Exception, match="text cannot be started: Permission denied"):
        run(call(tmp_path, [f"{tmp_path}/text"]), guard)


def test_a_stopped_or_interrupted_command_has_a_grace_period(tmp_path, guard):
    line = "trap 'touch kept; exit 1' TERM; echo 'epoch 1: acc 0.1\nepoch 2: acc 0.2'; while true; do sleep 0.05; done"
    end = end_of(call(tmp_path, line, metrics=PATTERN), guard, stop_at=1)
    assert end.status == TrialStatus.STOPPED
    assert end.metrics == {"val_accuracy": 0.2}
    assert (tmp_path / "kept").exists()
    end = end_of(call(tmp_path, line, metrics=PATTERN, deadline=time.time() + 0.5), guard)
    assert end.status == TrialStatus.INTERRUPTED
    assert end.error == "ended before the end of the walltime"


def test_a_verdict_that_comes_after_the_command_has_ended_does_not_count(tmp_path, guard):
    running = call(tmp_path, "echo 'epoch 1: acc 0.1'; echo 'epoch 2: acc 0.2'", metrics=PATTERN).run(guard)
    assert next(running).row["epoch"] == 1
    wait_until(lambda: not any("_follow" in thread.name for thread in threading.enumerate()), what="its end")
    assert running.send(True).row["epoch"] == 2
    with pytest.raises(StopIteration) as ended:
        next(running)
    assert (ended.value.value.status, ended.value.value.metrics) == (TrialStatus.FINISHED, {"val_accuracy": 0.2})


def test_a_command_that_gets_the_signal_of_its_job_and_exits_with_0_is_interrupted(tmp_path, guard):
    line = "trap 'exit 0' TERM; echo $PPID $$ > pids; echo 'epoch 1: acc 0.1\nepoch 2: acc 0.2'; "
    line += "while true; do sleep 0.05; done"
    made = call(tmp_path, line, metrics=PATTERN)
    running = made.run(guard)
    next(running)
    made.stop_request.make()
    for process in (tmp_path / "pids").read_text().split():  # some sites signal all processes of a step
        os.kill(int(process), signal.SIGTERM)
    wait_until(lambda: not psutil.pid_exists(int(process)), what="the command to end")
    _, end = drive_on(running)
    assert (end.status, end.exit_code) == (TrialStatus.INTERRUPTED, 0)


def test_a_command_that_has_ended_before_its_job_is_finished(tmp_path, guard, monkeypatch):
    line = "for i in $(seq 300); do echo epoch $i: acc 0.$i; done"  # more than is read at once
    made = call(tmp_path, line, metrics=PATTERN)
    started, start = [], runner._start
    monkeypatch.setattr(runner, "_start", lambda *arguments: started.append(start(*arguments)) or started[-1])
    running = made.run(guard)
    next(running)
    wait_until(lambda: started[0].ended_at, what="the command to end")
    made.stop_request.make()
    rows, end = drive_on(running)
    assert rows[-1]["epoch"] == 300
    assert end.status == TrialStatus.FINISHED


def sleeping(folder):
    """The processes that sleep in this folder; other runs of these tests may run at the same time."""
    lines = ((each.info["cmdline"] or [], each.info["cwd"]) for each in psutil.process_iter(["cmdline", "cwd"]))
    return [line for line, cwd in lines if line[:1] == ["sleep"] and cwd == str(folder)]


def test_no_process_that_a_command_started_outlives_it(tmp_path, guard):
    line = "setsid sleep 9301 & sleep 9302 & echo $$; sleep 0.3"
    run(call(tmp_path, line + "; sleep 60", timeout_seconds=1.0), guard)
    run(call(tmp_path, "sleep 9303 & true"), guard)
    assert sleeping(tmp_path) == []


def test_a_command_ends_when_its_worker_is_killed(tmp_path):
    code = f"""
        import sys, time
        sys.path[:0] = [{str(ROOT / "scripts")!r}, {str(ROOT / "tests/unit/programs")!r}, {str(ROOT / "tests")!r},
                        {str(ROOT / "tools")!r}]
        from pathlib import Path
        from test_runner import call, run
        from trainyard.utils.guarded_process import ProcessGuard
        run(call(Path({str(tmp_path)!r}), "sleep 9304 & sleep 9305"), ProcessGuard())
    """
    runner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stderr=subprocess.PIPE)
    wait_until(lambda: len(sleeping(tmp_path)) == 2, what="both sleep commands", while_running=runner)
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    wait_until(lambda: not sleeping(tmp_path), what="it has ended")


def test_a_command_sees_its_gpu_but_not_the_ray_and_the_steps_of_the_job(tmp_path, guard, monkeypatch):
    for name in ("TRAINYARD_CLUSTER", "TRAINYARD_FAULTS"):  # of the tests
        monkeypatch.delenv(name, raising=False)
    for name in ("CUDA_VISIBLE_DEVICES", "RAY_ADDRESS", "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_NTASKS"):
        monkeypatch.setenv(name, "7")
    tail = end_of(call(tmp_path, "env | grep -E 'CUDA|RAY|SLURM|TRAINY'"), guard).tail
    seen = {line.partition("=")[0] for line in tail.splitlines()}
    ours = {"TRAINYARD_TRIAL", "TRAINYARD_TRIAL_DIR", "TRAINYARD_TREE", "TRAINYARD_JOB_ID"}
    slurm = {f"SLURM_{name}" for name in ("JOBID", "JOB_ID", "JOB_NODELIST", "JOB_NUM_NODES", "JOB_CPUS_PER_NODE")}
    assert seen == {"CUDA_VISIBLE_DEVICES", *slurm, *ours}


def test_what_a_command_names_after_its_job_is_its_own_in_each_job(tmp_path, guard, monkeypatch):
    """As scripts of arrays name ports, checkpoints and runs: no other trial has it, and a later job finds it again."""
    monkeypatch.setenv("SLURMD_NODENAME", "n3")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-4]")
    monkeypatch.setenv("SLURM_JOB_GPUS", "0,1,2,3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    line = "echo $SLURM_JOB_ID $SLURM_JOBID $TRAINYARD_JOB_ID $SLURM_JOB_NODELIST $SLURM_JOB_GPUS"

    def seen(folder, job):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        (tmp_path / folder).mkdir(exist_ok=True)
        job_id, old_name, real, node, gpus = end_of(call(tmp_path / folder, line), guard).tail.split()
        assert (old_name, real, node, gpus) == (job_id, job, "n3", "2")
        return job_id

    first = seen("t1", "7")
    assert first not in ("7", seen("t2", "7"))
    assert seen("t1", "8") == first


def test_the_job_id_of_a_trial_is_no_job_of_slurm_and_makes_a_port(tmp_path):
    numbers = [trial_job_id(tmp_path / str(trial)) for trial in range(20_000)]
    assert len(set(numbers)) == len(numbers)
    assert all(0xFC000000 <= number % 2**32 < 0xFFFF0000 for number in numbers), "what Slurm's commands keep of it"
    assert {len(str(number)[-4:].lstrip("0")) for number in numbers} == {4}, "no octal number in bash"


def test_a_command_outside_of_slurm_has_no_job(tmp_path, guard, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert end_of(call(tmp_path, "env | grep -cE '^(SLURM|TRAINYARD)_JOB' || true"), guard).tail == "0"


RESUMED = {  # commands, and their output when they start and when they resume from a file with a space in its name
    "echo run {resume} | tee out": ("run", "run --resume a b.pt"),
    "echo run \\\n  {resume} \\\n  last\n": ("run last", "run --resume a b.pt last"),
    "echo run\n": ("run", "run --resume a b.pt"),
    "resume=x; echo ${resume} {x} {resume}": ("x $", "x $ --resume a b.pt"),
    ("printf", "<%s>", "run", "{resume}", "last"): ("<run><last>", "<run><--resume><a b.pt><last>"),
    ("printf", "<%s>", "run"): ("<run>", "<run><--resume><a b.pt>"),
}


@pytest.mark.parametrize("command", RESUMED)
def test_the_resume_option_replaces_its_placeholder(tmp_path, guard, command):
    for resumes, expected in zip((None, "--resume {resume_from}\n"), RESUMED[command], strict=True):
        line = list(command) if isinstance(command, tuple) else command
        made = call(tmp_path, line, args={"x": "$"}, resume_from="a b.pt", resume=resumes)
        assert end_of(made, guard).tail.splitlines()[0] == expected


def test_an_argument_called_resume_is_not_the_resume_option(tmp_path, guard):
    made = call(tmp_path, "echo {resume}", args={"resume": "auto"}, resume_from="a.pt", resume="--from {resume_from}")
    assert end_of(made, guard).tail == "auto --from a.pt"


def test_empty_files_and_dangling_links_are_no_checkpoints_and_a_link_is_its_file(tmp_path):
    """What a program leaves that is killed while it saves must not cost a retry, nor the good one before it."""
    for age, name in ((9, "1.pt"), (5, "2.pt")):
        (tmp_path / name).write_text("state")
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (tmp_path / "3.pt").touch()
    (tmp_path / "last.pt").symlink_to("2.pt")
    (tmp_path / "best.pt").symlink_to("0.pt")
    newest = find_checkpoint(tmp_path, "*.pt")
    assert newest.name == "2.pt"
    assert find_checkpoint(tmp_path, "*.pt", bad=[newest]).name == "1.pt"
    (tmp_path / "checkpoint-4").mkdir()
    assert find_checkpoint(tmp_path, "checkpoint-*").name == "checkpoint-4"


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (["checkpoint-5", "checkpoint-10", "checkpoint-1"], "checkpoint-10"),
        (["e-002.pt", "e-010.pt", "e-001.pt"], "e-010.pt"),
        (["slot-1.pt", "slot-0.pt"], "slot-0.pt"),
        (["last-1.pt", "last-2.pt"], "last-2.pt"),
        (["e3-loss0.5.pt", "e4-loss0.4.pt", "e2-loss0.6.pt"], "e2-loss0.6.pt"),
        (["acc-0.9.pt", "acc-0.95.pt", "acc-0.8.pt"], "acc-0.8.pt"),
        (["epoch-3.pt", "epoch-4.pt", "last.pt"], "last.pt"),
    ],
)
def test_the_newest_checkpoint_is_that_of_the_highest_number_if_only_it_differs(tmp_path, names, newest):
    """The last of these was written, or touched, last."""
    for seconds, name in enumerate(names, 1):
        (tmp_path / name).write_text("state")
        os.utime(tmp_path / name, (seconds, seconds))
    assert find_checkpoint(tmp_path, "*").name == newest


def test_a_folder_is_a_checkpoint_once_the_file_that_completes_it_is_there(tmp_path):
    for number in (1, 2, 3):
        (tmp_path / f"checkpoint-{number}").mkdir()
        (tmp_path / f"checkpoint-{number}/model.bin").write_text("weights")
    for number in (1, 2):
        (tmp_path / f"checkpoint-{number}/DONE").touch()
    assert find_checkpoint(tmp_path, "checkpoint-*/DONE").name == "checkpoint-2"
    assert find_checkpoint(tmp_path, "checkpoint-*/model.bin").name == "checkpoint-3/model.bin", "it is the checkpoint"
    assert [
        checkpoints_of(each) for each in ("*.pt", "run/state.json", "v_*/ckpt/last.ckpt", "out/step_*/state.json")
    ] == [
        "*.pt",
        "run/state.json",
        "v_*/ckpt/last.ckpt",
        "out/step_*",
    ]


def test_a_bad_checkpoint_is_not_used_again(tmp_path):
    """First the newest, then the one before it, then none, until a new one is written, also under an old name."""

    def write(name, age, text):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))

    def resumable(*bad):
        kept = find_checkpoint(tmp_path, "*.pt", bad=bad)
        return kept and kept.name

    for number in (1, 2, 3):
        write(f"{number}.pt", 4 - number, "state")
    assert find_checkpoint(tmp_path, "*.ckpt") is None
    newest = find_checkpoint(tmp_path, "*.pt")
    assert newest.name == "3.pt"
    second = find_checkpoint(tmp_path, "*.pt", bad=[newest])
    assert second.name == "2.pt"
    assert resumable(newest, second) is None
    write("1.pt", 0, "another state")
    assert resumable(newest, second) == "1.pt"


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("exit 3", True),
        ("kill -SEGV $$", True),
        ("sh -c 'kill -SEGV $$'; exit $?", True),
        ("kill -KILL $$", False),
        ("kill -TERM $$", False),
        ("sh -c 'kill -KILL $$'; exit $?", False),
        ("echo ' exitcode  : -9 (pid: 7)'; exit 1", False),
        ("echo ' exitcode  : 1 (pid: 7)'; exit 1", True),
        ("sleep 60", False),
    ],
)
def test_a_checkpoint_is_suspect_only_if_the_program_failed_by_itself(tmp_path, guard, line, bad):
    limit = 0.2 if line.startswith("sleep") else None
    end = end_of(call(tmp_path, line, timeout_seconds=limit), guard)
    assert failed_by_itself(end.error) == bad


FILTER = 'while IFS= read -r line; do sleep 0.01; echo "[now] $line"; done'
BEHIND = {
    "the end of a filter": f'exec > >({FILTER}) 2>&1; for i in 1 2 3 4 5; do echo "epoch $i: acc 0.$i"; done',
    "a file, too": 'exec > >(tee all.log) 2>&1; for i in 1 2 3 4 5; do echo "epoch $i: acc 0.$i"; done',
}


@pytest.mark.parametrize("line", BEHIND.values(), ids=BEHIND)
def test_output_through_a_filter_is_read_to_its_end(tmp_path, guard, line):
    end = end_of(call(tmp_path, ["bash", "-c", line], metrics=PATTERN), guard)
    assert end.metrics == {"val_accuracy": 0.5}
    assert end.tail.endswith("epoch 5: acc 0.5")


def test_a_full_disk_ends_no_program_and_its_cut_output_is_not_parsed_again(small_disk, tmp_path, guard, caplog):
    program = "import sys\nfor n in range(1, 9): print('x' * 99_999); print(f'epoch {n}: acc 0.{n}')\n"
    command, output = [sys.executable, "-c", "{program}"], small_disk.folder / "output-1.log"
    small_disk.fill(leave=1 << 18)
    rows, end = run(call(tmp_path, command, args={"program": program}, metrics=PATTERN, output=output), guard)
    assert [row["epoch"] for row in rows] == list(range(1, 9))
    assert (end.status, end.metrics["val_accuracy"]) == (TrialStatus.FINISHED, 0.8)
    assert {each.name for each in small_disk.folder.iterdir()} == {"filler", "output-1.log.incomplete"}
    assert "its output is not kept from here on: " in caplog.text
    assert "no space left on device: make room" in caplog.text


def test_a_program_whose_output_cannot_be_stored_or_renamed_runs_on(tmp_path, caplog):
    """The name of the cut output is taken by a folder here; a file server that fails does the same."""
    (tmp_path / "output-1.log.incomplete/kept").mkdir(parents=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    program = "import sys\nfor n in range(1, 9): print('x' * 99_999); print(f'epoch {n}: acc 0.{n}')\n"
    trial = call(tmp_path, [sys.executable, "-c", "{program}"], args={"program": program}, metrics=PATTERN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, before[1]))
    try:
        _, end = run(trial, ProcessGuard())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (end.status, end.metrics["val_accuracy"]) == (TrialStatus.FINISHED, 0.8)
    assert "its output is not kept from here on: " in caplog.text


def test_a_program_that_prints_faster_than_its_output_can_be_searched_ends_at_its_timeout(tmp_path, guard):
    """A pattern with several `.*` takes milliseconds for a long line that has many numbers."""
    metrics = Metrics(pattern=".*step.*of.*acc=(?P<acc>{number})")
    line = "step 1 of 9, " * 20
    end = end_of(call(tmp_path, f"yes '{line}'", metrics=metrics, timeout_seconds=0.3, grace_seconds=0.0), guard)
    assert (end.status, end.error) == (TrialStatus.FAILED, "it exceeded timeout_minutes (0.005)")


def test_output_that_is_not_read_waits_in_the_pipe_and_not_in_memory(tmp_path):
    reader = OutputReader(tmp_path / "output-1.log")
    taking = threading.Thread(target=reader.take, args=(b"x\n" * 5000,), daemon=True)
    taking.start()
    wait_until(reader.lines.full, what="the queue is full")
    assert taking.is_alive()
    assert reader.lines.qsize() == QUEUED_LINES
    reader.stop_reading()
    taking.join(PATIENCE_SECONDS)
    assert not taking.is_alive()
    assert (tmp_path / "output-1.log").stat().st_size == 10_000


def test_a_program_that_waits_for_its_output_to_be_read_can_be_ended(tmp_path, guard):
    line = "seq -f 'epoch %.0f: acc 0.5' 100000000"
    running = call(tmp_path, line, metrics=PATTERN).run(guard)
    assert running.send(None).row["epoch"] == 1
    running.close()
    assert not any(each.info["cwd"] == str(tmp_path) for each in psutil.process_iter(["cwd"]))


def test_a_program_that_ended_in_time_has_not_exceeded_its_timeout_while_its_output_is_searched(
    tmp_path, guard, monkeypatch
):
    started = []

    class Guard:
        def start(self, *arguments, **options):
            started.append(guard.start(*arguments, **options))
            return started[-1]

    class Slow(MetricsCollector):
        def add_line(self, line):
            started[0].wait(PATIENCE_SECONDS)
            later = SimpleNamespace(monotonic=lambda: time.monotonic() + 1e6, time=time.time)
            monkeypatch.setattr(runner, "time", later)
            super().add_line(line)

    line = "for n in $(seq 300); do echo epoch $n: acc 0.$n; done"
    made = call(tmp_path, line, metrics=PATTERN, timeout_seconds=3600.0, collector=Slow)
    rows, end = run(made, Guard())
    assert (end.status, end.error, len(rows)) == (TrialStatus.FINISHED, "", 300)


def test_the_time_in_which_a_job_is_suspended_counts_neither_for_the_timeout_nor_for_the_walltime(
    tmp_path, guard, monkeypatch
):
    hours, read_lines = [], OutputReader.read_lines
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() + sum(hours), time=lambda: time.time() + sum(hours), sleep=time.sleep
    )
    monkeypatch.setattr(runner, "time", clock)

    def read_after_a_pause(self, seconds):
        hours.extend([3600.0] * (not hours))
        return read_lines(self, seconds)

    monkeypatch.setattr(OutputReader, "read_lines", read_after_a_pause)
    limits = {"timeout_seconds": 1800.0, "deadline": time.time() + 1800}
    end = end_of(call(tmp_path, "sleep 1; echo epoch 1: acc 0.5", metrics=PATTERN, **limits), guard)
    assert (end.status, end.error) == (TrialStatus.FINISHED, "")


TORN = """
import os, sys, time
with open("m.csv", "w") as file:
    file.write("epoch,acc\\n1,0.5\\n2,0.8")
if sys.argv[1] == "wait":
    time.sleep(600)
os._exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(("how", "epochs"), [("0", [1, 2]), ("1", [1]), ("137", [1]), ("wait", [1])])
def test_a_row_that_a_program_could_not_complete_does_not_count(tmp_path, guard, how, epochs):
    """Its number may be cut off: 0.8 of 0.85, say."""
    (tmp_path / "torn.py").write_text(TORN)
    made = call(tmp_path, [sys.executable, "torn.py", how], metrics=Metrics(file="m.csv"), timeout_seconds=60.0)
    if how == "wait":
        wait = threading.Thread(target=make_request, args=(made, tmp_path / "m.csv"))
        wait.start()
    rows, end = run(made, guard)
    assert [row["epoch"] for row in rows] == epochs
    if how == "1":
        assert end.metrics == {"acc": 0.5}


def make_request(made, file):
    """Interrupt a command once its file of metrics has content."""
    wait_until(lambda: file.exists() and file.stat().st_size, what="the file of metrics")
    made.stop_request.make()


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_a_value_that_no_program_can_get_is_an_error_that_says_so(tmp_path, guard, value):
    with pytest.raises(UserError, match="cannot be started: Invalid argument"):
        end_of(call(tmp_path, ["echo", "{tag}"], args={"tag": value}), guard)


def test_a_line_that_a_killed_program_could_not_complete_does_not_count(tmp_path, guard):
    line = "printf 'epoch 1: acc 0.5\nepoch 2: acc 0.2'"  # of 0.25
    for end, epochs in (("exit 0", [1, 2]), ("kill -KILL $$", [1])):
        rows, _ = run(call(tmp_path, f"{line}; {end}", metrics=PATTERN), guard)
        assert [row["epoch"] for row in rows] == epochs


def test_an_epoch_that_is_reported_in_the_grace_period_counts(tmp_path, guard):
    line = "trap 'echo epoch 3: acc 0.3; exit 1' TERM; echo 'epoch 1: acc 0.1\nepoch 2: acc 0.2'; "
    made = call(tmp_path, line + "while true; do sleep 0.05; done", metrics=PATTERN)
    running = made.run(guard)
    assert next(running).row["epoch"] == 1
    made.stop_request.make()
    rows, end = drive_on(running)
    assert [row["epoch"] for row in rows] == [2, 3]
    assert (end.status, end.error) == (TrialStatus.INTERRUPTED, "it was interrupted")


def test_a_program_that_should_have_ended_has_the_exit_code_of_its_tasks(tmp_path, guard, caplog):
    """srun whose slurmstepd was killed waits for its tasks until the end of the walltime."""
    end = end_of(call(tmp_path, "echo kept; exec sleep 3600", overdue_code=iter([None, 3]).__next__), guard)
    assert (end.status, end.error) == (TrialStatus.FAILED, "exit code 3: kept")
    assert "terminating srun" in caplog.text
