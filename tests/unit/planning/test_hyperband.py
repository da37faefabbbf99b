"""Hyperband ends the trials that Optuna's would end; what other jobs have judged counts; and what a rule needs."""

import random
import subprocess
import sys
from dataclasses import replace

import optuna
import pytest
from trainyard.config.sweep import CommandSweep, Stop, TrainSweep
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.attempts import Attempt
from trainyard.planning.early_stopping import EarlyStoppingRule
from trainyard.planning.history import read_state
from trainyard.planning.journal import Ended, Epoch
from trainyard.utils.import_path import SCRIPTS

EPOCHS = 20
FINISHED = TrialStatus.FINISHED


def rule(method, known=(), *, mode="max", epochs=EPOCHS, **fields):
    return EarlyStoppingRule(Stop(method=method, epochs=epochs, **fields), "score", mode, known)


def curve(number):
    generator = random.Random(number)
    return [generator.random() * 0.2 + (1 - 2 ** (-epoch / 5)) * number / 30 for epoch in range(1, EPOCHS + 1)]


def row(epoch, value):
    return {"epoch": epoch, "score": value}


def finished(name, values, outcome=FINISHED):
    return Attempt(name, 1, 0, 99, outcome=outcome, epochs=[row(*each) for each in enumerate(values, start=1)])


def test_the_median_rule_judges_the_epoch_after_which_the_driver_was_killed():
    others = [finished(name, [0.5] * 9) for name in "bcdef"]
    killed = replace(finished("a", [0.4, 0.4, 0.9], TrialStatus.INTERRUPTED), end=2, epoch_times={1: 1, 2: 2})
    killed.epochs.pop()
    reason = rule("median", [*others, killed]).verdict("a", row(3, 0.9))
    assert reason.startswith("median: its best value by epoch 2, 0.4, is worse")


@pytest.mark.parametrize("method", ["asha", "median"])
@pytest.mark.parametrize("killed", [True, False])
def test_what_another_job_has_judged_is_not_judged_again(method, killed):
    """It has judged an epoch if it reports the next one; otherwise it was killed before."""
    judge = rule(method)
    judge.on_event(Epoch(trial="a", attempt=1, metrics=row(1, 0.1)), is_own=False)
    for name in "bcdefg":
        judge.on_event(Epoch(trial=name, attempt=1, metrics=row(1, 0.5)), is_own=False)
        judge.on_event(Ended(trial=name, attempt=1, status=FINISHED), is_own=False)
    if not killed:
        judge.on_event(Epoch(trial="a", attempt=1, metrics=row(2, 0.9)), is_own=False)
    assert bool(judge.verdict("a", row(3, 0.9))) == killed


@pytest.mark.parametrize("first", [0, 1])
def test_the_last_epoch_is_never_judged(first):
    judge = rule("hyperband", grace_period=EPOCHS - 1 + first)
    for number in range(9):
        for epoch in (first, EPOCHS - 1 + first):
            assert judge.verdict(f"t{number}", row(epoch, -number)) == ""


def test_hyperband_halves_in_optunas_brackets():
    """Each bracket ends the trials that Optuna's successive halving ends, and has as many as Optuna gives it."""
    stop = Stop(method="hyperband", epochs=27, reduction_factor=3)
    judge = EarlyStoppingRule(stop, "score", "max")
    names = [f"{number:010x}" for number in range(4000)]
    by_bracket = [[], [], [], []]
    for name in names:
        by_bracket[judge.bracket(name)].append(name)
    reference = optuna.pruners.HyperbandPruner(1, 27, 3)
    study = optuna.create_study(pruner=reference, direction="maximize")
    reference.prune(study, optuna.trial.create_trial(value=0.0))
    budgets = reference._trial_allocation_budgets
    for trials, budget in zip(by_bracket, budgets, strict=True):
        assert len(trials) / len(names) == pytest.approx(budget / sum(budgets), abs=0.03)
    for bracket, trials in enumerate(by_bracket):
        pruner = optuna.pruners.SuccessiveHalvingPruner(1, reduction_factor=3, min_early_stopping_rate=bracket)
        curves = {name: (curve(int(name, 16) % 30) * 2)[:27] for name in trials[:60]}
        study, expected, ends = optuna.create_study(direction="maximize", pruner=pruner), {}, {}
        for name, values in curves.items():
            trial = study.ask()
            for epoch, value in enumerate(values, start=1):
                trial.report(value, epoch)
                expected.setdefault(name, epoch) if epoch < 27 and trial.should_prune() else None
                if judge.verdict(name, row(epoch, value)):
                    ends.setdefault(name, epoch)
                if name in expected:
                    break
        assert ends == expected
        assert bool(ends) == (bracket < 3), "the last one ends none"


def test_optuna_is_not_imported():
    """It takes a third of a second, in each process that reads the config."""
    code = """
import sys
from trainyard.config.sweep import Stop
from trainyard.planning.early_stopping import EarlyStoppingRule
EarlyStoppingRule(Stop(method="hyperband", epochs=9), "loss", "min").verdict("a", {"epoch": 1, "loss": 1})
assert "optuna" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(SCRIPTS)}, check=True)


def test_hyperband_knows_the_epochs_of_a_training(tmp_path):
    sweep = {"dataset": "d", "train": {"epochs": 9}, "grid": {"lr": [0.1, 0.2]}, "stop": {"method": "hyperband"}}
    state = read_state(TrainSweep.model_validate(sweep), "s", tmp_path)
    assert EarlyStoppingRule.of(state).content == state.stop_rule
    assert state.stop_rule["epochs"] == 9
    command = {"command": "true {x}", "metrics": {"file": "m.json"}, "grid": {"x": [1]}, "stop": sweep["stop"]}
    for kind, wrong in [
        (TrainSweep, sweep | {"grid": {"epochs": [3, 9]}}),
        (TrainSweep, sweep | {"stop": {"method": "hyperband", "grace_period": 10}}),
        (CommandSweep, command),
    ]:
        with pytest.raises(ValueError, match="hyperband needs the `epochs` of a complete trial"):
            kind.model_validate(wrong)


def test_the_journal_has_the_rule():
    shared = {"metric": "loss", "mode": "min", "grace_period": 1}
    assert Stop(method="asha", epochs=9).rule("loss", "min") == {**shared, "method": "asha", "reduction_factor": 3}
    assert Stop(method="median").rule("loss", "min") == {**shared, "method": "median"}
    assert Stop(method="hyperband", epochs=9).rule("loss", "min") == {
        **shared, "method": "hyperband", "reduction_factor": 3, "epochs": 9
    }  # fmt: skip
