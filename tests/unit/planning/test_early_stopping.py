"""Trials that are ended early are those that the papers' rules end, whatever the order in which they report."""

import math
import random
import statistics
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_journals import session_of
from trainyard.config.load import check_config
from trainyard.config.sweep import Stop
from trainyard.config.trial_status import TrialStatus
from trainyard.planning import early_stopping
from trainyard.planning.attempts import Attempt
from trainyard.planning.early_stopping import EarlyStoppingRule
from trainyard.planning.job_costs import summarize_plan
from trainyard.planning.journal import Ended, Started
from trainyard.planning.plan import plan_sweep

RUNGS = (1, 3, 9)  # of 27 epochs, a third goes on at each


def rule(known=(), *, metric="val_accuracy", mode="max", **fields):
    stop = Stop.model_validate({"method": "asha", "epochs": 27, **fields})
    return EarlyStoppingRule(stop, metric, mode, known)


@pytest.fixture
def few(monkeypatch):
    """The median of fewer trials decides."""
    monkeypatch.setattr(early_stopping, "MEDIAN_TRIALS", 1)


def ended(trial, status=TrialStatus.DIVERGED):
    return Ended(trial=trial, attempt=1, status=status)


def curve(trial):
    """A synthetic learning curve that rises to its own ceiling; some are slow, so that curves cross."""
    ceiling, pace = (trial * 7 % 27) / 27, 1 + trial % 4
    return [ceiling * (1 - 2 ** (-epoch / pace)) for epoch in range(1, 28)]


CURVES = {f"trial-{number:02}": curve(number) for number in range(27)}


def reported(rule, order):
    """Have the curves report epoch by epoch, each trial as far as it is let; the epoch of its end by trial."""
    ends, alive = {}, list(CURVES)
    at = dict.fromkeys(CURVES, 0)
    generator = random.Random(order)
    while alive:
        trial = generator.choice(alive) if order is not None else min(alive, key=lambda name: (at[name], name))
        at[trial] += 1
        row = {"epoch": at[trial], "val_accuracy": CURVES[trial][at[trial] - 1]}
        if rule.verdict(trial, row) or at[trial] == 27:
            ends[trial] = at[trial]
            alive.remove(trial)
        yield trial, at[trial], ends.get(trial)


