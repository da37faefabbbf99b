"""The workflow as a user runs it: dry runs, results, and what runs again after a change."""

import fcntl
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
import yaml
from project import FULL, ROOT, TINY, Project
from slurm_cluster.waiting import wait_until
from sweep_journals import journal_text


def read(project, path):
    return pd.read_csv(project.results / path)


def test_the_trials_table_has_a_row_per_trial_and_the_documented_columns(done):
    rows = read(done, "sweeps/lr/trials.csv")
    assert list(rows.columns[:5]) == ["trial", "lr", "status", "attempts", "seconds"]
    assert rows["lr"].tolist() == [0.01, 0.02, 0.03, 0.04]
    assert (rows["status"] == "finished").all()
    assert rows["val_accuracy"].between(0, 1).all()


def test_the_timeline_has_every_attempt_with_its_slot(done):
    rows = read(done, "sweeps/lr/timeline.csv")
    contract = ["trial", "attempt", "job", "node", "gpu", "slot", "start", "end", "outcome"]
    added = ["gpu_model", "device", "expected_seconds", "gpus_per_trial", "seconds", "kept_seconds", "session"]
    assert list(rows.columns) == [*contract, *added]
    assert (rows["device"] == "cpu").all()
    assert set(rows["trial"]) == set(read(done, "sweeps/lr/trials.csv")["trial"])
    assert set(rows["gpu"]) <= {0, 1}
    assert (rows["end"] > rows["start"]).all()


def test_a_scaling_study_has_a_row_per_scale(done):
    rows = read(done, "scaling/ranks/scaling.csv").set_index("scale")
    assert rows["gpus"].tolist() == [1, 2]
    assert (rows["global_batch"] == 32).all()
    assert rows.loc["1x1", ["speedup", "efficiency"]].tolist() == [1, 1]
    assert (rows["device"] == "cpu").all()
    assert rows["gpu_hours"].isna().all(), "no CPU time is presented as GPU time"
    assert rows.loc["1x2", "train_loss"] == pytest.approx(rows.loc["1x1", "train_loss"], abs=1e-5), (
        "same global batches"
    )
    assert rows.loc["1x2", "val_loss"] == pytest.approx(rows.loc["1x1", "val_loss"], abs=1e-5)
    assert pd.isna(rows.loc["1x1", "exposed_comm_fraction"]), "a single rank does not communicate"
    assert 0 <= rows.loc["1x2", "exposed_comm_fraction"] < 1
    assert rows["data_wait_fraction"].between(0, 1).all()
    assert (rows["cpu_rss_peak_mib"] > 100).all()
    assert rows[["gpu0_peak_mib", "gpu0_avg_mib", "gpu0_mode_mib", "mfu"]].isna().all(axis=None), "unknown is not zero"


def test_the_table_averages_repeats_with_different_seeds(done):
    rows = read(done, "scaling/ranks/scaling.csv").set_index("scale")
    runs = [read(done, f"scaling/ranks/{run}/history.csv") for run in ("1x2", "1x2/repeat-2")]
    assert (rows["repeats"] == 2).all()
    assert runs[0]["train_loss"].tolist() != runs[1]["train_loss"].tolist()
    last = [history["val_loss"].iloc[-1] for history in runs]
    assert rows.loc["1x2", "val_loss"] == pytest.approx(sum(last) / 2)
    assert rows.loc["1x2", "speedup_low"] < rows.loc["1x2", "speedup"] < rows.loc["1x2", "speedup_high"]
    assert (rows["gradient_mib"] > 0).all()
    assert set(rows["verdict"]) == {"on CPUs: says nothing of GPUs"}
    assert rows[["cost", "cost_per_million_images"]].isna().all(axis=None)
    assert "There is no recommendation" in (done.results / "tables/scaling/ranks.html").read_text()


