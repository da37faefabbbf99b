"""The summary at the end of a run, and the command lines in it."""

import shlex
import subprocess
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from project import ROOT
from sweep_journals import killed_session, record_attempt, session_of
from trainyard.cli.command_line import INTERRUPTED
from trainyard.cli.job_resources import SweepJobs
from trainyard.cli.profile import Profile
from trainyard.cli.run_summary import JobFailure, RunJob, RunSummary, call_again, call_with_config, read_jobs
from trainyard.cli.workflow import Workflow
from trainyard.cluster import host
from trainyard.config.load import check_config, config_copy
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.history import read_state
from trainyard.planning.journal import SessionStarted
from trainyard.planning.receipts import is_outdated, record, table_terms
from trainyard.utils.files import write_json
from trainyard.utils.text import count_of
from trainyard.utils.typed_commands import installed_program

CONFIG = check_config(
    {
        "datasets": {"d": {"source": "digits"}},
        "sweeps": {
            "own": {"command": "train --lr {lr} > {trial_dir}/log", "grid": {"lr": [0.1, 0.2, 0.3]}},
            "other": {"command": "train --lr {lr}", "grid": {"lr": [1]}},
            "loop": {"dataset": "d", "grid": {"lr": [0.1]}},
        },
        "scaling": {"width": {"dataset": "d", "scales": ["1x1", "1x2"]}},
    }
)
ARGV = ("snakemake", "--configfile", "my.yaml", "--profile", "profiles/local")


def finish(results, sweep, *metrics, failed=0):
    with session_of(results / f"sweeps/{sweep}") as journal:
        trials = iter(read_state(CONFIG.sweeps[sweep], sweep, results).trials)
        ends = [{"status": TrialStatus.FINISHED, "metrics": each} for each in metrics] + [
            {"status": TrialStatus.FAILED, "error": "ValueError: no", "log": "a.txt"}
        ] * failed
        for trial, end in zip(trials, ends, strict=False):
            folder = results / f"sweeps/{sweep}/trials/{trial}"
            folder.mkdir(parents=True)
            (folder / "log").touch()  # of the command, beside what Trainyard keeps
            record_attempt(journal, trial, **end)


def job(rule, name="", scale="", state="finished"):
    return RunJob(rule, name, scale, f"results/logs/{rule}/{name}.log", state)


def text_of(*arguments, **options):
    summary = RunSummary(*arguments, **options)
    summary.write_best()
    return summary.text()


def lines_of(results, jobs, *, succeeded=True, seconds=75.0):
    return text_of(CONFIG, results, jobs, seconds, succeeded, ARGV).splitlines()


def test_after_a_run_it_says_what_finished_the_answers_and_what_is_next(tmp_path, monkeypatch):
    monkeypatch.setenv("PWD", str(ROOT))
    monkeypatch.setenv("MAKELEVEL", "1")  # as in `make cluster-shell`, in which nothing else writes the report
    finish(tmp_path, "own", {"rmse": 3.0}, {"rmse": 1.0}, {"rmse": 2.0})
    for name in ("tables", "logs"):
        (tmp_path / name).mkdir()
    scaling = pd.DataFrame({"device": ["cpu"], "scale": ["1x1"], "verdict": [""]})
    (tmp_path / "scaling/width").mkdir(parents=True)
    scaling.to_csv(tmp_path / "scaling/width/scaling.csv")
    for scale in ("1x1", "1x2"):
        write_json(tmp_path / "scaling/width" / scale / "summary.json", {"sessions": [{"code": f"commit-{scale}"}]})
    _, second, third = read_state(CONFIG.sweeps["own"], "own", tmp_path).trials
    lines = lines_of(tmp_path, [
        job("plot_sweeps", "own"), job("stage", "d"), job("sweep", "own"),
        job("table_scaling", "width"), job("train", "width", "1x1"), job("train", "width", "1x2")])  # fmt: skip
    by_hand = tmp_path / "sweeps/own/trials/by-hand"
    assert lines == [
        "Trainyard: done after 1 min 15 s",
        "  finished  dataset d, sweep own, scaling width (1x1, 1x2)",
        "  answers   sweep own: 3 trials finished, 0 failed",
        f"              best rmse (lowest, guessed from its name): 1, by trial {second} with lr = 0.2",
        f"              runner-up: 2, by trial {third} with lr = 0.3; with one run each, chance may have decided",
        f"              its files: {tmp_path}/sweeps/own/trials/{second}",
        f"              by hand: mkdir -p {by_hand} && train --lr 0.2 > {by_hand}/log",
        f"              its config: {tmp_path}/sweeps/own/best.yaml",
        "            scaling width: There is no recommendation: measurements on CPUs do not show how this training "
        "scales on GPUs.",
        "              scales ran with different versions: commit-1x1 (1x1), commit-1x2 (1x2)",
        f"  results   {tmp_path}: tables/, logs/",
        f"  next      write the report: trainyard report --config {config_copy(CONFIG, tmp_path)}",
    ]


