"""`init.py` on scripts: it runs them for a moment, overwrites nothing, and what it writes passes `check.py`."""

import shutil
import sys
from argparse import Namespace
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

import check
import pytest
from project import ROOT
from trainyard.cli.first_run import file_pattern
from trainyard.config.parser import read_file
from trainyard.config.user_programs import Metrics

OPTIONS = """
import argparse, sys, time
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
"""
# It prints a metric and would go on for an hour; it overwrites what the user has, if it runs there.
LONG = f"""{OPTIONS}
args = parser.parse_args()
Path("model.pt").write_text("overwritten")
print("epoch 1 train loss 0.5", flush=True)
print("epoch 1 val acc", args.lr, flush=True)
time.sleep(3600)
"""
# The losses of its two networks say little, and it has no end.
ENDLESS = f"""{OPTIONS}
args = parser.parse_args()
for n in range(1, 1_000_000):
    print(f"d_loss: {{1 / n}} g_loss: {{1 + 1 / n}} val_loss: {{2 / n}}", flush=True)
    if n % 3 == 0:
        print(f"fid: {{300 / n}}", flush=True)
    time.sleep(0.5)
"""
# As transformers prints it since version 5.
TRAINER = f"""{OPTIONS}
args = parser.parse_args()
for step in range(1, 121):
    epoch = step / 40
    print(f"\\r{{step * 100 // 120}}%|###| {{step}}/120 [00:01<00:01, 41.2it/s]", end="", file=sys.stderr, flush=True)
    if step % 10 == 0:
        print({{"loss": f"{{2 / (1 + epoch):.4g}}", "learning_rate": "1e-05", "epoch": f"{{epoch:.4g}}"}}, flush=True)
    if step % 20 == 0:
        accuracy = 0.9 * (1 - 0.5 ** (2 * epoch))
        print({{"eval_loss": f"{{1 / epoch:.4g}}", "eval_accuracy": f"{{accuracy:.4g}}", "eval_runtime": "0.0412",
               "epoch": f"{{epoch:.4g}}"}}, flush=True)
print({{"train_runtime": "1.23", "train_samples_per_second": "975.6", "train_loss": "0.9021", "epoch": "3"}})
print("***** eval metrics *****")
print("  eval_accuracy           =     0.8859")
print("  eval_runtime            = 0:00:00.04")
"""
# As Lightning: a progress bar, whose last frame has the metric, and a logger, whose file has all epochs.
LOGGED = f"""{OPTIONS}
args = parser.parse_args()
Path("logs").mkdir()
with open("logs/metrics.csv", "w") as file:
    print("epoch,val_acc", file=file)
    for epoch in range(3):
        accuracy = 0.5 + epoch / 10
        print(f"{{epoch}},{{accuracy:.1f}}", file=file)
        print(f"\\rEpoch {{epoch}}: 100%|##| 9/9 [00:01<00:00, 9.1it/s, v_num=0, val_acc={{accuracy:.3f}}]", end="")
"""
# As MMDetection: JSON lines in a file that is named .json, and first a line about the environment.
DETECTOR = f"""{OPTIONS}
import json
parser.add_argument("--work-dir", type=Path, default=Path("work_dirs"))
args = parser.parse_args()
rows = [{{"env_info": "Python: 3.11", "seed": None}}]
for epoch in (1, 2, 3):
    rows.append({{"mode": "train", "epoch": epoch, "iter": 50, "lr": args.lr, "loss": 3 / epoch}})
    rows.append({{"mode": "val", "epoch": epoch, "iter": 9, "bbox_mAP": 0.12 * epoch, "bbox_mAP_copypaste": "0.1"}})
Path(args.work_dir, "20261127_120000.log.json").write_text("".join(json.dumps(row) + "\\n" for row in rows))
"""
# Its metrics are in a file in the folder that it is given, and it reads a file of the user and a module beside it.
QUIET = f"""{OPTIONS}
import helper
parser.add_argument("--data-dir", default="data")
parser.add_argument("--output_dir", default="out")
args = parser.parse_args()
rows = Path(args.data_dir, "rows.txt").read_text()
Path(args.output_dir, "log.txt").write_text('{{"epoch": 1, "lr": 0.1, "val_accuracy": 0.5}}\\n')
"""
# Its metrics are in event files, in a folder that is named after the time of the run.
EVENTS = f"""{OPTIONS}
from torch.utils.tensorboard import SummaryWriter
args = parser.parse_args()
with SummaryWriter() as writer:
    writer.add_scalar("train/loss", 0.7, 1)
    writer.add_scalar("val/accuracy", 0.5, 1)
"""


