"""Sweeps of scripts as public reports have them (`cases`): the answer says what the values are worth."""

import shutil
from copy import copy
from pathlib import Path

import yaml
from trainyard.config.load import check_config
from trainyard.planning.history import read_state
from trainyard.results.answer import answer_sweep
from trainyard.results.comparability import describe_finished_work
from trainyard.results.ranking import describe_ranking, rank_sweep
from trainyard.results.sweep_tables import ranking_table

CASES = Path(__file__).parent / "cases"
CPU = {"slots": {"cpus": 2}}


def ran(project, case, name, **changes):
    """The state of a sweep that has run, of a case or of what the folder has; `changes` are keys of the sweep."""
    if case:
        shutil.copytree(CASES / case, project.folder, dirs_exist_ok=True)
    file = project.folder / "trainyard.yaml"
    sweep = (yaml.safe_load(file.read_text())["sweeps"][name] if file.exists() else {}) | CPU | changes
    config = {"sweeps": {name: sweep}}
    project.write(config)
    project.run(*project.script("sweep", "--sweep", name))
    return read_state(check_config(config).sweeps[name], name, project.results)


def trial_with(state, **values):
    return next(name for name, trial in state.trials.items() if trial.values == values)


def test_the_answer_names_the_last_epoch_and_the_better_ones_before(project):
    state = ran(project, "03-best-epoch-not-last", "wd")
    ranking = rank_sweep(state)
    first, *more = describe_ranking(ranking)
    best, overfits = trial_with(state, weight_decay=0.1), trial_with(state, weight_decay=0.0)
    value = f"0.88 at its last epoch, 10 of 10, by trial {best} with weight_decay = 0.1"
    assert first == f"best val_acc (highest, guessed from its name): {value}"
    assert more[-1] == (
        f"with `score: best`, the answer would be 0.93, its best, at epoch 4 of 10, by trial {overfits} with "
        "weight_decay = 0.0; 2 of 3 trials had a better val_acc before their last epoch"
    )
    assert f"# Sweep wd: {first}\n# {more[0]}" in (state.folder / "best.yaml").read_text()
    rows = ranking_table(ranking).set_index("weight_decay")
    epochs = rows[["val_acc_epoch", "val_acc_epochs", "val_acc_at_best_epoch", "val_acc_best_epoch"]]
    assert epochs.loc[0.0].tolist() == [10, 10, 0.93, 4]
    assert epochs.loc[0.1].tolist() == [10, 10, 0.88, 10]
    assert describe_finished_work(state) == []


# It resumes by itself from a folder that all trials share, and the first trial fails.
SHARED = """
import pathlib, sys
state = pathlib.Path("last.txt")
first = int(state.read_text()) + 1 if state.exists() else 1
for epoch in range(first, 7):
    print(f"epoch {epoch} acc {epoch / 10}", flush=True)
    state.write_text(str(epoch))
    if epoch == 3 and first == 1:
        sys.exit("it failed")
"""


def test_a_trial_that_resumes_from_the_checkpoint_of_another_is_said(project):
    (project.folder / "train.py").write_text(SHARED)
    pattern = "epoch (?P<epoch>{number}) acc (?P<acc>{number})"
    keys = {"command": "python train.py {lr} > >(tee {trial_dir}/log)", "grid": {"lr": [1, 2]}, "slots": {"cpus": 1}}
    options = {"metrics": {"pattern": pattern}, "retries": 0, "max_failed_fraction": 1}
    state = ran(project, "", "shared", **keys, **options)
    said = [line for line in describe_finished_work(state) if "began with a later epoch" in line]
    assert len(said) == 1
    assert said[0].startswith("1 of 1 finished trial began with a later epoch than others, as trial ")
    assert "with epoch 4: it may have resumed from the checkpoint of another trial" in said[0]