def test_after_a_run_that_failed_half_way_it_says_what_failed_and_what_is_kept(tmp_path):
    finish(tmp_path, "own", {"rmse": 3.0}, failed=1)
    log = tmp_path / "own.log"
    log.write_text("2026-11-29 01:17:20,123 started\n2026-11-29 01:17:21,456 sweep own: correct the error\n\n")
    lines = lines_of(tmp_path, [
        job("stage", "d"), job("sweep", "loop", state="left"),
        RunJob("sweep", "own", "", str(log), "failed"),
        job("train", "width", "2x1", state="failed"), job("plot_sweeps", "own", state="left")],
        succeeded=False)  # fmt: skip
    first, second, _ = read_state(CONFIG.sweeps["own"], "own", tmp_path).trials
    assert lines[:6] == [
        "Trainyard: ended before everything was done, after 1 min 15 s",
        "  finished  dataset d",
        "  not done  sweep loop",
        "  answers   sweep own: 1 trial finished, 1 failed, 1 to run",
        f"              trial {second} failed: ValueError: no; see a.txt",
        f"              so far: best rmse (lowest, guessed from its name): 3, by trial {first} with lr = 0.1",
    ]
    assert lines[-3:] == [
        f"  failed    sweep own: {log} ends with: sweep own: correct the error",
        "            scaling width 2x1: see results/logs/train/width.log",
        f"  next      correct the cause, then go on with what has finished: {shlex.join(ARGV)}",
    ]


@pytest.mark.parametrize(("numbers", "finished"), [(("", ""), 1), (("job 1", "job 2"), 0)])
def test_a_sweep_with_several_jobs_is_finished_once_its_tables_are_made(tmp_path, numbers, finished):
    """Each job that failed has a log of its own."""
    if finished:
        finish(tmp_path, "own", {"rmse": 3.0})
    first, second = numbers
    tables = job("sweep_tables", "own", state="left")
    jobs = [job("sweep_job", "own", first), job("sweep_job", "own", second, state="failed"), tables]
    lines = lines_of(tmp_path, jobs, succeeded=False)
    assert lines[1:4] == [
        "  finished  nothing new",
        "  not done  sweep own",
        f"  answers   sweep own: {count_of(finished, 'trial')} finished, 0 failed, {3 - finished} to run",
    ]
    assert lines[-2] == f"  failed    {f'sweep own {second}'.rstrip()}: see results/logs/sweep_job/own.log"
    for jobs in ([job("sweep_job", "own", first), job("sweep_job", "own", second)], [job("sweep_job", "own", first)]):
        assert lines_of(tmp_path, [*jobs, job("sweep_tables", "own")])[1] == "  finished  sweep own"