@pytest.fixture
def init(project):
    """Runs `init.py`, and, in this process, `check.py` on what it has written."""

    def run(script, *options, name="train.py"):
        (project.folder / name).write_text(script)
        done = project.run(sys.executable, str(ROOT / "scripts/init.py"), *options)
        files = {"config": Path("trainyard.yaml"), "results": Path("results"), "profile": "local"}
        given = Namespace(**files, quiet=True, drill=None, effect=None, json=False)
        with redirect_stdout(StringIO()) as printed, chdir(project.folder):
            assert check.main(given) == 0
        assert printed.getvalue() == ""
        return done.stdout, next(iter(read_file(project.folder / "trainyard.yaml")["sweeps"].values()))

    return run


def test_a_script_runs_for_a_time_and_overwrites_nothing(project, init):
    (project.folder / "model.pt").write_text("mine")
    output, sweep = init(LONG, "--seconds", "10")
    assert "train.py still ran after 10 s, and was ended; for a longer run: `" in output
    assert "--seconds 100`" in output
    assert "this is a guess: a short run reported val_acc once (0.1)" in output
    assert "its metrics: epoch 1 val acc 0.1, to be ranked by val_acc" in output
    assert sweep["metrics"]["pattern"] == "epoch (?P<epoch>{number}) val acc (?P<val_acc>{number})"
    assert sweep["workdir"] == "trial", "it writes model.pt"
    assert {path.name for path in project.folder.iterdir()} == {"train.py", "model.pt", "trainyard.yaml"}
    assert (project.folder / "model.pt").read_text() == "mine"


def test_a_script_runs_until_a_metric_has_changed(init):
    """But not before ten seconds have passed: a better metric may come less often than the first one."""
    output, sweep = init(ENDLESS)
    assert "still ran" not in output
    assert sweep["metric"] == "fid"
    assert sweep["mode"] == "min"


def test_the_output_of_transformers_trainer_is_read_in_spite_of_quotes_and_bars(project, init):
    output, sweep = init(TRAINER)
    assert "a short run reported eval_accuracy 6 times (0.45, 0.675, 0.7875, ..., 0.8859)" in output
    assert (sweep["metric"], sweep["mode"]) == ("eval_accuracy", "max")
    assert Metrics(**sweep["metrics"]).groups == ["eval_loss", "eval_accuracy", "epoch"]
    lines = (project.folder / "trainyard.yaml").read_text().splitlines()
    assert lines[2].startswith(
        "# `metrics`, `metric` and `mode` are a guess: a short run reported eval_accuracy 6 times"
    )
    assert lines[0].startswith("# yaml-language-server: $schema=/"), "editors complete its keys"


def test_a_file_with_epochs_comes_before_a_progress_bar(init):
    output, sweep = init(LOGGED)
    assert sweep["metrics"] == {"file": "logs/metrics.csv"}
    assert sweep["metric"] == "val_acc"
    assert "a short run reported val_acc 3 times (0.5, 0.6, 0.7)" in output


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("lightning_logs/version_0/metrics.csv", "lightning_logs/version_*/metrics.csv"),
        ("work_dirs/20261127_120000.log.json", "work_dirs/*.log.json"),
        ("outputs/2026-11-27/12-30-01/metrics.csv", "outputs/*/*/metrics.csv"),
        ("runs/CartPole-v1__ppo__1__1764201600/progress.csv", "runs/CartPole-v1__ppo__1__*/progress.csv"),
        ("runs/detect/train/results.csv", "runs/detect/train*/results.csv"),
        ("20261127_120000.log", "[0-9]*.log"),
        ("logs/lr0.01_resnet50/metrics.csv", "logs/lr*_resnet50/metrics.csv"),
        ("metrics_1.jsonl", "metrics_1.jsonl"),
    ],
)
def test_what_is_new_in_each_run_is_a_star_in_the_name_of_a_file(name, pattern):
    assert file_pattern(name, ["0.01", "1"]) == pattern


def test_a_file_of_json_lines_that_is_named_after_the_time_is_found_in_each_trial(init):
    output, sweep = init(DETECTOR)
    assert "a short run reported bbox_mAP 3 times (0.12, 0.24, 0.36)" in output
    assert (sweep["metrics"], sweep["metric"]) == ({"file": "*.log.json"}, "bbox_mAP")


