"""Trials that Optuna's pruners end, and those that Hyperband ends, are the ones that Optuna itself would end."""

import math
import random
import re
import subprocess
import sys
import warnings
from dataclasses import replace

import optuna
import pytest
from trainyard.config.sweep import CommandSweep, Stop, TrainSweep
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.attempts import Attempt
from trainyard.planning.early_stopping import EarlyStoppingRule
from trainyard.planning.journal import Ended, Epoch
from trainyard.planning.plan import read_state
from trainyard.utils.import_path import SCRIPTS

EPOCHS = 20
FINISHED, DIVERGED, RUNNING = TrialStatus.FINISHED, TrialStatus.DIVERGED, TrialStatus.RUNNING
PRUNERS = {
    "percentile": ({"percentile": 40.0, "n_startup_trials": 3, "n_warmup_steps": 2}, optuna.pruners.PercentilePruner),
    "patient": ({"patience": 2, "min_delta": 0.01}, lambda **given: optuna.pruners.PatientPruner(None, **given)),
    "threshold": ({"lower": 0.2, "n_warmup_steps": 4, "interval_steps": 3}, optuna.pruners.ThresholdPruner),
    "wilcoxon": ({"p_threshold": 0.2, "n_startup_steps": 4}, optuna.pruners.WilcoxonPruner),
}


def rule(method, known=(), *, mode="max", epochs=EPOCHS, **fields):
    return EarlyStoppingRule(Stop(method=method, epochs=epochs, **fields), "score", mode, known)


def curve(number):
    generator = random.Random(number)
    return [generator.random() * 0.2 + (1 - 2 ** (-epoch / 5)) * number / 30 for epoch in range(1, EPOCHS + 1)]


def row(epoch, value):
    return {"epoch": epoch, "score": value}


def finished(name, values, outcome=FINISHED):
    return Attempt(name, 1, 0, 99, outcome=outcome, epochs=[row(*each) for each in enumerate(values, start=1)])


def ended_by_optuna(pruner, curves, mode):
    """The epoch after which each trial ends in a study of Optuna that runs the trials one after another."""
    study, ends = optuna.create_study(direction=f"{mode}imize", pruner=pruner), {}
    for name, values in curves.items():
        trial = study.ask()
        for epoch, value in enumerate(values, start=1):
            trial.report(value, epoch)
            if epoch < EPOCHS and trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                ends[name] = epoch
                break
        else:
            study.tell(trial, sum(values) / len(values))
    return ends