def test_a_program_that_was_killed_is_the_cause(tmp_path):
    (trial,) = read_state(CONFIG.sweeps["own"], "own", tmp_path).unfinished[:1]
    ended = subprocess.Popen(["true"])
    ended.wait()
    with killed_session(tmp_path / "sweeps/own", trial) as journal:
        journal.record(SessionStarted(process=ended.pid, node=host.node_name()))
    text = "\n".join(lines_of(tmp_path, [job("sweep", "own", state="failed")], succeeded=False))
    assert f"sweep own: its program (process {ended.pid} on {host.node_name()}) was killed (SIGKILL)" in text
    assert "SIGKILL" not in text_of(CONFIG, tmp_path, [job("sweep", "own", state="failed")], 0.0, False, ARGV), "before"
    assert "go on with what has finished: " in text


def test_an_interrupted_run_says_what_has_finished_so_far_and_that_the_same_command_goes_on(tmp_path):
    finish(tmp_path, "own", {"rmse": 3.0}, {"rmse": 1.0})
    jobs = [
        job("stage", "d"), job("sweep", "own", state="interrupted"), job("sweep", "loop", state="left"),
        job("train", "width", "1x1"), job("train", "width", "1x2", state="interrupted")]  # fmt: skip
    lines = text_of(CONFIG, tmp_path, jobs, 9.0, False, ARGV, interrupted=True).splitlines()
    first, second, _ = read_state(CONFIG.sweeps["own"], "own", tmp_path).trials
    by_hand = tmp_path / "sweeps/own/trials/by-hand"
    assert lines == [
        "Trainyard: interrupted after 9 s",
        "  finished  dataset d, scaling width (1x1)",
        "  not done  sweep own, sweep loop, scaling width (1x2)",
        "  answers   sweep own: 2 trials finished, 0 failed, 1 to run",
        f"              so far: best rmse (lowest, guessed from its name): 1, by trial {second} with lr = 0.2",
        f"              runner-up: 3, by trial {first} with lr = 0.1; with one run each, chance may have decided",
        f"              its files: {tmp_path}/sweeps/own/trials/{second}",
        f"              by hand: mkdir -p {by_hand} && train --lr 0.2 > {by_hand}/log",
        f"              its config: {tmp_path}/sweeps/own/best.yaml",
        f"  results   {tmp_path}: ",
        f"  next      go on with what has finished: {shlex.join(ARGV)}",
    ]


def test_after_a_killed_sweep_the_file_of_the_best_is_not_that_of_the_config_before(tmp_path):
    best = tmp_path / "sweeps/own/best.yaml"
    finish(tmp_path, "own", {"rmse": 3.0, "accuracy": 0.5}, {"rmse": 1.0, "accuracy": 0.2})
    first, second, _ = read_state(CONFIG.sweeps["own"], "own", tmp_path).trials
    for metric, trial in {"rmse": second, "accuracy": first, "f1": None}.items():
        own = CONFIG.sweeps["own"].model_copy(update={"metric": metric})
        config = CONFIG.model_copy(update={"sweeps": {"own": own}})
        text = text_of(config, tmp_path, [job("sweep", "own", state="failed")], 9.0, False, ARGV)
        assert (f"its config: {best}" in text) == (trial is not None)
        assert (f"by trial {trial}" in best.read_text()) == (trial is not None)


@pytest.mark.parametrize(("values", "failed"), [([3.0, 1.0], 0), ([], 1)])
def test_a_sweep_that_has_not_ended_has_tables_of_what_has_run_which_snakemake_makes_again(tmp_path, values, failed):
    finish(tmp_path, "own", *({"rmse": each} for each in values), failed=failed)
    folder, terms = tmp_path / "sweeps/own", read_state(CONFIG.sweeps["own"], "own", tmp_path).space.digest
    (folder / "jobs.csv").write_text("of an earlier run\n")
    summary = RunSummary(CONFIG, tmp_path, [job("sweep", "own", state="failed")], 9.0, False, ARGV)
    summary.write_tables()
    trials = pd.read_csv(folder / "trials.csv")
    assert list(trials["status"]) == ["finished"] * len(values) + ["failed"] * failed + ["pending"] * (
        3 - len(values) - failed
    )
    assert len(pd.read_csv(folder / "timeline.csv")) == len(values) + failed
    assert "session" in (folder / "jobs.csv").read_text()
    assert is_outdated(folder / "trials.csv", terms)
    assert is_outdated(folder / "ranking.csv", table_terms(CONFIG, "sweeps", "own"))
    assert (folder / "ranking.csv").read_text().count("\n") == 4
    record(folder / "trials.csv", terms)  # as the program of a sweep, once it has ended
    (folder / "jobs.csv").unlink()
    summary.write_tables()
    assert not (folder / "jobs.csv").exists(), "these tables are not written again"