def test_the_cost_of_a_sweep_is_compared_with_other_strategies(done):
    trials, rows = read(done, "sweeps/lr/trials.csv"), read(done, "sweeps/lr/strategies.csv").set_index("strategy")
    assert list(rows.index) == ["separate_jobs", "job_array", "packed"]
    array, packed, seconds = rows.loc["job_array"], rows.loc["packed"], trials["seconds"]
    startup = array["startup_gpu_seconds"] / 4
    assert array["requested_seconds_per_job"] == pytest.approx(1.5 * (seconds.max() + startup))
    assert array["requested_gpu_seconds"] == pytest.approx(6 * (seconds.max() + startup))
    assert array["used_gpu_seconds"] == pytest.approx(seconds.sum() + array["startup_gpu_seconds"])
    assert (rows["wasted_gpu_seconds"] >= rows["startup_gpu_seconds"] * 0.999).all()
    assert (rows["running_gpu_seconds"] - seconds.sum()).abs().max() < 1e-6
    assert (packed["jobs"], packed["gpus_total"]) == (1, 2)
    assert packed["makespan_seconds"] >= packed["makespan_lower_bound_seconds"]
    assert packed["basis"].startswith("measured: journal")
    assert packed["basis"].endswith("; the trials ran on CPUs: a slot counts as a GPU")
    job = read(done, "sweeps/lr/jobs.csv").iloc[0]
    parts = ["running_gpu_seconds", "failed_gpu_seconds", "startup_gpu_seconds", "idle_gpu_seconds"]
    assert job[parts].sum() == pytest.approx(2 * job["elapsed_seconds"])
    assert packed["used_gpu_seconds"] == pytest.approx(2 * job["elapsed_seconds"])
    page = (done.results / "tables/sweeps/lr.html").read_text()
    assert f"{job['start']:,.0f}" not in page, "a date"
    assert "val_accuracy (highest" in page


def test_the_plan_predicts_the_cost_of_missing_results(done, project):
    shutil.copytree(done.folder, project.folder, dirs_exist_ok=True)
    grown = json.loads(json.dumps(FULL))
    grown["sweeps"]["lr"]["grid"]["lr"] += [0.05, 0.06, 0.07]
    grown["scaling"]["ranks"]["scales"] += ["1x4"]
    project.write(grown)
    output = project.snakemake("-n", "--verbose")
    assert re.search(r"sweep lr .* 3 of 7 .*\d+ s", output)
    assert "as a job array" in output
    program = [sys.executable, str(ROOT / "scripts/trainyard"), "cli.commands", "plan", "--json", "--verbose"]
    found = json.loads(project.run(*program, "--config", str(project.config_file)).stdout)
    rows = pd.DataFrame(found["jobs"]).set_index(["job", "strategy"])
    packed, array = rows.loc["sweep lr", "packed"], rows.loc["sweep lr", "job_array"]
    assert (packed["pending"], packed["jobs"], packed["gpus"], packed["basis"]) == (3, 1, 2, "4 measured trials")
    low, expected, high = packed[[f"predicted_{name}seconds" for name in ("low_", "", "high_")]]
    assert low <= expected <= high
    assert (array["jobs"], array["gpus"]) == (3, 1)
    assert pd.isna(packed["walltime_minutes"]), "there is no walltime on one machine"
    assert rows.loc[("train ranks 1x4", ""), "basis"] == "ideal scaling from 1x2, which ran on CPUs"
    assert packed["predicted_cost"] == pytest.approx(2.5 * packed["predicted_gpu_hours"])


def test_telemetry_is_sampled_during_a_training(done):
    for scale in ("1x1", "1x2"):
        folder = done.results / f"scaling/ranks/{scale}/telemetry"
        gpu, cpu = (pd.read_csv(next(folder.glob(f"{kind}-*.csv"))) for kind in ("gpu", "cpu"))
        assert len(gpu) == 0
        assert "memory_used_mib" in gpu.columns
        assert len(cpu) >= 2
        assert (cpu["processes"] >= int(scale[-1])).all(), "torchrun and its ranks"