def ended(judge, curves, *, first=1):
    """The epoch after which each trial ends that this rule stops."""
    ends = {}
    for name, values in curves.items():
        for epoch, value in enumerate(values, start=first):
            if judge.verdict(name, row(epoch, value)):
                ends[name] = epoch
                break
        else:
            judge.note(Ended(trial=name, attempt=1, status=FINISHED))
    return ends


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("method", PRUNERS)
def test_trials_end_where_a_study_of_optuna_ends_them(method, mode):
    options, make = PRUNERS[method]
    curves = {f"t{number}": curve(number * 7 % 30) for number in range(30)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = ended_by_optuna(make(**options), curves, mode)
    assert len(expected) >= 3
    assert ended(rule(method, mode=mode, options=options), curves) == expected


@pytest.mark.parametrize("method", PRUNERS)
def test_verdicts_are_the_same_after_a_restart_and_in_another_job(method):
    curves, options = {f"t{number}": curve(number) for number in range(9, 20)}, PRUNERS[method][0]
    whole, elsewhere = rule(method, options=options), rule(method, options=options)
    for name, values in curves.items():
        for epoch, value in enumerate(values, start=1):
            whole.verdict(name, row(epoch, value))
            elsewhere.note(Epoch(trial=name, attempt=1, metrics=row(epoch, value)))
        for each in (whole, elsewhere):
            each.note(Ended(trial=name, attempt=1, status=FINISHED))
    again = rule(method, [finished(name, values) for name, values in curves.items()], options=options)
    new = {f"new-{number}": curve(number) for number in range(0, 30, 3)}
    reasons = [
        [judge.verdict(name, row(*each)) for name, values in new.items() for each in enumerate(values, start=1)]
        for judge in (whole, elsewhere, again)
    ]
    assert any(reasons[0])
    assert reasons[0] == reasons[1] == reasons[2]


@pytest.mark.parametrize("killed_after", [4, 7, 12])
def test_with_an_interval_the_epoch_decides_after_which_the_driver_was_killed(killed_after):
    """It is in the journal, but was not judged; the trial goes on with the next one."""
    options = {"percentile": 40.0, "n_startup_trials": 3, "n_warmup_steps": 1, "interval_steps": 3}
    curves = {f"t{number}": curve(number * 7 % 30) for number in range(30)}
    expected = ended_by_optuna(optuna.pruners.PercentilePruner(**options), curves, "max")
    known, reasons = [], {}
    for name, values in curves.items():
        whole = finished(name, values)
        killed = finished(name, values[:killed_after], TrialStatus.INTERRUPTED)
        killed.end, killed.epoch_times = killed_after, {epoch: epoch for epoch in range(1, killed_after + 1)}
        before, after = (rule("percentile", tries, options=options) for tries in (known, [*known, killed]))
        for each in whole.epochs:
            if each["epoch"] != killed_after and name not in reasons:
                reason = (before if each["epoch"] < killed_after else after).verdict(name, each)
                reasons |= {name: reason} if reason else {}
        known += [] if name in reasons else [whole]
    assert {name: int(re.search(r"at epoch (\d+)", reason)[1]) for name, reason in reasons.items()} == expected
    assert (killed_after in expected.values()) == (killed_after < 12)


def test_the_median_rule_judges_the_epoch_after_which_the_driver_was_killed():
    others = [finished(name, [0.5] * 9) for name in "bcdef"]
    killed = replace(finished("a", [0.4, 0.4, 0.9], TrialStatus.INTERRUPTED), end=2, epoch_times={1: 1, 2: 2})
    killed.epochs.pop()
    reason = rule("median", [*others, killed]).verdict("a", row(3, 0.9))
    assert reason.startswith("median: its best value by epoch 2, 0.4, is worse")


@pytest.mark.parametrize("method", ["percentile", "asha", "median"])
@pytest.mark.parametrize("killed", [True, False])
def test_what_another_job_has_judged_is_not_judged_again(method, killed):
    """It has judged an epoch if it reports the next one; otherwise it was killed before."""
    options = {"options": {"percentile": 50, "n_startup_trials": 2}} if method == "percentile" else {}
    judge = rule(method, **options)
    judge.note(Epoch(trial="a", attempt=1, metrics=row(1, 0.1)), elsewhere=True)
    for name in "bcdefg":
        for epoch in range(1, EPOCHS) if method == "percentile" else [1]:
            judge.note(Epoch(trial=name, attempt=1, metrics=row(epoch, 0.5)), elsewhere=True)
        judge.note(Ended(trial=name, attempt=1, status=FINISHED), elsewhere=True)
    if not killed:
        judge.note(Epoch(trial="a", attempt=1, metrics=row(2, 0.9)), elsewhere=True)
    assert bool(judge.verdict("a", row(3, 0.9))) == killed


def test_the_reason_names_optunas_pruner():
    judge = rule("threshold", options={"upper": 0.5})
    assert judge.verdict("a", row(3, 0.51)) == "threshold: 0.51 at epoch 3, by Optuna's ThresholdPruner"
    assert judge.verdict("b", {"epoch": 1, "other": 9}) == "", "without the metric"


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_what_is_no_number_is_worst(value, mode):
    assert rule("threshold", mode=mode, options={"lower": -9}).verdict("a", row(1, value))
    better = finished("b", [0.5] * EPOCHS)
    judge = rule("percentile", [better], mode=mode, options={"percentile": 50, "n_startup_trials": 1})
    assert judge.verdict("a", row(1, value))
    judge = rule("wilcoxon", [better], mode=mode)
    assert any(judge.verdict("a", row(epoch, value)) for epoch in range(1, 9))


def test_a_diverged_trial_counts_as_the_worst_where_it_would_have_been_judged_next():
    options = {"percentile": 50, "n_startup_trials": 2}
    good = finished("good", [0.5] * EPOCHS)
    told, known = (
        rule("percentile", tries, options=options) for tries in ([good], [good, finished("bad", [0.4], DIVERGED)])
    )
    assert told.verdict("a", row(2, 0.3)) == "", "one trial has finished"
    told.verdict("bad", row(1, 0.4))
    told.note(Ended(trial="bad", attempt=1, status=DIVERGED))
    for judge in (told, known):
        assert judge.verdict("b", row(2, 0.3)) == "", "the median is between 0.5 and the worst"
        assert judge.verdict("b", row(3, 0.3)), "the diverged trial has not reached epoch 3"


@pytest.mark.parametrize("method", ["threshold", "hyperband"])
@pytest.mark.parametrize("first", [0, 1])
def test_the_last_epoch_is_never_judged(method, first):
    options = {"lower": 2, "n_warmup_steps": EPOCHS - 2 + first} if method == "threshold" else {}
    judge = rule(method, **({"options": options} if options else {"grace_period": EPOCHS - 1 + first}))
    for number in range(9):
        for epoch in (first, EPOCHS - 1 + first):
            assert judge.verdict(f"t{number}", row(epoch, -number)) == ""
    if options:
        assert rule(method, options=options).verdict("t", row(EPOCHS - 2 + first, 0))


def test_a_restarted_attempt_is_judged_by_its_own_values():
    """The attempt before had come to epoch 9; the new one starts again at epoch 1."""
    before = finished("a", [0.9] * 9, TrialStatus.INTERRUPTED)
    judge = rule(
        "percentile", [finished("b", [0.5] * EPOCHS), before], options={"percentile": 50, "n_startup_trials": 1}
    )
    assert judge.verdict("a", row(1, 0.4))
    judge = rule("patient", [before], options={"patience": 1})
    reasons = [bool(judge.verdict("a", row(epoch, 1 / epoch))) for epoch in (1, 2, 3)]
    assert reasons == [False, False, True]


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


def test_optuna_is_imported_for_its_own_pruners_only_and_logs_nothing():
    """It takes a third of a second, in each process that reads the config."""
    code = """
import sys
from trainyard.config.sweep import Stop
from trainyard.planning.early_stopping import EarlyStoppingRule
for method in ("asha", "median", "hyperband", "wilcoxon"):
    EarlyStoppingRule(Stop(method=method, epochs=9), "loss", "min").verdict("a", {"epoch": 1, "loss": 1})
    assert ("optuna" in sys.modules) == (method == "wilcoxon")
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={"PYTHONPATH": str(SCRIPTS)}, check=True, capture_output=True, text=True)
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ({"method": "percentile"}, "percentile needs the option percentile"),
        ({"method": "threshold", "options": {"uper": 1}}, "threshold has no option uper; did you mean 'upper'"),
        (
            {"method": "percentile", "options": {"percentile": "ten"}},
            "percentile: 'ten' is of another type: give float",
        ),
        ({"method": "threshold", "options": {"upper": 1, "n_warmup_steps": 2.5}}, "2.5 is of another type: give int"),
        ({"method": "threshold"}, "Either lower or upper must be specified."),
        ({"method": "patient", "options": {"patience": -1}}, "patience cannot be negative but got -1."),
        ({"method": "percentile", "grace_period": 3}, "percentile has no grace_period; it has options"),
        (
            {"method": "asha", "options": {"min_resource": 1}},
            "asha has no options; it has grace_period, reduction_factor",
        ),
    ],
)
def test_bad_options_are_named(stop, message):
    with pytest.raises(ValueError, match="1 validation error") as error:
        Stop.model_validate(stop)
    assert message in str(error.value)


def test_hyperband_knows_the_epochs_of_a_training(tmp_path):
    sweep = {"dataset": "d", "train": {"epochs": 9}, "grid": {"lr": [0.1, 0.2]}, "stop": {"method": "hyperband"}}
    state = read_state(TrainSweep.model_validate(sweep), "s", tmp_path)
    assert state.early_stopping_rule().content == state.stop_rule
    assert state.stop_rule["epochs"] == 9
    command = {"command": "true {x}", "metrics": {"file": "m.json"}, "grid": {"x": [1]}, "stop": sweep["stop"]}
    for kind, wrong in [
        (TrainSweep, sweep | {"grid": {"epochs": [3, 9]}}),
        (TrainSweep, sweep | {"stop": {"method": "hyperband", "grace_period": 10}}),
        (CommandSweep, command),
    ]:
        with pytest.raises(ValueError, match="hyperband needs the `epochs` of a complete trial"):
            kind.model_validate(wrong)


def test_the_journal_has_the_rule_with_its_options():
    assert Stop(method="patient", options={"patience": 3}).rule("loss", "min") == {
        "method": "patient",
        "options": {"patience": 3},
        "metric": "loss",
        "mode": "min",
    }
    shared = {"metric": "loss", "mode": "min", "grace_period": 1}
    assert Stop(method="asha", epochs=9).rule("loss", "min") == {**shared, "method": "asha", "reduction_factor": 3}
    assert Stop(method="median").rule("loss", "min") == {**shared, "method": "median", "min_samples": 5}
    assert Stop(method="hyperband", epochs=9).rule("loss", "min") == {
        **shared, "method": "hyperband", "reduction_factor": 3, "epochs": 9
    }  # fmt: skip