@pytest.mark.parametrize("order", [None, 0, 1, 2, 3])
def test_27_curves_are_stopped_as_in_the_paper(order):
    """Algorithm 2 of Li et al. 2020 lets go on what is among the top |rung| / eta of a rung; with none, the best."""
    arrived = {rung: [] for rung in RUNGS}
    for trial, epoch, end in reported(rule(), order):
        goes_on = True
        if epoch in RUNGS:
            arrived[epoch].append(trial)
            top_k = sorted(arrived[epoch], key=lambda name: -CURVES[name][epoch - 1])[
                : max(1, len(arrived[epoch]) // 3)
            ]
            goes_on = trial in top_k
        assert (end is None) == (goes_on and epoch < 27), f"{trial} at epoch {epoch}"


def test_trials_that_are_evaluated_at_fractions_of_an_epoch_are_judged_once_at_the_rung():
    """As Hugging Face evaluates, at 0.5, 1, 1.5: one trial at 1 was compared with another one at 1.5, and ended."""
    judge = rule(epochs=9)
    best, other = [0.5, 0.6, 0.7, 0.8], [0.3, 0.4, 0.65, 0.7]
    for epoch, value in zip((0.5, 1.0, 1.5, 2.0), other, strict=True):
        assert judge.verdict("other", {"epoch": epoch, "val_accuracy": value}) == ""
    for epoch, value in zip((0.5, 1, 1.5, 2.0), best, strict=True):
        assert judge.verdict("best", {"epoch": epoch, "val_accuracy": value}) == ""
    for epoch, value in ((0.4, 0.2), (0.8, 0.3)):
        assert judge.verdict("worst", {"epoch": epoch, "val_accuracy": value}) == "", f"{epoch} is before the rung"
    why = judge.verdict("worst", {"epoch": 1.2, "val_accuracy": 0.35})
    assert why == "asha: rank 3 of the 3 that have reached epoch 1.2; the best 1 continue"


def test_the_median_of_trials_that_are_evaluated_at_fractions_is_that_at_the_epoch_as_it_is(few):
    judge = rule(method="median", epochs=3)
    for epoch, value in ((0.5, 0.5), (1, 0.6), (1.5, 0.9)):
        assert judge.verdict("a", {"epoch": epoch, "val_accuracy": value}) == ""
    assert judge.verdict("b", {"epoch": 0.5, "val_accuracy": 0.1}) == "", "before the grace period"
    assert judge.verdict("b", {"epoch": 1, "val_accuracy": 0.56}) == "", "better than the mean of 0.5 and 0.6"
    assert "by epoch 1.5, 0.6, is worse than 0.6667" in judge.verdict("b", {"epoch": 1.5, "val_accuracy": 0.6})


def test_one_that_diverged_before_the_first_rung_counts_there_as_the_worst():
    judge = rule(epochs=9)
    judge.verdict("bad", {"epoch": 0.5, "val_accuracy": 0.9})
    judge.on_event(ended("bad"), is_own=True)
    for trial, value in (("a", 0.5), ("b", 0.4)):
        why = judge.verdict(trial, {"epoch": 1, "val_accuracy": value})
    assert why == "asha: rank 2 of the 3 that have reached epoch 1; the best 1 continue"


def test_trials_that_report_every_fifth_epoch_are_judged_at_their_first_report_after_a_rung():
    """The rungs are 1, 3, 9 and 27."""
    judge, ends = rule(epochs=40), {}
    for epoch in range(5, 41, 5):
        for trial in (f"t{number:02}" for number in reversed(range(12)) if f"t{number:02}" not in ends):
            if why := judge.verdict(trial, {"epoch": epoch, "val_accuracy": int(trial[1:])}):
                ends[trial] = epoch
                assert f"reached epoch {epoch};" in why
    assert ends == {f"t{number:02}": 5 for number in range(11)}


def test_a_trial_that_reports_seldom_is_compared_with_what_others_had_at_its_epoch():
    judge = rule()
    for name, values in {"a": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6), "b": (0.1, 0.2, 0.25)}.items():
        for epoch, value in enumerate(values, start=1):
            judge.verdict(name, {"epoch": epoch, "val_accuracy": value})
    assert judge.verdict("c", {"epoch": 5, "val_accuracy": 0.55}) == "", "not with 0.6, of epoch 6"
    assert judge.verdict("d", {"epoch": 5, "val_accuracy": 0.27}) == (
        "asha: rank 3 of the 4 that have reached epoch 5; the best 1 continue"  # b was stopped at epoch 3, the rung
    )


def test_what_was_reported_but_never_judged_is_judged_when_the_trial_goes_on():
    """The driver was killed when the trial was at a rung; what it had printed is known from its output."""
    known = [Attempt(f"t{number}", 1, 0, 0, epochs=[{"epoch": 3, "val_accuracy": number}]) for number in range(3)]
    judge = rule(known, epochs=None)
    assert judge.verdict("t2", {"epoch": 4, "val_accuracy": 0}) == "", "its value at the rung counts"
    assert judge.verdict("t0", {"epoch": 4, "val_accuracy": 9}).startswith("asha: rank 3 of the 3 that have reached ep")
    assert judge.verdict("t2", {"epoch": 5, "val_accuracy": 0}) == "", "it was judged"