def test_every_scale_has_its_history_and_its_epoch_lines(done):
    for scale in ("1x1", "1x2"):
        history = read(done, f"scaling/ranks/{scale}/history.csv")
        assert history["epoch"].tolist() == [1, 2]
        log = (done.results / f"logs/train/ranks-{scale}.log").read_text()
        line = (
            r"Epoch \[2/2\] LR: \d\.\d{6} \| Loss \(train, val\): \d+\.\d{3}, \d+\.\d{3} \| "
            r"Accuracy \(train, val\): \d+\.\d\d%, \d+\.\d\d% \| Throughput: \d+\.\d img/s"
        )
        assert len(re.findall(line, log)) == 1, "only rank 0 logs it"


def test_a_trial_and_one_rank_give_bit_identical_metrics(done):
    """The same spec as a trial of a sweep and as scale 1x1."""
    trials, rank = read(done, "sweeps/lr/epochs.csv"), read(done, "scaling/ranks/1x1/history.csv")
    trial = trials[trials["lr"] == FULL["scaling"]["ranks"]["train"]["lr"]]
    assert len(trial) == FULL["scaling"]["ranks"]["train"]["epochs"]
    assert trial["reported_lr"].tolist() == rank["lr"].tolist()
    for metric in ("train_loss", "train_accuracy", "val_loss", "val_accuracy"):
        assert trial[metric].tolist() == rank[metric].tolist()


def test_the_best_trial_is_trained_again_from_best_yaml(done):
    """In the same folder, under a new name, or in another one; on a CPU bit-identically."""
    trials, best = read(done, "sweeps/lr/trials.csv"), done.results / "sweeps/lr/best.yaml"
    winner = trials.loc[trials["val_accuracy"].idxmax()]
    same = done.snakemake("-n", "--configfile", str(best))
    assert "sweep lr-best: 1 of 1 trials pending; requests 1 slot of 1 CPU" in same
    assert "train lr-best 1x1" in same
    project = Project(done.folder / "again")
    project.folder.mkdir()
    project.config_file = best
    project.stage()
    output = project.run(*project.script("sweep", "--sweep", "lr-best")).stdout
    assert "sweep lr-best: 1 of 1 trials pending; requests 1 slot of 1 CPU" in output
    (again,) = read(project, "sweeps/lr-best/trials.csv").to_dict("records")
    for column in ("trial", "lr", "train_loss", "train_accuracy", "val_loss", "val_accuracy"):
        assert again[column] == winner[column]


def test_trials_that_fit_trees_are_ranked_and_leave_model_and_importances(done):
    prices, ranking = read(done, "sweeps/prices/trials.csv"), read(done, "sweeps/prices/ranking.csv")
    assert prices["num_leaves"].tolist() == [3, 7]
    assert ranking["val_rmse_best"].tolist() == sorted(prices["val_rmse"])
    assert (prices["best_round"] <= prices["rounds"]).all()
    assert prices["cv_rmse"].notna().all()
    epochs = read(done, "sweeps/prices/epochs.csv")
    assert epochs.groupby("trial")["epoch"].max().tolist() == prices.set_index("trial")["rounds"].sort_index().tolist()
    for trial in prices["trial"]:
        assert set(read(done, f"sweeps/prices/trials/{trial}/importances.csv")["feature"]) == {"size"}
        assert (done.results / f"sweeps/prices/trials/{trial}/lightgbm.txt").exists()
    text = (done.results / "sweeps/prices/best.yaml").read_text()
    assert re.search(r"^# It ran with .*, lightgbm \d", text, re.MULTILINE)
    best = yaml.safe_load(text)["sweeps"]["prices-best"]
    assert best["trees"]["library"] == "lightgbm"
    assert best["metric"] == "val_rmse"


