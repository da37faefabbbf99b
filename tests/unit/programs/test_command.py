"""A command as a trial: heard while it runs, ended with all that it started, its GPU the only one it sees."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
from slurm_cluster.waiting import wait_until
from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import Metrics, UserProgram
from trainyard.programs.command import CommandTrial, failed_by_itself, find_checkpoint, run_command
from trainyard.programs.process import ProcessGuard
from trainyard.programs.trial_messages import EpochReported
from yard import ROOT

PATTERN = Metrics(pattern=r"epoch (?P<epoch>\d+): acc (?P<val_accuracy>\S+)")


@pytest.fixture(scope="module")
def guard():
    return ProcessGuard()


def call(folder, command, *, args=None, resume_from="", **fields):
    words = {
        "trial": "t1",
        "attempt": 1,
        "trial_dir": str(folder),
        "cpus": 1,
        "resume_from": resume_from,
        "dataset": "",
    }
    given = {"metrics": None, **fields}
    return CommandTrial(
        UserProgram(command=command, args=args or {}), words, folder, str(folder), folder / "output-1.log", **given
    )


def run(made, guard, *, stop_at=None):
    """The rows that a command reports, and how it ends; it is stopped at an epoch."""
    rows, answer = [], None
    running = run_command(made, guard)
    while True:
        try:
            rows.append(running.send(answer).row)
        except StopIteration as end:
            return rows, end.value
        answer = rows[-1]["epoch"] == stop_at


def end_of(made, guard, **options):
    """How a command ends."""
    return run(made, guard, **options)[1]


def test_values_reach_the_program_whole_whatever_they_hold(tmp_path, guard):
    args = {"text": "it's $HOME; `ls` *", "list": [1, 2], "yes": True, "deep": {"number": 1e-4}}
    line = "printf '%s|' {text} {list} {yes} {deep.number} ${HOME:+home}"
    end = end_of(call(tmp_path, line, args=args), guard)
    assert end.program.tail == "it's $HOME; `ls` *|[1, 2]|true|0.0001|home|"
    end = end_of(call(tmp_path, ["printf", "%s|", "{text}", "a{yes}b"], args=args), guard)
    assert end.program.tail == "it's $HOME; `ls` *|atrueb|"


def test_epochs_are_told_while_it_runs(tmp_path, guard):
    line = "echo 'epoch 1: acc 0.5\nepoch 2: acc 0.6'; while [ ! -e go ]; do sleep 0.05; done; echo 'epoch 3: acc 0.75'"
    running = run_command(call(tmp_path, line, metrics=PATTERN), guard)
    assert next(running) == EpochReported({"epoch": 1, "val_accuracy": 0.5})
    assert running.send(False).row["epoch"] == 2
    (tmp_path / "go").touch()
    assert running.send(False).row["epoch"] == 3
    with pytest.raises(StopIteration) as end:
        running.send(False)
    assert end.value.value.status == TrialStatus.FINISHED
    assert end.value.value.metrics == {"val_accuracy": 0.75}
    assert end.value.value.program.exit_code == 0
    assert (tmp_path / "output-1.log").read_text() == "epoch 1: acc 0.5\nepoch 2: acc 0.6\nepoch 3: acc 0.75\n"


def test_one_that_has_ended_by_itself_is_not_ended_early_by_its_last_row(tmp_path, guard):
    end = end_of(call(tmp_path, "echo 'epoch 1: acc 0.5'", metrics=PATTERN), guard, stop_at=1)
    assert end.status == TrialStatus.FINISHED
    assert end.metrics == {"val_accuracy": 0.5}
    end = end_of(call(tmp_path, "echo 'epoch 1: acc 0.5'; exit 3", metrics=PATTERN), guard, stop_at=1)
    assert end.status == TrialStatus.FAILED
    assert end.error == "exit code 3: epoch 1: acc 0.5"


STEPS = """
for step in range(2000):
    print(f"loss={step}", flush=True)
    if step == 500:
        print("val_accuracy=0.5", flush=True)