@pytest.mark.parametrize("resumed_at", [2, 3])  # a checkpoint may be older than the last epoch
def test_a_trial_that_goes_on_after_an_interruption_is_not_judged_again_before_the_next_rung(resumed_at):
    others = [Attempt(f"t{n}", 1, 0, 9, epochs=[{"epoch": 1, "val_accuracy": n}], epoch_times={1: 1}) for n in range(9)]
    rows = [{"epoch": epoch, "val_accuracy": 0.5} for epoch in (1, 2)]
    first = Attempt("first", 1, 0, 9, outcome=TrialStatus.INTERRUPTED, epochs=rows, epoch_times={1: 1, 2: 2})
    judge = rule([first, *others], epochs=None)
    judged = [judge.verdict("first", {"epoch": epoch, "val_accuracy": 0.5}) for epoch in range(resumed_at, 9)]
    assert not any(judged)
    assert judge.verdict("t8", {"epoch": 3, "val_accuracy": 9}) == ""
    stopped = Attempt(
        "t0", 1, 0, 9, outcome=TrialStatus.STOPPED, epochs=others[0].epochs, epoch_times={1: 1}, rule={"a": 1}
    )
    judge = rule([stopped, *others[1:]], epochs=None)
    assert "that have reached epoch 1;" in judge.verdict("t0", {"epoch": 2, "val_accuracy": 0}), "by another rule"


def test_a_trial_is_not_ended_at_its_last_epoch():
    judge = rule(epochs=9)
    for number in range(9):
        assert judge.verdict(f"{number}", {"epoch": 9, "val_accuracy": -number}) == ""


@pytest.mark.parametrize("method", ["asha", "median"])
def test_a_trial_that_counts_from_0_is_not_ended_at_its_last_epoch_either(few, method):
    """Of 10 epochs, the last one is 9, at which others that count from 1 are compared."""
    judge = rule(epochs=10, method=method)
    for number in range(9):
        assert judge.verdict(f"{number}", {"epoch": 0, "val_accuracy": 1}) == ""
        assert judge.verdict(f"{number}", {"epoch": 9, "val_accuracy": 2 - number}) == ""
    judge.verdict("from 1", {"epoch": 1, "val_accuracy": -9})
    judge.verdict("better", {"epoch": 1, "val_accuracy": 1})
    judge.verdict("better", {"epoch": 9, "val_accuracy": 9})
    assert judge.verdict("from 1", {"epoch": 9, "val_accuracy": -9})


def test_less_may_be_better_and_what_is_no_number_is_worst():
    judge = rule(mode="min", metric="loss")
    assert judge.verdict("a", {"epoch": 1, "loss": 0.5}) == ""
    assert judge.verdict("b", {"epoch": 1, "loss": 0.4}) == ""
    assert judge.verdict("c", {"epoch": 1, "loss": float("nan")}) == (
        "asha: rank 3 of the 3 that have reached epoch 1; the best 1 continue"
    )
    assert judge.verdict("d", {"epoch": 1, "loss": None}).startswith("asha: ")


@pytest.mark.parametrize("method", ["asha", "median"])
def test_a_new_value_of_an_epoch_is_judged_again_and_does_not_compete_with_the_old_one(method):
    known = [Attempt(f"t{number}", 1, 0, 0, epochs=[{"epoch": 1, "val_accuracy": number}]) for number in range(1, 7)]
    judge = rule(known, method=method, epochs=None)
    why = judge.verdict("t1", {"epoch": 1, "val_accuracy": 1})
    assert why.startswith("asha: rank 6 of the 6" if method == "asha" else "median: its best value by epoch 1, 1, ")
    assert judge.verdict("t6", {"epoch": 1, "val_accuracy": 6}) == ""
    assert judge.verdict("t1", {"epoch": 1, "val_accuracy": 1}) == "", "the same one was judged"
    assert judge.verdict("t1", {"epoch": 1, "val_accuracy": 7}) == "", "the new value counts"
    assert judge.verdict("t6", {"epoch": 1, "val_accuracy": 0}), "and the old one does not"


def test_a_row_without_the_metric_is_not_judged():
    judge = rule(metric="loss", mode="min")
    for number in range(4):
        assert judge.verdict(f"t{number}", {"epoch": 1, "loss": number}) == "" or number
    assert judge.verdict("other", {"epoch": 1, "train_loss": 3}) == ""
    assert judge.verdict("other", {"epoch": 1, "loss": 0.5}).startswith("asha: rank 2 of the 5")