def test_every_trial_and_scale_of_a_study_with_a_profile_has_one(done):
    found = {
        str(each.parent.parent.relative_to(done.results)) for each in done.results.glob("s*/**/rank0.pt.trace.json.gz")
    }
    runs = {f"scaling/ranks/{scale}{repeat}" for scale in ("1x1", "1x2") for repeat in ("", "/repeat-2")}
    assert found == runs | {f"sweeps/lr/trials/{trial}" for trial in read(done, "sweeps/lr/trials.csv")["trial"]}


def test_the_report_has_every_plot_and_table_with_its_caption(done):
    report = (done.folder / "report.html").read_text()
    plots = "samples classes gantt waste prediction steps telemetry metric loss speedup"
    for name in (*(f"{plot}.svg" for plot in plots.split()), "lr.html", "ranks.html", "prices.html"):
        assert name in report
    assert "parallel.svg" not in report, "the sweep varies one key"
    for name in ("parallel.svg", "importance.svg"):
        assert not (done.results / "plots/sweeps/lr" / name).exists()
    captions = ("before augmentation", "images dataset", "Which trial of sweep", "How many times as fast")
    captions += ("There is no recommendation", "Best val_accuracy (highest")
    for text in (*captions, "one row per training"):
        assert text in report


def test_tensorboard_has_a_run_for_each_trial_scale_and_repeat(done):
    done.run(*done.script("event_files"))
    trials = read(done, "sweeps/lr/trials.csv")["trial"].tolist()
    folders = [done.results / "tensorboard" / study for study in ("sweeps/lr", "scaling/ranks")]
    assert [len(list(each.rglob("events.out.tfevents.*"))) for each in folders] == [len(trials), 2 * 2]
    for run in ("1x1", "1x1/repeat-2", "1x2", "1x2/repeat-2"):
        assert list((folders[1] / run).glob("events.out.tfevents.*"))


