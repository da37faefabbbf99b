"""The resume drill on small programs that resume, start over, or go on otherwise."""

import os
import re
import subprocess
import sys

import pytest
from project import ROOT
from trainyard.checks import resume_drill
from trainyard.checks.resume_drill import Launch, compare, describe_start, list_files, site_grace_seconds
from trainyard.config.load import check_config
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.journal import Ended

# Gradient descent with momentum on (w - 3)^2, whose logarithm is the loss, with a learning rate that falls. When it is
# to be interrupted, it waits for that in its seventh epoch, so that no time decides.
PROGRAM = """
import argparse, json, math, os, pathlib, random, signal, time

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=pathlib.Path)
parser.add_argument("--resume", type=pathlib.Path)
parser.add_argument("--kind")
options = parser.parse_args()
kind = options.kind
if kind == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
noise = random.Random(os.urandom(8) if kind == "noisy" else 0)
own = max(options.out.glob("*.pt"), default=None)
resume = own if kind == "finds its own" and own else options.resume
state = {"epoch": 0, "w": 10.0, "velocity": 0.0, "lr": 0.02}
if resume and kind != "ignores":
    saved = json.loads(resume.read_text())
    state = {**state, "epoch": saved["epoch"], "w": saved["w"]} if kind == "forgets the schedule" else saved
for epoch in range(state["epoch"] + 1, 13):
    if epoch == 7 and "interrupted" in str(options.out) and not (options.out / "waited").exists():
        (options.out / "waited").touch()
        time.sleep(3600)
    for step in range(5):
        gradient = 2 * (state["w"] - 3) + noise.gauss(0, 0.3 if kind in ("noisy", "shuffles again") else 0)
        state["velocity"] = 0.5 * state["velocity"] + gradient
        state["w"] -= state["lr"] * state["velocity"]
    state["epoch"], state["lr"] = epoch, state["lr"] * 0.8
    if kind != "saves nothing":
        path = (pathlib.Path() if kind == "saves elsewhere" else options.out) / f"{epoch:02}.pt"
        path.with_suffix(".new").write_text(json.dumps(state))
        os.replace(path.with_suffix(".new"), path)
    number = "" if kind == "finds its own" else f"epoch {epoch} "
    print(f"{number}loss {math.log((state['w'] - 3) ** 2):.6f} at {time.time()}", flush=True)
"""
FUNCTION = """
import time

def run(config, context):
    done = max((int(path.name) for path in context.checkpoint_dir.iterdir()), default=0)
    for epoch in range(done + 1, 9):
        while epoch == 6 and context.attempt == 1 and "interrupted" in str(context.trial_dir):
            if context.time_is_up:
                context.interrupt()
            time.sleep(0.05)
        if config["saves"]:
            (context.checkpoint_dir / str(epoch)).touch()  # the first one stays, however late the drill looks
        context.report(epoch=epoch, loss=1 / epoch)
"""
METRICS = {"pattern": r"epoch (?P<epoch>\d+) loss (?P<loss>{number}) at (?P<time>{number})"}
RESUMES = {"checkpoint": "*.pt", "resume": "--resume {resume_from}", "grace_seconds": 1}
AS_BEFORE = "resumes with epoch 7 after epoch 6; loss as without an interruption"
BACK = "at (?P<epoch>{number}) loss (?P<loss>{number})"
# By kind of the program: further options of its sweep, and what is found.
CASES = {
    "right": (RESUMES, {"": ("ok", AS_BEFORE)}),
    "deaf": (
        RESUMES,
        {
            "": ("ok", AS_BEFORE),
            ".grace_seconds": ("warning", "did not end at its stop signal, and was killed after 1 s"),
        },
    ),
    "noisy": (RESUMES, {"": ("ok", "resumes with epoch 7 .* (two undisturbed runs do|less than it varies)")}),
    "shuffles again": (RESUMES, {"": ("ok", "loss differs by .*, less than it varies")}),
    "forgets the schedule": (RESUMES, {"": ("FAILS", "loss then differs by .* from .*, and two .* not at all")}),
    "ignores": (RESUMES, {"": ("FAILS", "repeats all epochs .* gets 06.pt .*: check `resume: .* loads the epoch")}),
    "saves nothing": ({}, {"": ("warning", "starts over .* have it save a checkpoint to {trial_dir}")}),
    "finds its own": ({"metrics": {"pattern": "loss (?P<loss>{number})"}}, {"": ("ok", AS_BEFORE)}),
    "saves elsewhere": (
        RESUMES,
        {
            "": ("FAILS", "starts over .* it saves 01.pt, outside of its folder"),
            ".workdir": ("warning", "each run writes 01.pt, 02.pt, 03.pt and 9 more in .* use {trial_dir}"),
        },
    ),
}