def test_a_trial_that_diverged_is_the_worst_where_it_would_have_been_judged_next():
    judge = rule(grace_period=3)
    judge.verdict("a", {"epoch": 3, "val_accuracy": 0.5})
    judge.verdict("b", {"epoch": 3, "val_accuracy": 0.6})
    judge.verdict("c", {"epoch": 1, "val_accuracy": 0.9})
    assert judge.verdict("d", {"epoch": 3, "val_accuracy": 0.1}).startswith("asha: rank 3 of the 3")
    judge.on_event(ended("c"), is_own=True)
    assert judge.verdict("e", {"epoch": 3, "val_accuracy": 0.05}).startswith("asha: rank 4 of the 5")
    diverged = Attempt("c", 1, 0, 0, outcome="diverged", epochs=[{"epoch": 1, "val_accuracy": 0.9}])
    again = rule([diverged], grace_period=3, epochs=None)
    assert again.verdict("a", {"epoch": 3, "val_accuracy": -100}) == ""
    assert again.verdict("b", {"epoch": 3, "val_accuracy": -101}).startswith("asha: rank 2 of the 3")


def test_the_median_rule_takes_a_diverged_trial_for_the_worst(monkeypatch):
    monkeypatch.setattr(early_stopping, "MEDIAN_TRIALS", 2)
    judge = rule(method="median")
    judge.verdict("a", {"epoch": 1, "val_accuracy": 0.5})
    judge.on_event(ended("b"), is_own=True)
    assert judge.verdict("c", {"epoch": 1, "val_accuracy": 0.4}) == "", "the median is between 0.5 and the worst"
    assert judge.verdict("d", {"epoch": 1, "val_accuracy": 0.3}).startswith("median: ")


def as_written(curves, trial, epoch, stop, least):
    """The median rule, computed from all curves: (the best value, the median, how many others), or None to go on."""
    others = [curve for name, curve in curves.items() if name != trial and min(curve) <= epoch <= max(curve)]
    means = [statistics.fmean(value for at, value in curve.items() if at <= epoch) for curve in others]
    is_last = stop.epochs in (epoch, epoch + (min(curves[trial]) == 0))
    if epoch < stop.grace_period or is_last or len(means) < least:
        return None
    best, median = max(value for at, value in curves[trial].items() if at <= epoch), statistics.median(means)
    return None if best >= median else (best, median, len(means))


VALUES = st.one_of(st.floats(-1, 1), st.sampled_from([0.0, 0.1, 0.2, 0.3, None, math.nan, -math.inf]))


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), VALUES), max_size=60), st.integers(1, 3))
def test_the_median_rule_is_the_formula_whatever_is_told_in_whatever_order(told, least):
    stop = Stop(method="median", grace_period=2, epochs=6)
    judge, curves = EarlyStoppingRule(stop, "val_accuracy", "max"), defaultdict(dict)
    for trial, epoch, value in told:
        before, now = curves[trial].get(epoch), value if value is not None and math.isfinite(value) else -math.inf
        curves[trial][epoch] = now
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(early_stopping, "MEDIAN_TRIALS", least)
            why = judge.verdict(str(trial), {"epoch": epoch, "val_accuracy": value})
        expected = None if before == now else as_written(curves, trial, epoch, stop, least)
        words = ""
        if expected:
            best, median, others = expected
            words = (
                f"median: its best value by epoch {epoch}, {best:.4g}, is worse than {median:.4g}, the median of "
                f"the means of {others} other trials"
            )
        assert why == words


@pytest.mark.parametrize(("trials", "epochs"), [(300, 5), (5, 300)])
@pytest.mark.parametrize("by", ["epoch", "trial"])
def test_the_median_rule_takes_the_mean_of_a_trial_at_most_once_for_each_report(monkeypatch, trials, epochs, by):
    calls, fsum = [], math.fsum
    monkeypatch.setattr(math, "fsum", lambda values: calls.append(1) or fsum(values))
    judge = rule(method="median", grace_period=1, epochs=None)
    rows = [(trial, epoch) for epoch in range(1, epochs + 1) for trial in range(trials)]
    for trial, epoch in rows if by == "epoch" else sorted(rows):
        judge.verdict(f"{trial}", {"epoch": epoch, "val_accuracy": trial})
    assert len(calls) <= len(rows)