@pytest.mark.slow
def test_a_version_with_other_commands_imported_by_another_workflow_finds_finished_results_finished(done, tmp_path):
    shutil.copytree(ROOT / "workflow", tmp_path / "workflow")
    for name in ("scripts", "envs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for path in (tmp_path / "workflow/rules").glob("*.smk"):
        path.write_text(path.read_text().replace("{params.program} ", "{params.program}  "))
    shutil.copy(ROOT / "Snakefile", tmp_path)
    module = f"module trainyard:\n    snakefile: '{tmp_path}/workflow/Snakefile'\n    config: config\n"
    (tmp_path / "importing").write_text(f"configfile: 'config.yaml'\n{module}use rule * from trainyard\n")
    assert "Nothing to be done" in done.snakemake("-n", "--snakefile", str(tmp_path / "importing"))


def test_every_rule_says_what_it_does(done):
    listed = [line for line in done.snakemake("--list-rules").splitlines() if re.match(r"[a-z_]+( \(|$)", line)]
    assert len(listed) > 15
    assert [line for line in listed if not re.fullmatch(r"[a-z_]+ \([A-Z].*\.?\)", line)] == []


def test_options_that_change_no_result_run_nothing(done, project):
    shutil.copytree(done.folder, project.folder, dirs_exist_ok=True)
    changed = json.loads(json.dumps(FULL))
    changed["sweeps"]["lr"] |= {"slots": {"gpus_per_node": 1}, "retries": 3}
    project.write(changed)
    assert "Nothing to be done" in project.snakemake("-n")


def test_of_five_added_trials_these_five_run(project, done):
    shutil.copytree(done.folder, project.folder, dirs_exist_ok=True)
    grown = json.loads(json.dumps(FULL))
    grown["sweeps"]["lr"]["grid"]["lr"] += [0.05, 0.06, 0.07, 0.08, 0.09]
    project.write(grown)
    output = project.snakemake("sweeps")
    assert "sweep lr: 5 of 9 trials pending; requests 2 slots of 1 CPU" in output
    assert output.count("validation accuracy") == 5
    attempts = read(project, "sweeps/lr/trials.csv").set_index("trial")["attempts"]
    assert attempts.to_dict() == dict.fromkeys(attempts.index, 1)
    assert "Nothing to be done" in project.snakemake("-n", "sweeps")


def test_a_workflow_killed_during_a_sweep_continues_with_the_missing_trials(project):
    (project.folder / "slow.py").write_text(
        "import time\nfrom pathlib import Path\n"
        "def run(config, context):\n"
        "    assert isinstance(config['lr'], float)\n"
        "    while config['lr'] > 2 and not Path(__file__).with_name('again').exists():\n"
        "        time.sleep(0.05)\n"
        "    context.report(val_accuracy=0.5)\n"
    )
    numbers = "[1e-5, 0.00001234, 1E+16, 2.5]"
    project.config_file.write_text(
        f"sweeps: {{lr: {{function: 'slow:run', grid: {{lr: {numbers}}}, slots: {{gpus_per_node: 2}}}}}}"
    )
    snakemake = project.start(*project.snakemake_command("sweeps"))
    folder = project.results / "sweeps/lr"
    wait_until(lambda: '"finished"' in journal_text(folder), what="a trial to finish", while_running=snakemake)
    project.kill_session(snakemake)
    (project.folder / "again").touch()
    finished = journal_text(folder).count('"finished"')
    output = project.snakemake("sweeps")
    assert f"sweep lr: {4 - finished} of 4 trials pending" in output
    assert output.count("validation accuracy") == 4 - finished
    assert (read(project, "sweeps/lr/trials.csv")["status"] == "finished").all()
    assert read(project, "sweeps/lr/trials.csv")["lr"].tolist() == [1e-5, 0.00001234, 1e16, 2.5]
    options = ["--config", f"sweeps={{lr: {{retries: 3, grid: {{lr: {numbers}}}}}}}"]
    assert "Nothing to be done" in project.snakemake("-n", "sweeps", *options)


def test_a_run_of_a_finished_sweep_prints_its_answer_and_notifies_nobody(project):
    (project.folder / "work.py").write_text("def run(config, context):\n    context.report(rmse=config['lr'])\n")
    project.write({
        "notify": "touch notified",
        "sweeps": {"s": {"function": "work:run", "metric": "rmse", "grid": {"lr": [0.25, 0.5]}}},
    })  # fmt: skip
    best = "best rmse (lowest, guessed from its name): 0.25"
    assert best in project.snakemake("sweeps")
    (project.folder / "notified").unlink()
    again = project.snakemake("sweeps")
    assert "Nothing to be done" in again
    assert "  finished  nothing new\n  answers   sweep s: 2 trials finished, 0 failed\n" in again
    assert best in again
    assert not (project.folder / "notified").exists()
    assert best not in project.snakemake("sweeps", "-n")


def test_who_waits_for_a_sweep_that_cannot_run_waits_for_its_run_and_gets_1(project):
    started = project.folder / "started"
    (project.folder / "work.py").write_text(
        "import time\nfrom pathlib import Path\n"
        "def run(config, context):\n"
        f"    Path({str(started)!r}).touch()\n"
        "    time.sleep(2)\n"
        "    raise ValueError('no')\n"
    )
    project.write({"sweeps": {"s": {"function": "work:run", "grid": {"lr": [0.25, 0.5]}}}})
    snakemake = project.start(*project.snakemake_command("sweeps"))
    wait_until(started.exists, what="a trial to start", while_running=snakemake)
    waited = project.run(*project.script("status", "--wait"), check=False)
    assert waited.returncode == 1
    assert "ValueError: no" in waited.stdout
    assert snakemake.wait() == 1


@pytest.mark.slow
def test_a_scale_resumes_to_the_same_metrics_and_another_spec_starts_over(project, done):
    shutil.copytree(done.folder, project.folder, dirs_exist_ok=True)
    command = project.script("train", "--study", "ranks", "--scale", "1x1")
    folder = next((project.results / "scaling/ranks/1x1/checkpoints").iterdir())
    newest = max(folder.glob("epoch-*.pt"))
    newest.unlink()
    output = project.run(*command).stdout
    assert "continuing after epoch 1" in output
    assert output.count("Epoch [") == 1
    for metric in ("train_loss", "val_loss", "val_accuracy"):
        again, before = read(project, "scaling/ranks/1x1/history.csv"), read(done, "scaling/ranks/1x1/history.csv")
        assert again[metric].tolist() == before[metric].tolist()
    other = json.loads(json.dumps(FULL))
    other["scaling"]["ranks"]["train"]["lr"] = 0.07
    project.write(other)
    output = project.run(*command).stdout
    assert output.count("Epoch [") == 2
    assert f"starting over: {folder} holds checkpoints of another training: train.lr" in output
    assert len(list(folder.glob("epoch-*.pt"))) == 2, "the checkpoints of the other one are kept"


PROGRAMS = sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))