def sweep(kind, **options):
    program = ["python", "train.py", "--kind", kind, "--out", "{trial_dir}"]
    return {"command": program, "metrics": METRICS, **options}


@pytest.fixture
def drill(project):
    """Runs the drill of sweeps by name; returns their findings by place, and the exit code."""

    def run(sweeps, *minutes):
        project.write({"sweeps": sweeps})
        done = project.run(*project.script("check", "--drill", *minutes), check=False)
        found = re.findall(r"^(sweeps\S+) +(ok|warning|FAILS|unknown) +(.*(?:\n {10}.*)*)", done.stdout, re.M)
        print(done.stdout, done.stderr)
        return {place: (verdict, " ".join(text.split())) for place, verdict, text in found}, done.returncode

    (project.folder / "train.py").write_text(PROGRAM)
    (project.folder / "mine.py").write_text(FUNCTION)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_a_program_is_told_whether_it_resumes_and_what_helps(drill, kind):
    options, wanted = CASES[kind]
    found, code = drill({"own": sweep(kind, **options)})
    found.pop("sweeps.own.checkpoint", None)  # on a busy machine, a short save may be seen
    assert found.keys() == {f"sweeps.own{place}" for place in wanted}
    for place, (verdict, pattern) in wanted.items():
        assert found[f"sweeps.own{place}"][0] == verdict
        assert re.search(pattern, found[f"sweeps.own{place}"][1])
    assert code == any(verdict == "FAILS" for verdict, _ in wanted.values())


@pytest.mark.slow
def test_a_program_that_saves_at_another_signal_only_is_told_the_line_to_add(drill, project):
    """As Lightning does on Slurm: SIGTERM is ignored, and the only checkpoint is that of SIGUSR1."""
    handlers = "signal.signal(signal.SIGUSR1, lambda *_: save())\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    save = "def save():\n    (options.out / 'hpc.pt').write_text(json.dumps(state))\n    os._exit(0)\n"
    program = PROGRAM.replace("for epoch in", f"{save}{handlers}for epoch in", 1)
    (project.folder / "train.py").write_text(program)
    found, code = drill({"own": sweep("saves nothing", **RESUMES)})
    assert found["sweeps.own"][0] == "FAILS"
    assert "-> add `stop_signal: USR1`" in found["sweeps.own"][1]
    assert code == 1
    found, code = drill({"own": sweep("saves nothing", **RESUMES, stop_signal="USR1")})
    assert found == {"sweeps.own": ("ok", AS_BEFORE)}
    assert code == 0