def test_a_sweep_of_which_nothing_ran_gets_no_tables(tmp_path):
    RunSummary(CONFIG, tmp_path, [job("sweep", "own", state="failed")], 9.0, False, ARGV).write_tables()
    assert not (tmp_path / "sweeps").exists()


def test_a_sweep_that_is_done_although_trials_failed_says_how_to_run_them_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINYARD_WRITES_REPORT", "1")  # as `make run`
    finish(tmp_path, "own", {"rmse": 3.0}, {"rmse": 1.0}, failed=1)
    call = "snakemake --configfile my.yaml --profile profiles/local --forcerun"
    assert lines_of(tmp_path, [job("sweep", "own")])[-1] == (
        f"  next      run 1 failed trial of sweep own again, once the cause is corrected: {call} "
        f"{tmp_path}/sweeps/own/trials.csv"
    )


def test_the_plan_of_a_sweep_that_is_done_although_trials_failed_says_so_once(tmp_path, caplog):
    finish(tmp_path, "own", {"rmse": 3.0}, {"rmse": 1.0}, failed=1)
    own = SimpleNamespace(name="own")
    SweepJobs(CONFIG, tmp_path, Profile({}, lambda: None)).digest(own)
    assert not caplog.messages, "it has not ended"
    table = tmp_path / "sweeps/own/trials.csv"
    table.touch()
    for _ in range(2):
        SweepJobs(CONFIG, tmp_path, Profile({}, lambda: None)).digest(own)
    assert caplog.messages == [f"sweep own: 1 of 3 trials failed; `--forcerun {table}` runs them again"]
    record(table, "")
    SweepJobs(CONFIG, tmp_path, Profile({}, lambda: None)).digest(own)
    assert len(caplog.messages) == 1, "tables of a sweep that has not ended: its failed trials run again anyway"


def test_a_run_in_which_nothing_finished_has_a_summary(tmp_path):
    lines = lines_of(tmp_path, [job("sweep", "own", state="failed")], succeeded=False)
    assert lines[1] == "  finished  nothing new"
    assert "              no trial has finished" in lines


def test_the_answer_names_a_script_that_sent_all_trials_to_one_gpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\n")
    own = {"command": "python train.py {lr}", "grid": {"lr": [0.1, 0.2]}, "slots": {"gpus_per_node": 2}}
    text = text_of(check_config({"sweeps": {"own": own}}), tmp_path / "results", [job("sweep", "own")], 1.0, True, ARGV)
    assert "warning: train.py, line 2: CUDA_VISIBLE_DEVICES is overwritten with '0', so that all trials run" in text


def test_a_training_can_be_trained_again_as_a_scaling_study(tmp_path, monkeypatch):
    finish(tmp_path, "loop", {"val_accuracy": 0.9})
    best = tmp_path / "sweeps/loop/best.yaml"
    best.touch()
    monkeypatch.setenv("TRAINYARD_WRITES_REPORT", "1")  # as `make run`
    lines = lines_of(tmp_path, [job("table_sweeps", "loop")])
    call = f"snakemake --profile profiles/local --configfile {best} -- scaling"
    assert lines[-1] == (
        f"  next      train the best of sweep loop with checkpoints, as scaling study loop-best: {call}"
    )


def ended_run(*jobs, touch=False):
    """A run of Snakemake whose jobs are done."""
    dag = SimpleNamespace(needrun_jobs=lambda exclude_finished: iter(jobs), finished=lambda each: True, jobs=())
    settings, scheduler = SimpleNamespace(targets=set()), SimpleNamespace(failed=[], running=[], _user_kill=None)
    return SimpleNamespace(touch=touch, dag=dag, dag_settings=settings, scheduler=scheduler)