@pytest.mark.parametrize("method", ["median", "asha"])
def test_a_trial_that_starts_again_and_reports_other_values_costs_no_score_for_each_epoch_it_had(monkeypatch, method):
    """An attempt without a checkpoint: every epoch that it reports again would change all later scores."""
    calls, comparison = [], early_stopping._Comparison
    score_of = comparison._score_of
    monkeypatch.setattr(comparison, "_score_of", lambda self, values: calls.append(1) or score_of(self, values))
    judge = rule(method=method, grace_period=1, epochs=None)
    epochs = 200
    for loss in (0.5, 0.4):
        for epoch in range(1, epochs + 1):
            judge.verdict("a", {"epoch": epoch, "val_accuracy": loss})
    assert len(calls) <= 2 * epochs


def test_the_median_rule_takes_values_whose_sum_overflows_and_epochs_that_are_far_apart(monkeypatch):
    monkeypatch.setattr(early_stopping, "MEDIAN_TRIALS", 3)
    judge = rule(method="median", metric="loss", mode="min", epochs=None)
    for trial, loss in {"a": 1e308, "b": 1.5e308, "c": 1.2e308}.items():
        for epoch in (1, 2, 10**12):
            assert judge.verdict(trial, {"epoch": epoch, "loss": loss}) == ""
    assert judge.verdict("d", {"epoch": 10**12, "loss": 1.7e308}).endswith(
        "1.2e+308, the median of the means of 3 other trials"
    )


STOP = {"method": "asha", "grace_period": 2}
LOSS = {"metric": "loss", "mode": "max"}


def swept(results, **sweep):
    """The state of a sweep of a function with four trials."""
    config = check_config({"sweeps": {"s": {"function": "os:getcwd", "grid": {"lr": [1, 2, 3, 4]}, **sweep}}})
    return plan_sweep(config, "s", results)


def stopped(results, *, rule):
    """The first trial has finished, and the second was stopped by this rule, or by one that is not recorded."""
    finished, early, *_ = swept(results).state.trials
    with session_of(results / "sweeps/s") as journal:
        for trial, status in ((finished, TrialStatus.FINISHED), (early, TrialStatus.STOPPED)):
            journal.record(Started(trial=trial, attempt=1))
            end = {"status": status, "metrics": {"loss": 0.5}, "seconds": 1.0, "rule": rule}
            why = "asha: rank 2 of the 2" if trial == early else None
            journal.record(Ended(trial=trial, attempt=1, why=why, **end))
    return early


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        ({}, ""),
        ({"stop": {**STOP, "epochs": 27}}, ""),
        ({"mode": "min"}, "1 stopped early by another rule, with mode: max"),
        ({"metric": "val_loss"}, "1 stopped early by another rule, with metric: loss"),
        ({"stop": {**STOP, "reduction_factor": 4}}, "1 stopped early by another rule, with reduction_factor: 3"),
        ({"stop": {**STOP, "method": "median"}}, "1 stopped early by another rule, with method: asha"),
        ({"stop": None}, "1 stopped early by a rule that is no longer in the config"),
    ],
)
def test_what_a_rule_has_stopped_counts_under_this_rule_only(tmp_path, now, reason):
    trial = stopped(tmp_path, rule=Stop.model_validate(STOP).rule("loss", "max"))
    plan = swept(tmp_path, **({"stop": STOP} | LOSS | now))
    assert (plan.state.record(trial).result is None) == (trial in plan.state.unfinished) == bool(reason)
    assert f"{'3 of 4 trials pending (' + reason + ')' if reason else '2 of 4 trials pending;'}" in summarize_plan(plan)


def test_what_an_old_journal_has_as_stopped_counts_under_any_rule(tmp_path):
    trial = stopped(tmp_path, rule=None)
    assert trial not in swept(tmp_path, stop=STOP, metric="loss").state.unfinished
    assert trial in swept(tmp_path).state.unfinished