# Its fourth save takes until it is killed.
SLOW_SAVE = """
        if epoch == 4 and "/killed/" in str(options.out) and not (options.out / "slow").exists():
            (options.out / "slow").touch()
            with open(path if kind == "in place" else path.with_suffix(".new"), "w") as file:
                while True:
                    print("[", end="", file=file, flush=True)
                    time.sleep(0.002)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "verdict", "message"),
    [
        ("in place", "warning", "killed while it wrote 04.pt, it fails on 04.pt: exit code 1: json.*; it then "),
        ("renames", "ok", "killed while it wrote 04.new, it then "),
    ],
)
def test_a_program_is_killed_while_it_saves(drill, project, kind, verdict, message):
    save = "        path.with_suffix("
    (project.folder / "train.py").write_text(PROGRAM.replace(save, f"{SLOW_SAVE}{save}", 1))
    found, _ = drill({"own": sweep(kind, **RESUMES)})
    assert found["sweeps.own"] == ("ok", AS_BEFORE)
    told, text = found["sweeps.own.checkpoint"]
    assert told == verdict
    assert re.match(f"{message}resumes from 03.pt", text)
    assert ("os.replace" in text) == (verdict == "warning")


@pytest.mark.slow
def test_functions_are_drilled_too(drill):
    function = {"function": "mine:run", "grid": {"saves": [True]}}
    found, code = drill({"saves": function, "forgets": {**function, "grid": {"saves": [False]}}})
    assert found["sweeps.saves"] == ("ok", AS_BEFORE.replace("6", "5").replace("7", "6"))
    assert found["sweeps.forgets"][0] == "FAILS"
    assert "context.checkpoint_dir" in found["sweeps.forgets"][1]
    assert code == 1


def test_a_program_that_cannot_be_judged_is_told_why(drill):
    few = {"command": "for i in 1 2; do echo loss $i; done", "metrics": {"pattern": "loss (?P<loss>{number})"}}
    back = {"command": "for i in 1 2 1 2; do echo at $i loss $i; done", "metrics": {"pattern": BACK}}
    found, code = drill({"fails": {"command": "echo no; exit 3"}, "few": few, "back": back})
    assert found["sweeps.fails"][0] == "FAILS"
    assert "fails without an interruption: exit code 3: no" in found["sweeps.fails"][1]
    assert found["sweeps.few"][0] == "unknown"
    assert "it reports 2 rows of metrics in all" in found["sweeps.few"][1]
    assert found["sweeps.back"][0] == "unknown"
    assert "its epochs go back from 2 to 1 -> let one process report, or" in found["sweeps.back"][1]
    assert code == 1


@pytest.mark.parametrize("metrics", [{}, {"metrics": METRICS}])
def test_a_program_that_had_no_time_to_begin_did_not_fail(drill, metrics):
    found, code = drill({"own": {"command": "train", **metrics}}, "0.00002")
    assert found["sweeps.own"][0] == "unknown"
    assert "it reported 0 rows of metrics in 0 s -> `--drill 4e-05` gives it more time" in found["sweeps.own"][1]
    assert code == 0


def test_what_trainyard_runs_itself_needs_no_drill(tmp_path):
    trained = {"dataset": "d", "trials": [{}]}
    sweeps = {"trained": trained, "fitted": {**trained, "trees": {}}}
    config = check_config({"datasets": {"d": {"source": "digits"}}, "sweeps": sweeps})
    texts = [finding.message for finding in resume_drill.drill(config, tmp_path, minutes=1)]
    assert texts == [
        "Trainyard's own training loop continues after the step at which it was stopped",
        "a fit of trees starts again",
    ]


def test_a_program_gets_no_more_time_to_end_than_slurm_gives_a_job(slurm):
    slurm.prints("scontrol", "KillWait                = 7 sec\nMaxJobCount             = 10000\n")
    assert site_grace_seconds() == 7


def test_without_slurm_the_config_alone_says_how_much_time_there_is(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert site_grace_seconds() == float("inf")


DECLARED = {"checkpoint": "*.pt"}
FINISHED = Launch(end=Ended(trial="t", attempt=1, status=TrialStatus.FINISHED))
CUT = Launch(end=Ended(trial="t", attempt=1, status=TrialStatus.INTERRUPTED), was_stopped=True)


@pytest.mark.parametrize(
    ("options", "whole", "files", "verdict", "remedy"),
    [
        ({}, FINISHED, ([], []), "warns", "have it save a checkpoint to {trial_dir}; give `checkpoint` and `resume:"),
        ({}, FINISHED, (["a/b.pth", "log.txt"], []), "warns", "it saves a/b.pth: give `checkpoint: '**/*.pth'` and"),
        ({}, FINISHED, ([], ["out/ckpt.pt"]), "warns", "it saves out/ckpt.pt, outside of its folder: have it save to"),
        (DECLARED, FINISHED, (["log.txt"], []), "fails", "matched `checkpoint: *.pt`; it has log.txt"),
        (DECLARED, FINISHED, (["log.txt"], ["x.pt"]), "fails", "it saves x.pt, outside of its folder"),
        (DECLARED, CUT, (["log.txt"], []), "unknown", "or give the drill more time"),  # it may save one later
    ],
)
def test_what_a_program_that_starts_over_has_saved_decides_what_helps(options, whole, files, verdict, remedy):
    own = check_config({"sweeps": {"own": {"command": "train", **options}}}).sweeps["own"]
    found = describe_start(own, whole, CUT, CUT, saved=files[0], elsewhere=files[1])
    assert found[0] == verdict
    assert remedy in found[2]


@pytest.mark.parametrize(
    ("written", "times", "verdict"),
    [
        (10.1, [10.0, 20.0, 30.0], "warns"),
        (19.9, [10.0, 20.0, 30.0], "fails"),
        (9.9, [10.0, 10.2, 10.4], "fails"),  # rows that were recorded at once, after all epochs
        (9.9, [10.0], "fails"),
    ],
)
def test_a_program_that_saves_only_its_best_epoch_may_repeat_the_others(written, times, verdict):
    own = check_config({"sweeps": {"own": {"command": "train", **DECLARED}}}).sweeps["own"]
    before = Launch(times=times)
    after = Launch(checkpoint="best.pt", checkpoint_time=written)
    assert describe_start(own, FINISHED, before, after, saved=["best.pt"], elsewhere=[])[0] == verdict


# ---- curves


def curve(*values, first=1, name="loss"):
    return [{"epoch": epoch, name: value} for epoch, value in enumerate(values, first)]


WHOLE = curve(2.0, 1.5, 1.2, 1.0, 0.9, 0.85, 0.82, 0.8)


@pytest.mark.parametrize(
    ("rows", "is_near"),
    [
        (WHOLE[4:], True),
        (curve(0.95, 0.86, 0.81, 0.81, first=5), True),
        (curve(3.0, 0.85, 0.82, 0.8, first=5), True),  # the epoch in which it resumed was cut
        (curve(1.2, 1.2, 1.15, 1.1, first=5), False),
        (curve(2.0, 1.5, 1.2, 1.0, first=5), False),
    ],
)
def test_a_difference_counts_if_it_is_larger_than_what_a_curve_varies(rows, is_near):
    (found,) = compare(WHOLE, rows)
    assert (found.typical <= found.allowed) == is_near


def test_epochs_between_those_of_the_whole_run_are_interpolated():
    (found,) = compare([{"epoch": 0, "loss": 4.0}, {"epoch": 10, "loss": 2.0}], [{"epoch": 5, "loss": 3.0}])
    assert found.typical == 0


@pytest.mark.parametrize("name", ["images_per_second", "step_ms", "epoch_time", "gpu_mem", "step", "seconds"])
def test_speeds_and_counters_are_not_compared(name):
    assert compare(curve(1, 2, 3, name=name), curve(7, 8, first=2, name=name)) == []


def test_the_learning_rate_is_compared():
    (found,) = compare(curve(0.1, 0.05, 0.025, 0.0125, name="lr"), curve(0.1, 0.05, first=3, name="lr"))
    assert found.share > 0.15


def test_hidden_files_environments_and_what_trainyard_writes_are_no_files_of_a_program(tmp_path):
    own = ("results/drill/a/b", "results/sweeps/other/sessions/c.jsonl", "results/scaling/other/d")
    hidden = (".git/c", "pymp-1/c", "env/pyvenv.cfg", "env/d", "__pycache__/f")
    for path in ("a.txt", "logs/b.txt", "results/e", *own, *hidden):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert sorted(list_files(tmp_path, results=tmp_path / "results")) == ["a.txt", "logs/b.txt", "results/e"]


def test_the_file_with_the_output_of_the_drill_is_none_of_the_program(tmp_path):
    code = "from pathlib import Path; from trainyard.checks.resume_drill import list_files; print(*list_files(Path()))"
    (tmp_path / "model.pt").touch()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    with (tmp_path / "drill.log").open("w") as output:
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, stdout=output, check=True)
    assert (tmp_path / "drill.log").read_text() == "model.pt\n"