def test_a_table_of_predictions_is_no_file_of_metrics(init):
    predictions = "Path('predictions.csv').write_text('id,score\\n' + ''.join(f'{n},0.{n}\\n' for n in range(60)))"
    _, sweep = init(f"{OPTIONS}\nargs = parser.parse_args()\n{predictions}\nprint('loss', args.lr)")
    assert (sweep["metric"], sweep["workdir"]) == ("loss", "trial")


def test_a_better_metric_in_the_output_comes_before_a_file(init):
    _, sweep = init(LOGGED.replace("epoch,val_acc", "epoch,train_loss"))
    assert "file" not in sweep["metrics"]
    assert sweep["metric"] == "val_acc"


@pytest.mark.parametrize(
    ("prints", "message"),
    [
        ("print('target acc 0.9, epoch', n)", "it reports no other metric than target_acc, which had the same value"),
        ("print(f'loss: 0,{n}25')", "it prints numbers with a decimal comma (loss 0,125), which are not read"),
    ],
    ids=["a constant", "a decimal comma"],
)
def test_what_is_no_metric_is_said_and_left_to_do(project, init, prints, message):
    output, sweep = init(f"{OPTIONS}\nargs = parser.parse_args()\nfor n in range(1, 5):\n    {prints}")
    assert message in output
    assert "metrics" not in sweep
    todo = output.index("TODO in trainyard.yaml: say where its metrics are")
    assert todo < output.index("then: `"), "what is left to do comes before the next step"
    assert f"# TODO: say where its metrics are ({message[:30]}" in (project.folder / "trainyard.yaml").read_text()


def test_metrics_are_found_in_a_file_of_a_script_that_prints_nothing(project, init):
    (project.folder / "data").mkdir()
    (project.folder / "data/rows.txt").touch()
    (project.folder / "helper.py").touch()
    _, sweep = init(QUIET, "main.py", name="main.py")
    assert sweep["command"] == "python main.py {args} --output_dir {trial_dir}"
    assert (sweep["metrics"], sweep["metric"]) == ({"file": "log.txt"}, "val_accuracy")


def test_metrics_are_found_in_event_files_of_tensorboard(init):
    output, sweep = init(EVENTS)
    assert "its metrics: event files of TensorBoard, to be ranked by val/accuracy" in output
    assert (sweep["metrics"], sweep["metric"]) == ({"file": "**"}, "val/accuracy")
    assert sweep["workdir"] == "trial", "it writes runs/"


def test_what_a_script_logs_to_wandb_is_found_by_a_run_that_is_offline(project, init):
    shutil.copy(ROOT / "tests/wandb_stand_in/wandb.py", project.folder)
    script = f"{OPTIONS}\nimport wandb\nwandb.init(config=vars(parser.parse_args()))\n"
    log = "for epoch in (1, 2, 3):\n    wandb.log({'epoch': epoch, 'val_loss': wandb.config.lr / epoch})"
    output, sweep = init(script + log)
    assert "its metrics: what it logs to W&B, to be ranked by val_loss" in output
    assert (sweep["metrics"], sweep["metric"], sweep["mode"]) == ("wandb", "val_loss", "min")


@pytest.mark.parametrize("metric", ["val_loss", "fid", "unknown"])
def test_a_wandb_sweep_of_a_program_that_does_not_use_wandb_gets_the_metrics_of_a_run(project, init, metric):
    parameters = "{lr: {min: 0.01, max: 1.0}}"
    target = f"{{name: {metric}, goal: minimize}}"
    text = f"program: train.py\nmethod: bayes\nrun_cap: 3\nmetric: {target}\nparameters: {parameters}\n"
    (project.folder / "sweep.yml").write_text(text)
    loop = "for n in range(1, 10):\n    print(f'epoch {n} val_loss {1 / n} fid {300 / n}', flush=True)\n"
    _, sweep = init(f"{OPTIONS}\nargs = parser.parse_args()\n{loop}", "sweep.yml")
    assert sweep["search"]["trials"] == 3
    assert (sweep["metric"], sweep["mode"]) == ("val_loss" if metric == "unknown" else metric, "min")
    assert "val_loss" in sweep["metrics"]["pattern"]
    written = (project.folder / "trainyard.yaml").read_text()
    assert "train.py does not use W&B, so they are a guess" in " ".join(written.replace("# ", "").split())