# Runs each program with --help, all in one process to import torch once.
HELP = """
import contextlib, io, json, runpy, sys
texts = {}
for path in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
        sys.argv = [path, "--help"]
        runpy.run_path(path, run_name="__main__")
    texts[path] = output.getvalue()
print(json.dumps(texts))
"""


@pytest.fixture(scope="module")
def helps(tmp_path_factory):
    project, scripts = Project(tmp_path_factory.mktemp("help")), ROOT / "scripts"
    project.environment["PYTHONPATH"] = str(scripts)
    paths = [str(scripts / f"{program}.py") for program in PROGRAMS]
    texts = json.loads(project.run(sys.executable, "-c", HELP, *paths).stdout)
    return {Path(path).stem: text for path, text in texts.items()}


@pytest.mark.slow
def test_a_clone_whose_path_has_braces_is_refused_before_anything_runs(done, tmp_path):
    shutil.copytree(done.root, tmp_path / "{clone}")
    project = Project(tmp_path, tmp_path / "{clone}")
    project.write(TINY)
    output = project.snakemake("-n", check=False)
    assert "{clone}: its path has '{' '}' (Snakemake takes them for wildcards): rename or move it" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_help_of_every_program_has_an_example(helps, program):
    assert re.search(rf"example: trainyard {program.replace('_sweep', '').replace('_', '-')} --", helps[program])


def test_status_shows_the_progress_of_sweeps_and_studies(done):
    output = done.run(*done.script("status")).stdout
    assert "sweep   finished  stopped  diverged  running  failed  pending  of  predicted time left\n" in output
    assert re.search(r"scaling study  trained  of\nranks          4        4 *\n", output)


def test_status_on_a_narrow_terminal_shows_whole_lines_without_colors_until_interrupted(done):
    """A pseudo-terminal of 40 columns and 10 lines."""
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 40, 0, 0))
    environment = {**done.environment, "TERM": "xterm-256color", "NO_COLOR": "1"}
    environment.pop("COLUMNS", None)
    command = done.script("status", "--watch", "--every", "0.1")
    with subprocess.Popen(command, cwd=done.folder, env=environment, stdout=follower, stderr=follower) as watching:
        os.close(follower)
        shown = b""
        while b"scaling study" not in shown:
            shown += os.read(leader, 4096)
        watching.send_signal(signal.SIGINT)
        with suppress(OSError):  # the other end is closed
            while more := os.read(leader, 4096):
                shown += more
    os.close(leader)
    assert watching.returncode == 0
    text = shown.decode().replace("\x1b[?1049l", "\n")  # the end of the screen on which it was updated
    lines = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", text).splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[-14].split() == ["sweep", "finished", "running", "failed", "of"], "the last picture stays"
    assert not re.search(rb"\x1b\[[0-9;]*[34]\dm", shown), "NO_COLOR"