@pytest.mark.parametrize("touch", [False, True])
def test_touching_files_finishes_nothing(tmp_path, capsys, touch):
    """`snakemake --touch` runs no job, and takes each of them for done."""
    workflow = Workflow({"sweeps": {"s": {"function": "os:getcwd", "grid": {"x": [1]}}}}, results=tmp_path)
    done = SimpleNamespace(rule=SimpleNamespace(name="sweep"), wildcards={"name": "s"}, log=[])
    with nullcontext() if touch else pytest.raises(SystemExit):
        workflow.print_summary(ended_run(done, touch=touch), succeeded=True)
    assert ("finished  sweep s" in capsys.readouterr().out) == (not touch)


@pytest.mark.parametrize(("left", "failed"), [(1, 0), (0, 1)])
def test_a_run_with_trials_left_does_not_exit_with_0(tmp_path, capsys, left, failed):
    """Trials that have failed for good are no reason: `max_failed_fraction` allows them."""
    workflow = Workflow({"sweeps": {"own": CONFIG.sweeps["own"].model_dump(exclude_unset=True)}}, results=tmp_path)
    trials = list(read_state(CONFIG.sweeps["own"], "own", tmp_path).trials)
    finish(tmp_path, "own", *[{"rmse": 1.0}] * (len(trials) - left - failed), failed=failed)
    done = SimpleNamespace(rule=SimpleNamespace(name="table_sweeps"), wildcards={"name": "own"}, log=[])
    code = 0
    try:
        workflow.print_summary(ended_run(done, touch=False), succeeded=True)
    except SystemExit as end:
        code = end.code
    assert code == int(left > 0)
    assert ("ended before everything was done" in capsys.readouterr().out) == (left > 0)


def test_snakemake_without_a_profile_runs_an_interrupted_sweep_again(tmp_path):
    """It marks the outputs of jobs that run as incomplete, and refuses to go on if they are there."""
    run, cleaned = ended_run(), []
    sweep, plots = (SimpleNamespace(rule=SimpleNamespace(name=name)) for name in ("sweep", "plot_sweeps"))
    run.scheduler.running, run.persistence = [sweep, plots], SimpleNamespace(cleanup=cleaned.append)
    Workflow({}, results=tmp_path).print_summary(run, succeeded=False)
    assert cleaned == [sweep]


@pytest.mark.parametrize("succeeded", [False, True])
@pytest.mark.usefixtures("handlers")
def test_a_run_that_was_interrupted_exits_with_130(tmp_path, succeeded):
    workflow = Workflow({}, results=tmp_path)
    workflow._is_interrupted = True
    with pytest.raises(SystemExit) as end:
        workflow.print_summary(ended_run(), succeeded=succeeded)
    assert end.value.code == 130


def test_a_program_that_was_interrupted_has_no_cause_to_correct(tmp_path):
    """Its signal may reach it before Snakemake, or it alone."""
    log = tmp_path / "overview.log"
    run = ended_run()
    job = SimpleNamespace(rule=SimpleNamespace(name="overview"), wildcards={}, log=[log], jobid=1)
    run.dag.needrun_jobs, run.scheduler.failed = (lambda exclude_finished: iter([job])), [job]
    run.dag.finished = lambda each: False
    log.write_text(f"2026-11-29 01:17:20,123 {INTERRUPTED}\n")
    text = text_of(CONFIG, tmp_path, read_jobs(run), 9.0, False, ARGV)
    assert "  failed " not in text
    assert f"  next      go on with what has finished: {shlex.join(ARGV)}" in text
    run.scheduler.failed = []  # Snakemake starts no jobs after SIGTERM
    assert "correct the cause" not in text_of(CONFIG, tmp_path, read_jobs(run), 9.0, False, ARGV)
    run.scheduler.failed = [job]
    log.write_text("2026-11-29 01:17:20,123 no space\n")
    text = text_of(CONFIG, tmp_path, read_jobs(run), 9.0, False, ARGV)
    assert f"overview: {log} ends with: no space" in text
    assert "correct the cause, then go on" in text
    log.write_text("")  # as of a program that still imported its modules
    assert f"overview: see {log}" in text_of(CONFIG, tmp_path, read_jobs(run), 9.0, False, ARGV)
    run.scheduler._user_kill = "graceful"  # SIGTERM
    assert "  failed " not in text_of(CONFIG, tmp_path, read_jobs(run), 9.0, False, ARGV)