def test_a_wandb_sweep_without_metrics_that_are_known_draws_its_trials(project, init):
    text = "program: train.py\nmethod: bayes\nmetric: {name: val/acc}\nparameters: {lr: {min: 0.01, max: 1.0}}\n"
    (project.folder / "sweep.yml").write_text(text)
    _, sweep = init(f"{OPTIONS}\nargs = parser.parse_args()\n", "--no-run", "sweep.yml")
    assert {"metrics", "metric", "search"}.isdisjoint(sweep)
    assert sweep["sample"]["count"] == 20
    written = (project.folder / "trainyard.yaml").read_text()
    assert "val/acc (?P<val_acc>{number})" in " ".join(written.replace("# ", "").split())


def test_a_script_that_takes_a_file_of_settings_runs_with_it(project, init):
    (project.folder / "conf.yaml").write_text("lr: 0.1\nepochs: 3\n")
    script = "import sys, yaml\nlr = yaml.safe_load(open(sys.argv[1]))['lr']\nprint('val loss', lr)\n"
    _, sweep = init(script, "python train.py conf.yaml")
    assert (sweep["command"], sweep["settings"]) == ("python train.py {settings}", "conf.yaml")
    assert sweep["metric"] == "val_loss"
    assert list(sweep["search"]["values"]) == ["lr"]


@pytest.mark.parametrize(("file", "epochs"), [("epoch_{n}.json", 3), ("ckpt.json", 1)])
def test_checkpoints_of_its_epochs_are_no_file_of_metrics(init, file, epochs):
    saves = f"open(f'{file}', 'w').write(json.dumps({{'epoch': n, 'score': n}}))"
    loop = f"for n in range(1, {epochs + 1}):\n    print('Epoch', n, 'score =', n / 2)\n    {saves}\n"
    _, sweep = init(f"import json\n{OPTIONS}\nargs = parser.parse_args()\n{loop}")
    assert list(sweep["metrics"]) == ["pattern", "sample"]


def test_a_script_that_reads_variables_runs_with_their_defaults(init):
    _, sweep = init("import os\nlr = float(os.environ.get('LR', '0.25'))\nprint('val loss', lr)\n")
    assert sweep["command"] == "LR={LR} python train.py"
    assert sweep["metrics"]["sample"] == "val loss 0.25"


def test_a_script_that_a_wrapper_starts_is_read_itself(project, init):
    (project.folder / "wrap.sh").write_text('exec "$@"\n')
    _, sweep = init(f"{OPTIONS}\nprint('val loss', parser.parse_args().lr)\n", "bash wrap.sh python train.py")
    assert sweep["command"] == "bash wrap.sh python train.py {args}"


def test_a_script_for_a_shell_is_not_tried_and_keeps_its_folder(init):
    output, sweep = init("python train.py --lr ${LR:-0.1}\ntouch ran\n", "run.sh", name="run.sh")
    assert (sweep["command"], sweep["workdir"]) == ("LR={LR} bash -o pipefail run.sh", "keep")
    assert "TODO in trainyard.yaml: all trials run in this folder" in output
    assert "(a script for a shell is not tried)" in output


def test_what_is_typed_of_a_varied_setting_is_left_out(init):
    """The last value would hold for all trials."""
    variables = "echo ${LR:-0.1} ${WD:-0} ${OUT:-out}\n"
    _, sweep = init(variables, "LR=0.3 NAME=x OUT=y bash run.sh", name="run.sh")
    assert sweep["command"].endswith("OUT={trial_dir} NAME=x bash run.sh")
    assert "LR=0.3" not in sweep["command"]


