"""Which configuration of a sweep is the best: by its mean over seeds, and only by trials that count."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_journals import session_of
from trainyard.config.load import check_config
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.history import read_state
from trainyard.planning.journal import Ended, Epoch, Started
from trainyard.planning.trial_value import TrialValue
from trainyard.results.answer import answer_sweep
from trainyard.results.ranking import (
    RankedTrial,
    describe_ranking,
    rank_configurations,
    rank_sweep,
)
from trainyard.results.sweep_tables import ranking_table

FINISHED, DIVERGED, STOPPED = TrialStatus.FINISHED, TrialStatus.DIVERGED, TrialStatus.STOPPED


def trials(*rows):
    """Trials (lr, score) or (lr, seed, score) or (lr, seed, score, status)."""
    whole = [(row[0], 0, row[1], FINISHED) if len(row) == 2 else (*row, FINISHED)[:4] for row in rows]
    return [
        RankedTrial(f"t{number}", {"lr": lr, "seed": seed}, status, None if score is None else TrialValue(score))
        for number, (lr, seed, score, status) in enumerate(whole)
    ]


def order(mode, *rows):
    return [each.values["lr"] for each in rank_configurations(trials(*rows), mode)]


@pytest.mark.parametrize(
    ("mode", "rows", "expected"),
    [
        ("max", [(1, 0.5), (2, 0.9), (3, 0.7)], [2, 3, 1]),
        ("min", [(1, 0.5), (2, 0.9), (3, 0.7)], [1, 3, 2]),
        ("max", [(1, 0.5), (2, 0.5), (3, 0.5)], [1, 2, 3]),  # ties keep the config's order
        ("min", [(1, 0.5), (2, 0.5), (3, 0.5)], [1, 2, 3]),
        ("max", [(1, math.nan), (2, 0.1)], [2, 1]),
        ("min", [(1, math.nan), (2, 0.1)], [2, 1]),
        ("max", [(1, math.inf), (2, 0.1)], [2, 1]),
        ("min", [(1, -math.inf), (2, 0.1)], [2, 1]),
        ("max", [(1, None), (2, -0.1), (3, None)], [2, 1, 3]),  # neither is 0
        ("min", [(1, None), (2, 0.1), (3, None)], [2, 1, 3]),
        ("max", [(1, 0, 0.9, STOPPED), (2, 0, 0.1)], [2, 1]),  # a stopped trial was worse than others
        ("max", [(1, 0, None, DIVERGED), (2, 0, 0.1)], [2, 1]),
        ("max", [(1, 0, 0.9, TrialStatus.FAILED), (2, 0, 0.1)], [2, 1]),
        ("max", [(1, 0, 0.9), (1, 1, 0.1), (2, 0, 0.6), (2, 1, 0.6)], [2, 1]),  # by the mean, not the best seed
        ("max", [(1, 0, 0.9), (1, 1, None, DIVERGED), (2, 0, 0.1), (2, 1, 0.1)], [2, 1]),  # a seed that diverged
        ("max", [(1, 0, 0.9), (1, 1, math.nan), (2, 0, 0.1), (2, 1, 0.1)], [2, 1]),
        ("max", [(1, 0, 0.9), (1, 1, 0.95, STOPPED), (2, 0, 0.1), (2, 1, 0.1)], [2, 1]),
        ("max", [(1, 0, 0.9), (1, 1, None, TrialStatus.PENDING), (2, 0, 0.1), (2, 1, 0.1)], [1, 2]),
        ("max", [(1, 0, None, DIVERGED), (2, 0, 0.1), (2, 1, None, DIVERGED), (3, 0, None)], [2, 1, 3]),
    ],
)
def test_the_best_configuration_is_the_first(mode, rows, expected):
    assert order(mode, *rows) == expected


def test_seeds_are_one_configuration_with_mean_and_deviation():
    (one,) = rank_configurations(trials((1, 0, 0.1), (1, 1, 0.2), (1, 2, 0.6), (1, 3, None, DIVERGED)), "min")
    assert (one.values, one.n, len(one.trials)) == ({"lr": 1}, 3, 4)
    assert one.mean == pytest.approx(0.3)
    assert one.deviation == pytest.approx(0.2645751)
    assert one.best_trial("min").trial == "t0"
    assert one.best_trial("max").trial == "t2"
    (alone,) = rank_configurations(trials((1, 0.1)), "min")
    assert (alone.n, alone.mean, alone.deviation) == (1, 0.1, None)


scores = st.none() | st.floats(width=32)
statuses = st.sampled_from(list(TrialStatus))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), scores, statuses)), st.sampled_from(["min", "max"]))
def test_any_trials_can_be_ranked(rows, mode):
    found = rank_configurations(trials(*rows), mode)
    means = [each.mean for each in found if each.n and not each.is_incomplete]
    assert means == sorted(means, reverse=mode == "max")
    assert sum(len(each.trials) for each in found) == len(rows)
    assert [each.n > 0 for each in found] == sorted((each.n > 0 for each in found), reverse=True)


SWEEP = {"function": "os:getcwd", "grid": {"lr": [0.1, 0.2], "seed": [0, 1]}}


def swept(results, *ends, **changes):
    """The state of a sweep whose trials have ended so."""
    sweep = check_config({"sweeps": {"s": {**SWEEP, **changes}}}).sweeps["s"]
    with session_of(results / "sweeps/s") as journal:
        for trial, end in zip(read_state(sweep, "s", results).trials, ends, strict=False):
            journal.record(Started(trial=trial, attempt=1))
            status, metrics = end if isinstance(end, tuple) else (FINISHED, end)
            journal.record(Ended(trial=trial, attempt=1, seconds=1.0, status=status, metrics=metrics))
    return read_state(sweep, "s", results)


def test_a_sweep_is_ranked_from_its_journal(tmp_path):
    state = swept(tmp_path, {"rmse": 3.0}, {"rmse": 1.0}, {"rmse": 1.5}, {"rmse": 1.7})
    ranking = rank_sweep(state)
    assert (ranking.metric, ranking.mode, ranking.is_guessed, ranking.has_seeds) == ("rmse", "min", True, True)
    best, second = ranking.configurations
    assert (best.values, best.mean, best.n) == ({"lr": 0.2}, pytest.approx(1.6), 2)
    assert second.mean == 2.0
    assert ranking.best_trial.trial == list(state.trials)[2], "the best seed of the best configuration"


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (STOPPED, ": 4 of 4 stopped early; change or remove `stop`, and they run again"),
        (DIVERGED, ": 3 of 4 stopped early; change or remove `stop`, and they run again"),
        (None, ""),
    ],
)
def test_where_all_trials_were_stopped_early_the_answer_says_so(tmp_path, last, why):
    """But not while one of them may still finish."""
    stop = {"method": "asha"}
    ends = [STOPPED] * 3 + [last] * (last is not None)
    state = swept(tmp_path, *((end, {"gain": 0.5}) for end in ends), metric="gain", stop=stop)
    assert describe_ranking(rank_sweep(state)) == [f"no trial has finished with gain{why}"]


def test_what_is_not_a_number_in_a_journal_does_not_win(tmp_path):
    ranking = rank_sweep(swept(tmp_path, {"gain": None}, (DIVERGED, {}), {"gain": 0.5}, metric="gain", mode="min"))
    assert [(each.values["lr"], each.n, each.is_incomplete) for each in ranking.configurations] == [
        (0.2, 1, False),
        (0.1, 0, True),
    ]
    assert not ranking.is_guessed


def test_the_answer_names_finished_trials_that_it_cannot_rank(tmp_path):
    grid = {"lr": [1, 2, 3]}
    state = swept(tmp_path, {"gain": None}, {"loss": 0.1}, {"gain": 0.5}, grid=grid, metric="gain")
    first, second, _ = state.trials
    assert answer_sweep(state).lines[-2:] == [
        f"not ranked, since their gain is NaN or infinite: 1 finished trial, {first}",
        f"not ranked, since they do not report gain: 1 finished trial, {second}",
    ]


def test_without_metrics_the_fastest_trial_is_the_best(tmp_path):
    ranking = rank_sweep(swept(tmp_path, {}, {}, grid={"lr": [1, 2]}))
    assert (ranking.metric, ranking.mode, ranking.best_trial.score) == ("seconds", "min", 1.0)


def test_of_several_metrics_none_ranks_trials_unless_the_config_says_which(tmp_path):
    state = swept(tmp_path, {"step": 900, "loss": 3.0, "gain": 1}, {"step": 900, "loss": 1.0, "gain": 2})
    ranking = rank_sweep(state)
    assert (ranking.best_trial, ranking.counting, ranking.candidates) == (None, [], ("loss", "gain"))
    assert describe_ranking(ranking) == [
        "no ranking: trials report loss and gain, and the config names none to rank them by: set `metric`"
    ]
    chosen = rank_sweep(swept(tmp_path, metric="loss"))
    assert describe_ranking(chosen)[0].startswith("best mean loss (lowest, guessed from its name): 2 ")
    unreported = rank_sweep(swept(tmp_path, metric="los"))
    assert describe_ranking(unreported) == [
        "no ranking: no trial has reported los, the metric of the sweep, but loss and gain: set `metric` to one of them"
    ]
    counted = rank_sweep(swept(tmp_path / "counted", {"step": 9}, {"step": 3}, metric="los"))
    assert describe_ranking(counted) == [
        "no ranking: no trial has reported los, the metric of the sweep, but step: set `metric` to it"
    ]


def test_counters_do_not_rank_trials(tmp_path):
    ranking = rank_sweep(swept(tmp_path, {"step": 900, "lr": 0.1, "loss": 3.0}, {"step": 300, "lr": 1, "loss": 1.0}))
    assert (ranking.metric, ranking.mode, ranking.best_trial.score) == ("loss", "min", 1.0)
    only = rank_sweep(swept(tmp_path / "only", {"step": 900}, {"step": 300}))
    assert only.metric == "seconds", "as if they had reported nothing"
    named = rank_sweep(swept(tmp_path / "only", metric="step"))
    assert (named.metric, named.best_trial.score) == ("step", 900)


def test_before_any_trial_has_finished_there_is_no_best(tmp_path):
    ranking = rank_sweep(swept(tmp_path))
    assert (ranking.best_trial, ranking.counting) == (None, [])
    searched = {"method": "random", "trials": 3, "values": {"lr": {"low": 0, "high": 1}}}
    assert rank_sweep(swept(tmp_path / "b", grid={}, search=searched)).configurations == []


def test_a_result_that_retrain_has_overruled_does_not_count(tmp_path):
    ends = {"rmse": 3.0}, {"rmse": 1.0}
    first = swept(tmp_path, *ends, grid={"lr": [0.1, 0.2]})
    assert rank_sweep(first).counting
    assert rank_sweep(swept(tmp_path, grid={"lr": [0.1, 0.2]}, retrain=1)).counting == []


def test_the_answer_says_which_configurations_may_be_the_best(tmp_path):
    grid = {"lr": [0.1, 0.2, 0.3], "seed": [0, 1, 2]}
    losses = [3.0, 3.1, 2.9, 1.0, 1.2, 1.1, 1.1, 1.05, 1.2]
    ranking = rank_sweep(swept(tmp_path, *({"loss": each} for each in losses), grid=grid, metric="loss"))
    assert [each.values["lr"] for each in ranking.configurations] == [0.2, 0.3, 0.1]
    assert [each.values["lr"] for each in ranking.leaders] == [0.2, 0.3]
    best, certainty, runner_up = describe_ranking(ranking)
    assert best.startswith("best mean loss (lowest, guessed from its name): 1.1 ± 0.1 (n = 3) with lr = 0.2; ")
    alike = (
        "2 of 3 configurations may be the best, with 90% certainty: lr = 0.2 | lr = 0.3; the first leads the next by "
    )
    assert certainty.startswith(alike)
    assert runner_up.startswith("runner-up: 1.11667 ± 0.076 (n = 3) with lr = 0.3; ")
    assert "chance" not in runner_up


def test_a_clear_winner_is_said_to_be_one(tmp_path):
    losses = [3.0, 3.1, 1.0, 1.01, 2.0, 2.05]
    grid = {"lr": [0.1, 0.2, 0.3], "seed": [0, 1]}
    ranking = rank_sweep(swept(tmp_path, *({"loss": each} for each in losses), grid=grid, metric="loss"))
    assert describe_ranking(ranking)[1].startswith(
        "the best of 3 configurations with 90% certainty: the first leads the next by 0.98 (0.81 to "
    )


def test_what_was_stopped_early_is_not_compared(tmp_path):
    ends = [{"loss": 3.0}, {"loss": 3.2}, (STOPPED, {"loss": 0.1}), {"loss": 0.2}]
    ranking = rank_sweep(swept(tmp_path, *ends, metric="loss"))
    assert ranking.evidence is None
    assert [each.values["lr"] for each in ranking.leaders] == [0.1]


def deciding(state):
    return answer_sweep(state).deciding


def test_with_one_run_each_the_answer_says_what_would_decide_it(tmp_path):
    """A second each on a GPU: three more seeds of two configurations take six."""
    state = swept(tmp_path, {"rmse": 3.0}, {"rmse": 1.0}, args={"seed": 3}, grid={"lr": [0.1, 0.2]})
    assert deciding(state) == (
        "To decide between the first 2: run 3 new seeds of each, the same for all (`repeats: 4` and `repeat_best: 2`), "
        "which is 6 trials, 0.1 GPU-minutes."
    )
    check_config({"sweeps": {"s": {**SWEEP, "args": {"seed": 3}, "grid": {"lr": [0.1, 0.2]}, "repeats": 4,
                                   "repeat_best": 2}}})  # fmt: skip
    diverged = swept(tmp_path / "b", {"rmse": 3.0}, (DIVERGED, {}), args={"seed": 3}, grid={"lr": [0.1, 0.2]})
    assert deciding(diverged) == "", "one is left"
    without = swept(tmp_path / "c", {"rmse": 3.0}, {"rmse": 1.0}, grid={"lr": [0.1, 0.2]})
    assert deciding(without) == "", "no seed reaches the program"


@pytest.mark.parametrize("last", [0.5, 0.9])
def test_the_value_of_trees_that_stopped_early_is_that_of_the_best_round(tmp_path, last):
    """The rounds after it are not kept, also where the last one happens to have the same value."""
    sweep = {"dataset": "d", "trees": {"rounds": 9, "early_stopping": 2}, "metric": "val_accuracy"}
    sweep |= {"slots": {"cpus": 1}, "grid": {"max_depth": [3]}}
    sweep = check_config({"datasets": {"d": {"source": "digits"}}, "sweeps": {"s": sweep}}).sweeps["s"]
    (trial,) = read_state(sweep, "s", tmp_path).trials
    with session_of(tmp_path / "sweeps/s") as journal:
        journal.record(Started(trial=trial, attempt=1))
        for epoch, value in enumerate([0.7, 0.95, 0.9, 0.6, last], start=1):
            journal.record(Epoch(trial=trial, attempt=1, metrics={"epoch": epoch, "val_accuracy": value}))
        metrics = {"val_accuracy": 0.9, "rounds": 5, "best_round": 3}
        journal.record(Ended(trial=trial, attempt=1, status=FINISHED, metrics=metrics, seconds=1.0))
    ranking = rank_sweep(read_state(sweep, "s", tmp_path))
    first = describe_ranking(ranking)[0]
    assert f"0.9 at its best round, 3 of 9, by trial {trial}" in first
    (row,) = ranking_table(ranking).to_dict("records")
    assert row["val_accuracy_epoch"] == 3
    assert (row["val_accuracy_best_epoch"], row["val_accuracy_at_best_epoch"]) == (2, 0.95)