def test_snakemake_does_not_wait_for_its_timers_to_end(tmp_path):
    timer = threading.Timer(3600, print)
    timer.start()
    Workflow({}, results=tmp_path).print_summary(ended_run(), succeeded=True)
    timer.join(60)
    assert not timer.is_alive()


def test_many_failures_are_counted(tmp_path):
    lines = lines_of(tmp_path, [job("stage", str(number), state="failed") for number in range(20)], succeeded=False)
    assert len([line for line in lines if "see results/logs" in line]) == 8
    assert "            and 12 more" in lines


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("cat > message", ""),
        ("no-such-program", "notify: exit code 127: bash: line 1: no-such-program: command not found"),
        ("cat > message; echo no server; exit 3", "notify: exit code 3: no server"),
    ],
)
def test_at_the_end_of_a_run_a_command_gets_the_summary(tmp_path, monkeypatch, capfd, command, printed):
    monkeypatch.chdir(tmp_path)
    workflow = Workflow({"notify": command}, results=tmp_path / "results")
    workflow.print_summary(ended_run(), succeeded=False)
    summary, _, rest = capfd.readouterr().out.partition("notify: ")
    assert summary.startswith("Trainyard: ended before everything was done,")
    assert f"notify: {rest}".strip() == (printed or "notify:")
    if "message" in command:
        assert Path("message").read_text() == summary


def test_jobs_are_read_from_snakemakes_run():
    def made(rule, log=(), **wildcards):
        return SimpleNamespace(rule=SimpleNamespace(name=rule), wildcards=wildcards, log=log)

    jobs = [made("train", ["a.log"], name="w", scale="1x1"), made("all"), made("sweep", name="s"), made("stage")]
    dag = SimpleNamespace(needrun_jobs=lambda exclude_finished: iter(jobs), finished=lambda each: each is jobs[0])
    run = SimpleNamespace(dag=dag, scheduler=SimpleNamespace(failed=[jobs[2]], running=[jobs[3]], _user_kill=None))
    assert read_jobs(run) == [
        RunJob("all", "", "", "", "left"),
        RunJob("stage", "", "", "", "interrupted"),
        RunJob("sweep", "s", "", "", "failed"),
        RunJob("train", "w", "1x1", "a.log", "finished"),
    ]


def test_the_jobs_of_a_run_with_nothing_to_do_are_those_whose_outputs_were_kept(tmp_path):
    kept = SimpleNamespace(rule=SimpleNamespace(name="sweep"), wildcards={"name": "own"}, log=())
    run = ended_run()
    run.dag = SimpleNamespace(needrun_jobs=lambda exclude_finished: iter(()), finished=lambda each: False, jobs=[kept])
    assert read_jobs(run) == [RunJob("sweep", "own", "", "", "kept")]
    finish(tmp_path, "own", {"rmse": 3.0}, {"rmse": 1.0}, {"rmse": 2.0})
    lines = lines_of(tmp_path, read_jobs(run))
    assert lines[1:3] == ["  finished  nothing new", "  answers   sweep own: 3 trials finished, 0 failed"]
    assert lines[-1].startswith("  next      write the report: ")