"""


def test_of_steps_that_come_fast_the_last_value_of_each_metric_is_its_result(tmp_path, guard):
    (tmp_path / "steps.py").write_text(STEPS)
    metrics = Metrics(pattern=r"loss=(?P<loss>{number})|val_accuracy=(?P<val_accuracy>{number})")
    rows, end = run(call(tmp_path, [sys.executable, "steps.py"], metrics=metrics), guard)
    assert end.metrics == {"loss": 1999, "val_accuracy": 0.5}
    assert any("val_accuracy" in row for row in rows)


# What goes wrong, and how that is told.
FAILURES = {
    "echo reading; echo 'no such file: x' >&2; exit 3": "exit code 3: no such file: x",
    "kill -SEGV $$": "killed by SIGSEGV: no output",
    "./nowhere": "exit code 127: /bin/sh: 1: ./nowhere: not found",
    "sleep 60": "it exceeded timeout_minutes (0.01)",
}


@pytest.mark.parametrize("line", FAILURES)
def test_what_goes_wrong_is_told_in_a_line(tmp_path, guard, line):
    limit = 0.6 if line.startswith("sleep") else None
    end = end_of(call(tmp_path, line, metrics=PATTERN, timeout_seconds=limit), guard)
    assert end.status == TrialStatus.FAILED
    assert end.error.startswith(FAILURES[line].partition("/bin/sh")[0])


SAYS = """
import sys
out = sys.stdout.buffer
out.write(b"." * 2**24 + b"\\n")
out.write(b"\\x1b[32mepoch\\x1b[0m 1: acc \\x1b[1m0.5\\x1b[0m\\n")
out.write(b"epoch 2: acc 1.2e-05\\r\\n")
for byte in "naïve epoch 3: acc 92.5%".encode():
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


def test_one_that_ended_well_and_told_nothing_has_not_failed(tmp_path, guard):
    for line, metrics, why in (
        ("echo 'epoch 1: acc bad'", PATTERN, r"none were found in its output by epoch \(\?P<epoch>"),
        ("true", Metrics(file="m.jsonl"), "none were found in m.jsonl"),
        ("echo '{]' > m.jsonl", Metrics(file="m.jsonl"), "m.jsonl cannot be read as jsonl"),
    ):
        end = end_of(call(tmp_path, line, metrics=metrics), guard)
        assert end.status == TrialStatus.UNREADABLE
        assert re.search(why, end.error)
        assert end.program.heard == metrics.digest
    end = end_of(call(tmp_path, "echo '{]' > m.jsonl; exit 3", metrics=Metrics(file="m.jsonl")), guard)
    assert end.status == TrialStatus.FAILED
    assert end.error.startswith("exit code 3")


def test_what_it_says_is_heard_whatever_it_is(tmp_path, guard):
    program = tmp_path / "says.py"
    program.write_text(SAYS)
    metrics = Metrics(pattern=r"epoch (?P<epoch>\d+): acc (?P<val_accuracy>{number})")
    rows, end = run(call(tmp_path, [sys.executable, "says.py"], metrics=metrics), guard)
    assert rows == [
        {"epoch": 1, "val_accuracy": 0.5}, {"epoch": 2, "val_accuracy": 1.2e-05}, {"epoch": 3, "val_accuracy": 0.925},
    ]  # fmt: skip
    assert end.program.tail.endswith("naïve epoch 3: acc 92.5%")
    assert (tmp_path / "output-1.log").stat().st_size > 16 * 2**20, "all of it is kept"


def test_a_progress_bar_tells_an_epoch_once(tmp_path, guard):
    program = tmp_path / "bars.py"
    program.write_text(BARS)
    metrics = Metrics(pattern=r"epoch (?P<epoch>\d+): .* loss=(?P<loss>{number})")
    rows, end = run(call(tmp_path, [sys.executable, "bars.py"], metrics=metrics), guard)
    assert rows == [{"epoch": epoch, "loss": 0} for epoch in (1, 2, 3)]
    assert end.metrics == {"loss": 0}