def test_programs_that_end_early_by_themselves_are_said_to_have_different_numbers_of_epochs(project):
    state = ran(project, "03-best-epoch-not-last", "early")
    first, different, equal, _ = describe_ranking(rank_sweep(state))
    assert ": 0.88 at its last epoch, 9 of 9, by trial " in first
    names = [trial_with(state, weight_decay=each) for each in (0.0, 0.01, 0.1)]
    counts = ", ".join(f"{epochs} (trial {name})" for epochs, name in zip((7, 9, 10), names, strict=True))
    assert different == (
        f"the finished trials have different last epochs, {counts}, and no key explains it: their values may not "
        "compare"
    )
    assert equal == "equal to it: weight_decay = 0.1"
    assert describe_finished_work(state) == [different], "as `status` shows it"


def test_with_score_best_the_best_epoch_wins_and_the_checkpoint_of_it_is_named(project):
    state = ran(project, "03-best-epoch-not-last", "early", score="best")
    overfits = trial_with(state, weight_decay=0.0)
    first = describe_ranking(rank_sweep(state))[0]
    best = f"0.93, its best, at epoch 4 of 7, by trial {overfits} with weight_decay = 0.0"
    assert first == f"best val_acc (highest, guessed from its name): {best}"
    written = (state.folder / "best.yaml").read_text()
    assert f"# Sweep early: {first}" in written
    (checkpoint,) = (state.folder / "trials").glob(f"{overfits}*/best.ckpt")
    assert f"# Its files: {checkpoint}\n" in written
    assert checkpoint.read_text() == "epoch 4"


def test_a_program_that_exits_with_0_before_its_total_is_said_to_be_incomplete(project):
    """The first one would have the best loss if it were complete."""
    state = ran(
        project,
        "13-exit-0-not-done",
        "pieces",
        command="python train.py --lr {lr} --save {trial_dir} --exit-duration-in-secs {limit}",
        trials=[{"lr": 0.01, "limit": 0}, {"lr": 0.1, "limit": 1e9}],
        metrics={"pattern": r"iteration +(?P<epoch>\d+)/.*lm loss: (?P<lm_loss>{number})"},
    )
    first, incomplete, *_ = describe_ranking(rank_sweep(state))
    stopped = trial_with(state, lr=0.01, limit=0)
    assert ": 2 at its last epoch, 10 of 10, by trial " in first
    assert incomplete == (
        "1 of 2 finished trials is not complete: its program ended early with exit code 0, trial "
        f"{stopped} at iteration 1 of 10; `complete` says when they are, and they go on until then"
    )
    assert describe_finished_work(state) == [incomplete]
    turned = copy(state)
    turned.sweep = state.sweep.model_copy(update={"mode": "max"})
    assert describe_ranking(rank_sweep(turned))[0].endswith(
        ", which is NOT COMPLETE: it ended early, at iteration 1 of 10"
    )


NEVER_READ = """
import argparse, time

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--label-smoothing", type=float)
args = parser.parse_args()
began, loss = time.perf_counter(), 2.302585
for epoch in (1, 2, 3):
    loss *= 1 - args.lr
    print(f"epoch {epoch}/3 loss {loss:.6f} took {time.perf_counter() - began:.9f} s", flush=True)
"""


def test_an_option_that_the_program_never_reads_has_no_effect(project):
    (project.folder / "train.py").write_text(NEVER_READ)
    state = ran(
        project,
        None,
        "smoothing",
        command="python train.py --lr {lr} --label-smoothing {smoothing}",
        grid={"lr": [0.1, 0.2], "smoothing": [0.0, 0.1]},
        metrics={"pattern": r"epoch (?P<epoch>\d+)/3 loss (?P<loss>{number}) took (?P<epoch_seconds>{number})"},
        metric="loss",
    )
    first, second = (trial_with(state, lr=0.2, smoothing=each) for each in (0.0, 0.1))
    assert answer_sweep(state).lines[-1] == (
        f"`smoothing` has no effect: trials {first} and {second} are identical in all that they report, times aside"
    )