@pytest.mark.parametrize(
    ("given", "report", "best"),
    [
        ("snakemake -c 2", "snakemake -c 2 --report r", "snakemake -c 2 --configfile b.yaml -- scaling"),
        (
            "snakemake --configfile a.yaml b.yaml --profile p -- sweeps",
            "snakemake --configfile a.yaml b.yaml --profile p --report r -- sweeps",
            "snakemake --profile p --configfile b.yaml -- scaling",
        ),
        (
            "snakemake sweeps --config 'sweeps=a b' scaling=none --configfile=a.yaml --profile p",
            "snakemake sweeps --config 'sweeps=a b' scaling=none --configfile=a.yaml --profile p --report r",
            "snakemake --profile p --configfile b.yaml -- scaling",
        ),
    ],
)
def test_command_lines_to_paste_are_made_from_the_one_of_the_run(given, report, best, monkeypatch):
    monkeypatch.setenv("PWD", str(Path.cwd()))
    argv = shlex.split(given)
    assert call_again(argv, "--report", "r") == report
    assert call_with_config(argv, Path("b.yaml"), "scaling", but={"sweeps"}) == best


def test_the_program_is_written_as_one_would_type_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = tmp_path / ".venv/bin/snakemake"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("PWD", str(tmp_path))
    assert call_again([str(program), "-n"]) == ".venv/bin/snakemake -n"
    monkeypatch.chdir("/")  # `--directory /`
    assert call_again([str(program), "-n"]) == ".venv/bin/snakemake -n"
    assert call_with_config(["else/snakemake"], Path("b.yaml")) == "else/snakemake --configfile /b.yaml --"
    assert call_again(["/else where/snakemake", "-n"]) == "'/else where/snakemake' -n"
    assert call_again(["/elsewhere/snakemake/__main__.py", "-n"]) == f"{installed_program('python')} -m snakemake -n"
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin")
    assert call_again([str(program), "-n"]) == "snakemake -n"


SLURM_LOG = """Select jobs to execute...
Activating environment modules: nomodule/1.0

/usr/bin/bash: line 1: module: command not found
RuleException:
CalledProcessError in file "sweep.smk", line 43:
[Fri Nov 27 23:17:19 2026]
Error in rule sweep:
    jobid: 1
"""


NO_PYTHON = "slurmstepd: error: execve(): python: No such file or directory"


@pytest.mark.parametrize(
    ("printed", "last"), [(SLURM_LOG, "/usr/bin/bash: line 1: module: command not found"), (NO_PYTHON, NO_PYTHON)]
)
def test_a_run_with_a_job_that_never_began_ends_with_the_end_of_slurms_log(tmp_path, printed, last):
    (log := tmp_path / "7.log").write_text("line\n" * 20 + printed)
    failure = JobFailure("Slurm job 7 ended before its program started", log)
    jobs = [RunJob("sweep", "own", "", "sweep/own.log", "failed", failure)]
    lines = lines_of(tmp_path, jobs, succeeded=False)
    assert "  failed    sweep own: Slurm job 7 ended before its program started" in lines
    first = lines.index(f"  job log   {log}:")
    tail = [line.strip() for line in lines[first + 1 : -2]]
    assert len(tail) == 10
    assert tail[-1] == last


def test_a_log_that_slurm_could_not_write_is_said(tmp_path):
    failure = JobFailure("Slurm job 7 ended before its program started", tmp_path / "7.log")
    jobs = [RunJob("sweep", "own", "", "sweep/own.log", "failed", failure)]
    said = f"  job log   {tmp_path}/7.log: Slurm could not write it: does the node see this folder?"
    assert said in lines_of(tmp_path, jobs, succeeded=False)


def test_a_run_of_many_sweeps_is_done_only_if_no_trial_of_any_is_left(tmp_path):
    """Also of those that the summary does not show."""
    names = [f"s{number}" for number in range(12)]
    config = check_config({"sweeps": {name: {"command": "train {x}", "args": {"x": 1}} for name in names}})
    for name in names[:-1]:
        (trial,) = read_state(config.sweeps[name], name, tmp_path).trials
        with session_of(tmp_path / f"sweeps/{name}") as journal:
            record_attempt(journal, trial)
    summary = RunSummary(config, tmp_path, [job("sweep", name) for name in names], 9.0, True, ARGV)
    assert (summary.trials_left, summary.is_done) == (1, False)