def test_a_program_that_is_not_there_is_named(tmp_path, guard):
    with pytest.raises(Exception, match="nowhere cannot be started: No such file"):
        run(call(tmp_path, ["nowhere"]), guard)


def test_a_folder_on_path_that_cannot_be_read_does_not_hide_that_a_program_is_nowhere(tmp_path, guard, monkeypatch):
    """The system would name the folder's error: permission denied, or of this link, too many levels."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "closed").mkdir(mode=0)
    monkeypatch.setenv("PATH", f"{tmp_path}/loop:{tmp_path}/closed", prepend=":")
    with pytest.raises(Exception, match="nowhere cannot be started: No such file"):
        run(call(tmp_path, ["nowhere"]), guard)
    (tmp_path / "text").touch(mode=0o644)
    with pytest.raises(Exception, match="text cannot be started: Permission denied"):
        run(call(tmp_path, [f"{tmp_path}/text"]), guard)


def test_told_to_end_it_has_time_to_keep_where_it_is(tmp_path, guard):
    line = "trap 'touch kept; exit 1' TERM; echo 'epoch 1: acc 0.1\nepoch 2: acc 0.2'; while true; do sleep 0.05; done"
    end = end_of(call(tmp_path, line, metrics=PATTERN), guard, stop_at=1)
    assert end.status == TrialStatus.STOPPED
    assert end.metrics == {"val_accuracy": 0.2}
    assert (tmp_path / "kept").exists()
    end = end_of(call(tmp_path, line, metrics=PATTERN, deadline=time.time() + 0.5), guard)
    assert end.status == TrialStatus.INTERRUPTED
    assert end.error == "ended before the end of the walltime"


def sleeping(folder):
    """The processes that sleep in a folder: other runs of these tests may go on beside this one."""
    processes = psutil.process_iter(["cmdline", "cwd"])
    return [each for each in processes if each.info["cwd"] == str(folder) and each.info["cmdline"][:1] == ["sleep"]]


def test_nothing_that_it_started_outlives_it(tmp_path, guard):
    line = "setsid sleep 9301 & sleep 9302 & echo $$; sleep 0.3"
    run(call(tmp_path, line + "; sleep 60", timeout_seconds=1.0), guard)
    run(call(tmp_path, "sleep 9303 & true"), guard)
    assert sleeping(tmp_path) == []


def test_killed_with_what_runs_it_a_command_ends_too(tmp_path):
    code = f"""
        import sys, time
        sys.path[:0] = [{str(ROOT / "scripts")!r}, {str(ROOT / "tests/unit/programs")!r}, {str(ROOT / "tests")!r},
                        {str(ROOT / "tools")!r}]
        from pathlib import Path
        from test_command import call, run
        from trainyard.programs.process import ProcessGuard
        run(call(Path({str(tmp_path)!r}), "sleep 9304 & sleep 9305"), ProcessGuard())
    """
    runner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stderr=subprocess.PIPE)
    wait_until(lambda: len(sleeping(tmp_path)) == 2, what="both sleep commands", while_running=runner)
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    wait_until(lambda: not sleeping(tmp_path), what="it has ended")


def test_it_sees_its_gpu_and_nothing_of_the_jobs_ray_and_steps(tmp_path, guard, monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "RAY_ADDRESS", "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_NTASKS"):
        monkeypatch.setenv(name, "7")
    tail = end_of(call(tmp_path, "env | grep -E 'CUDA|RAY|SLURM|TRAINY'"), guard).program.tail
    seen = {line.partition("=")[0] for line in tail.splitlines()}
    ours = {"TRAINYARD_TRIAL", "TRAINYARD_TRIAL_DIR", "TRAINYARD_TREE"}
    assert seen == {"CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", *ours}


def test_it_goes_on_from_what_an_earlier_attempt_has_left(tmp_path, guard):
    for age, name in ((5, "a.pt"), (1, "b.pt"), (9, "c.pt")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    left = tmp_path / find_checkpoint(tmp_path, "*.pt").name
    assert left == tmp_path / "b.pt"
    made = call(tmp_path, "echo run", resume_from=str(left), resume="--resume {resume_from}")
    assert end_of(made, guard).program.tail == f"run --resume {left}"
    made = call(tmp_path, ["echo", "run"], resume_from=str(left), resume="--resume {resume_from}")
    assert end_of(made, guard).program.tail == f"run --resume {left}"
    assert find_checkpoint(tmp_path, "*.ckpt") is None


RESUMED = {  # commands, and what they say at first and when they resume from a file whose name has a space
    "echo run {resume} | tee out": ("run", "run --resume a b.pt"),
    "echo run \\\n  {resume} \\\n  last\n": ("run last", "run --resume a b.pt last"),
    "echo run\n": ("run", "run --resume a b.pt"),
    "resume=x; echo ${resume} {x} {resume}": ("x $", "x $ --resume a b.pt"),
    ("printf", "<%s>", "run", "{resume}", "last"): ("<run><last>", "<run><--resume><a b.pt><last>"),
    ("printf", "<%s>", "run"): ("<run>", "<run><--resume><a b.pt>"),
}


@pytest.mark.parametrize("command", RESUMED)
def test_the_option_to_resume_stands_in_its_place(tmp_path, guard, command):
    for resumes, expected in zip((None, "--resume {resume_from}"), RESUMED[command], strict=True):
        line = list(command) if isinstance(command, tuple) else command
        made = call(tmp_path, line, args={"x": "$"}, resume_from="a b.pt", resume=resumes)
        assert end_of(made, guard).program.tail.splitlines()[0] == expected


def test_an_argument_called_resume_keeps_its_place(tmp_path, guard):
    made = call(tmp_path, "echo {resume}", args={"resume": "auto"}, resume_from="a.pt", resume="--from {resume_from}")
    assert end_of(made, guard).program.tail == "auto --from a.pt"


def test_what_an_attempt_has_failed_to_go_on_from_is_left_out(tmp_path):
    """The newest, the one before it, none; until an attempt leaves a new one, also under an old name."""

    def write(name, age, text):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))

    def resumable(*bad):
        kept = find_checkpoint(tmp_path, "*.pt", bad=bad)
        return kept and kept.name

    for number in (1, 2, 3):
        write(f"{number}.pt", 10 - number, "state")
    third = find_checkpoint(tmp_path, "*.pt")
    assert third.name == "3.pt"
    second = find_checkpoint(tmp_path, "*.pt", bad=[third])
    assert second.name == "2.pt"
    assert resumable(third, second) is None
    write("3.pt", 0, "another state")
    assert resumable(third, second) == "3.pt"


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("exit 3", True),
        ("kill -SEGV $$", True),
        ("sh -c 'kill -SEGV $$'; exit $?", True),
        ("kill -KILL $$", False),
        ("kill -TERM $$", False),
        ("sh -c 'kill -KILL $$'; exit $?", False),
        ("sleep 60", False),
    ],
)
def test_a_checkpoint_is_to_blame_only_where_the_program_itself_has_failed(tmp_path, guard, line, bad):
    limit = 0.2 if line.startswith("sleep") else None
    end = end_of(call(tmp_path, line, timeout_seconds=limit), guard)
    assert failed_by_itself(end.error) == bad


FILTER = 'while IFS= read -r line; do sleep 0.01; echo "[now] $line"; done'
BEHIND = {
    "the end of a filter": f'exec > >({FILTER}) 2>&1; for i in 1 2 3 4 5; do echo "epoch $i: acc 0.$i"; done',
    "a file, too": 'exec > >(tee all.log) 2>&1; for i in 1 2 3 4 5; do echo "epoch $i: acc 0.$i"; done',
}


@pytest.mark.parametrize("line", BEHIND.values(), ids=BEHIND)
def test_what_passes_through_a_filter_is_heard_to_its_end(tmp_path, guard, line):
    end = end_of(call(tmp_path, ["bash", "-c", line], metrics=PATTERN), guard)
    assert end.metrics == {"val_accuracy": 0.5}
    assert end.program.tail.endswith("epoch 5: acc 0.5")