@pytest.mark.parametrize(
    ("first", "interpreter"),
    [
        ("#!/bin/bash -e", "/bin/bash -e -o pipefail"),
        ("#!/usr/bin/env zsh", "/usr/bin/env zsh -o pipefail"),
        ("#!/bin/sh", "/bin/sh"),
    ],
)
def test_the_first_line_of_a_script_for_a_shell_says_what_runs_it(init, first, interpreter):
    output, sweep = init(f"{first}\npython train.py --lr ${{LR:-0.1}} | tee log\n", "run.sh", name="run.sh")
    assert sweep["command"] == f"LR={{LR}} {interpreter} run.sh"
    assert ("a pipe such as `| tee` in run.sh fails" in output) == ("pipefail" in interpreter)


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        (f"{OPTIONS}\nargs = parser.parse_args()\nraise ValueError('no GPU')", [], "ValueError: no GPU (python: /"),
        (f"{OPTIONS}\nargs = parser.parse_args()\nprint('done')", [], "has no loss or accuracy"),
        (f"{OPTIONS}\nparser.add_argument('--data', required=True)", [], "is not run: it requires --data"),
        (f"{OPTIONS}\nPath('ran').touch()", ["--no-run"], "wrote trainyard.yaml"),
    ],
    ids=["it fails", "it prints no metrics", "it needs data", "it shall not run"],
)
def test_without_metrics_the_config_says_what_to_fill_in(project, init, script, options, message):
    output, sweep = init(script, *options)
    assert message in output
    assert "metrics" not in sweep
    assert "TODO: say where its metrics are" in (project.folder / "trainyard.yaml").read_text()
    checked = project.run(sys.executable, str(ROOT / "scripts/check.py")).stdout
    assert "warning  without metrics, trials are ranked by their seconds" in checked
    assert not (project.folder / "ran").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "name your training script, as in `"),
        ({"train.py": OPTIONS, "trainyard.yaml": "mine"}, "trainyard.yaml exists, and no file is overwritten"),
        ({"train.py": "print(1)"}, "docs/your-script.md\n"),
        ({"train.py": "import json, wandb"}, "docs/trackers.md for settings of wandb.config\n"),
        ({"train.py": "LR = 0.1"}, "make options of its constants, as by argparse: LR = 0.1 in train.py, line 1."),
        (
            {"train.py": "import argparse\nargparse.ArgumentParser().add_argument('--config')"},
            "if --config takes a file of settings, name it, as in `trainyard init python train.py --config conf.yaml`",
        ),
        (
            {"train.py": "import sys\nsys.argv.index('--config')"},
            "name it, as in `trainyard init python train.py --config conf",
        ),
        ({"run.sh": "python train.py --lr $1"}, "run.sh reads no variable that a sweep could vary: give its settings"),
        ({"run.pl": "#!/usr/bin/perl\nprint 1;\n"}, "as in `command: ./run.pl {lr}`"),
        ({"train.ipynb": '{"cells": []}'}, "train.ipynb is no script: name a .py file"),
    ],
)
def test_what_cannot_be_done_is_said(project, files, message):
    for name, text in files.items():
        (project.folder / name).write_text(text)
    named = [name for name in files if name.endswith((".sh", ".pl", ".ipynb"))]
    done = project.run(sys.executable, str(ROOT / "scripts/init.py"), *named, check=False)
    assert (done.returncode, message in done.stdout) == (1, True), done.stdout
    assert {path.name: path.read_text() for path in project.folder.iterdir()} == files


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train.py", "--out", "model.pt"], 1, "--out model.pt: the config that is written ends in .yaml"),
        (["python train.py --name it's"], 2, "no closing quotation"),
    ],
)
def test_words_that_would_write_elsewhere_or_cannot_be_split_are_refused(project, words, code, message):
    (project.folder / "train.py").write_text(OPTIONS)
    done = project.run(sys.executable, str(ROOT / "scripts/init.py"), *words, check=False)
    said = f"{done.stdout}{done.stderr}"
    assert (done.returncode, message in said) == (code, True), said
    assert [path.name for path in project.folder.iterdir()] == ["train.py"]


def test_on_a_cluster_the_profile_is_written_unless_there_is_one(slurm, project, init):
    slurm.prints("sinfo", "gpu*|up|2:00:00|4|8|64000|gpu:a100:2|(null)")
    slurm.prints("sacctmgr", "lab|normal")
    for before in (False, True):
        (project.folder / "trainyard.yaml").unlink(missing_ok=True)
        output, _ = init(OPTIONS, "--no-run")
        path = project.folder / "profiles/slurm/config.yaml"
        assert ("wrote profiles/slurm/config.yaml" in output) is not before
        settings = read_file(path)["default-resources"]
        assert (settings["slurm_account"], settings["slurm_partition"]) == ("lab", "gpu")


@pytest.mark.parametrize("files", [{}, {"train.py": "print(1)"}, {"train.py": OPTIONS, "trainyard.yaml": "mine"}])
def test_on_a_cluster_the_profile_is_written_also_for_a_config_by_hand(slurm, project, files):
    slurm.prints("sinfo", "gpu*|up|2:00:00|4|8|64000|gpu:a100:2|(null)")
    slurm.prints("sacctmgr", "lab|normal")
    for name, text in files.items():
        (project.folder / name).write_text(text)
    done = project.run(sys.executable, str(ROOT / "scripts/init.py"), check=False)
    assert "wrote profiles/slurm/config.yaml" in done.stdout
