"""Several objectives end in a Pareto front, constraints rule configurations out, and neither changes a trial."""

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_journals import record_attempt, session_of
from trainyard.config.load import check_config
from trainyard.config.parser import ConfigError
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.history import read_state
from trainyard.planning.trial_space import TrialSpace
from trainyard.planning.trial_value import TrialValue
from trainyard.results.answer import answer_sweep
from trainyard.results.best_config import best_config
from trainyard.results.ranking import (
    RankedTrial,
    Ranking,
    describe_ranking,
    rank_configurations,
    rank_sweep,
)
from trainyard.results.sweep_tables import ranking_table, trials_table

FINISHED, STOPPED = TrialStatus.FINISHED, TrialStatus.STOPPED
OBJECTIVES = {"accuracy": "max", "latency_ms": "min"}
LIMITS = {"peak_mib": {"max": 40000}}


def config_of(**options):
    return check_config({"sweeps": {"s": {"function": "os:getcwd", "grid": {"width": [1, 2, 3, 4]}, **options}}})


def swept(results, *ends, **options):
    """The state of a sweep whose trials have ended with these metrics, or with a status and metrics."""
    sweep = config_of(**options).sweeps["s"]
    with session_of(results / "sweeps/s") as journal:
        for number, (trial, end) in enumerate(zip(read_state(sweep, "s", results).trials, ends, strict=False)):
            status, metrics = end if isinstance(end, tuple) else (FINISHED, end)
            record_attempt(journal, trial, seconds=9.0 - number, status=status, metrics=metrics)
    return read_state(sweep, "s", results)


def of(accuracy, latency_ms, **more):
    return {"accuracy": accuracy, "latency_ms": latency_ms, **more}


def widths(configurations):
    return [each.values["width"] for each in configurations]


numbers = st.integers(-2, 2).map(float)


@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=12))
def test_the_front_has_what_optuna_takes_for_the_best(points):
    """Optuna's `best_trials` are those that no other one dominates; few values, so that many are equal."""
    modes = {"a": "max", "b": "min", "c": "max"}
    trials = [
        RankedTrial(
            str(number), {"x": number}, FINISHED, TrialValue(point[0]), judged=dict(zip(modes, point, strict=True))
        )
        for number, point in enumerate(points)
    ]
    ranking = Ranking("a", "max", False, rank_configurations(trials, "max"), objectives=modes)
    study = optuna.create_study(directions=["maximize", "minimize", "maximize"])
    study.add_trials([optuna.trial.create_trial(values=point) for point in points])
    assert sorted(each.values["x"] for each in ranking.front) == [each.number for each in study.best_trials]
    firsts = [each.means["a"] for each in ranking.front]
    assert firsts == sorted(firsts, reverse=True)
    assert ranking.configurations[: len(firsts)] == ranking.front
    assert len(ranking.configurations) == len(points)


def test_a_trial_without_an_objective_comes_after_those_that_have_all(tmp_path):
    state = swept(tmp_path, of(0.95, None), of(0.7, 5), of(0.9, 3), of(0.8, 9), objectives=OBJECTIVES)
    assert widths(rank_sweep(state).configurations) == [3, 4, 2, 1]


def test_the_answer_is_the_front_and_not_one_winner(tmp_path):
    state = swept(tmp_path, of(0.7, 3), of(0.9, 8), of(0.8, 9), of(0.9, 7.5), objectives=OBJECTIVES)
    ranking = rank_sweep(state)
    assert widths(ranking.configurations) == [4, 1, 2, 3], "of two equally accurate ones, the faster one leads"
    names = list(state.trials)
    assert describe_ranking(ranking) == [
        "Pareto front of accuracy (highest) and latency_ms (lowest): 2 of 4 configurations; best.yaml has the first, "
        "with the highest accuracy; with one run each, chance may have decided",
        f"1. accuracy = 0.9, latency_ms = 7.5: trial {names[3]} with width = 4",
        f"2. accuracy = 0.7, latency_ms = 3: trial {names[0]} with width = 1",
    ]
    assert answer_sweep(state).deciding == ""
    assert trials_table(state, rank_sweep(state))["is_on_pareto_front"].tolist() == [True, False, False, True]
    table = ranking_table(ranking)
    assert table["may_be_best"].tolist() == [True, True, False, False]
    assert table["latency_ms_mean"].tolist() == [7.5, 3, 8, 9]


def test_a_long_front_is_told_from_one_end_to_the_other(tmp_path):
    widths = {"grid": {"width": {"start": 1, "stop": 9}}}
    state = swept(tmp_path, *(of(number / 10, number) for number in range(9)), objectives=OBJECTIVES, **widths)
    _, *lines = describe_ranking(rank_sweep(state))
    assert [line.partition(". ")[0] for line in lines] == ["1", "3", "5", "7", "9", "and 4 between them"]
    assert ["width = 9" in lines[0], "width = 1" in lines[4]] == [True, True]


def test_with_repeats_the_front_is_that_of_the_means(tmp_path):
    ends = (of(0.9, 5), of(0.8, 5), of(0.5, 5), of(0.8, 5))
    seeds = {"grid": {"width": [1, 2], "seed": [0, 1]}}
    state = swept(tmp_path, *ends, objectives=OBJECTIVES, **seeds)
    ranking = rank_sweep(state)
    assert widths(ranking.front) == [1]
    assert describe_ranking(ranking)[0].startswith("Pareto front of mean accuracy (highest) and latency_ms (lowest): 1")
    assert "accuracy = 0.85, latency_ms = 5: trial" in describe_ranking(ranking)[1]
    assert trials_table(state, rank_sweep(state))["is_on_pareto_front"].tolist() == [True, True, False, False]


def test_a_stopped_trial_and_one_without_an_objective_are_not_on_the_front(tmp_path):
    ends = ((STOPPED, of(0.99, 1)), {"accuracy": 0.95}, of(0.8, 9))
    assert widths(rank_sweep(swept(tmp_path, *ends, objectives=OBJECTIVES)).front) == [3]


def test_the_duration_of_a_trial_can_be_an_objective(tmp_path):
    ends = ({"accuracy": 0.5}, {"accuracy": 0.9}, {"accuracy": 0.8})
    ranking = rank_sweep(swept(tmp_path, *ends, objectives={"accuracy": "max", "seconds": "min"}))
    assert [(each.values["width"], each.means["seconds"]) for each in ranking.front] == [(2, 8.0), (3, 7.0)]


@pytest.mark.parametrize(
    ("limits", "best"), [({"max": 40000}, 2), ({"min": 50000}, 1), ({"min": 10000, "max": 20000}, 3)]
)
def test_what_is_beyond_the_constraints_does_not_win(tmp_path, limits, best):
    ends = ({"accuracy": 0.9, "peak_mib": 60000.0}, {"accuracy": 0.8, "peak_mib": 40000.0})
    ends += ({"accuracy": 0.7, "peak_mib": 10000.0}, {"accuracy": 1.0})  # the last one does not report it
    state = swept(tmp_path, *ends, metric="accuracy", constraints={"peak_mib": limits})
    ranking = rank_sweep(state)
    assert ranking.best_trial.values["width"] == best
    beyond = len(ranking.infeasible)
    assert describe_ranking(ranking)[-1].startswith(f"{beyond} configurations not within the constraints: peak_mib at ")
    assert trials_table(state, rank_sweep(state))["is_feasible"].sum() == 4 - beyond
    assert widths(ranking.configurations)[-beyond:] == widths(ranking.infeasible)
    places = ranking_table(ranking).set_index("width")["place"]
    assert places.dropna().to_dict() == {each.values["width"]: place for place, each in enumerate(ranking.counting, 1)}


def test_a_trial_is_feasible_by_its_own_values(tmp_path):
    """Also if no comparison includes it: it was stopped, or its metric is no number."""
    ends = [(STOPPED, {"accuracy": 0.1, "peak_mib": 60000.0}), {"accuracy": None, "peak_mib": 60000.0}]
    ends += [(STOPPED, {"accuracy": 0.1, "peak_mib": 10000.0}), {"accuracy": 0.5}]
    state = swept(tmp_path, *ends, metric="accuracy", constraints=LIMITS, stop={"method": "asha"})
    assert trials_table(state, rank_sweep(state))["is_feasible"].tolist() == [False, False, True, None]


def test_if_nothing_meets_the_constraints_nothing_wins(tmp_path):
    state = swept(tmp_path, {"accuracy": 0.9, "peak_mib": 60000.0}, metric="accuracy", constraints=LIMITS)
    ranking = rank_sweep(state)
    assert ranking.best_trial is None
    (answer,) = describe_ranking(ranking)
    assert answer == "no configuration meets the constraints: peak_mib at most 40000; the closest: peak_mib 60000"
    table = ranking_table(ranking)
    assert (table["place"].notna().sum(), table["trial"].notna().sum()) == (0, 1)
    assert trials_table(state, rank_sweep(state))["is_feasible"].tolist() == [False, None, None, None], (
        "the others have not run"
    )


def test_a_front_is_within_the_constraints(tmp_path):
    ends = (of(0.99, 1, peak_mib=50000), of(0.9, 2, peak_mib=100), of(0.8, 1, peak_mib=100), of(0.7, 3, peak_mib=1))
    ranking = rank_sweep(swept(tmp_path, *ends, objectives=OBJECTIVES, constraints=LIMITS))
    assert widths(ranking.configurations) == [2, 3, 4, 1]
    assert "2 of 3 configurations" in describe_ranking(ranking)[0]


def test_objectives_and_constraints_change_no_trial_and_are_not_in_the_config_of_the_best(tmp_path):
    plain, judged = config_of(), config_of(objectives=OBJECTIVES, constraints=LIMITS)
    before, after = (TrialSpace(config.sweeps["s"], "") for config in (plain, judged))
    assert list(before.trials) == list(after.trials)
    assert before.digest != after.digest, "the table is written again"
    (trial, *_) = after.trials.values()
    best = best_config(judged, "s", [trial], new_name="best")["sweeps"]["best"]
    assert {"objectives", "constraints"}.isdisjoint(best)
    assert (best["metric"], best["mode"]) == ("accuracy", "max")


SEARCH = {"grid": {}, "search": {"method": "cmaes", "trials": 3, "values": {"lr": {"low": 0, "high": 1}}}}


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"objectives": {"accuracy": "max"}}, "accuracy: max is only one: give metric and mode"),
        ({"objectives": {**OBJECTIVES, "x": "low"}}, "objectives.x: 'low' is not known; known: max, min"),
        (
            {"objectives": OBJECTIVES, "metric": "loss"},
            "metric is loss, which is not among the objectives: accuracy: max, latency_ms: min",
        ),
        (
            {"objectives": OBJECTIVES, "mode": "min"},
            "metric is accuracy: min, which is not among the objectives: accuracy: max",
        ),
        ({"objectives": OBJECTIVES, **SEARCH}, "cmaes cannot search with several objectives; tpe, gp, nsgaii and"),
        ({"constraints": LIMITS, **SEARCH}, "cmaes cannot search with constraints; tpe, gp, nsgaii and nsgaiii can"),
        ({"constraints": {"peak_mib": {}}}, "peak_mib: has no limit: give min or max"),
        ({"constraints": {"peak_mib": {"min": 2, "max": 1}}}, "max (1.0) is below min (2.0)"),
    ],
)
def test_objectives_that_cannot_be_are_an_error(options, wrong):
    with pytest.raises(ConfigError) as caught:
        config_of(**options)
    assert wrong in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    "option", [{"objectives": {"loss": "min", "seconds": "min", "fps": "max"}}, {"constraints": {"fps": {"min": 3}}}]
)
def test_an_objective_that_the_pattern_of_a_command_does_not_have_is_an_error(option):
    command = {"command": "./run {width}", "metrics": {"pattern": "loss (?P<loss>[0-9.]+)"}, "grid": {"width": [1]}}
    with pytest.raises(ConfigError, match="fps, which no trial reports; known: loss, seconds"):
        check_config({"sweeps": {"s": {**command, **option}}})


def test_stopping_and_best_yaml_go_by_the_first_objective_unless_metric_names_another():
    sweep = config_of(objectives=OBJECTIVES, stop={"method": "asha"}).sweeps["s"]
    assert (sweep.compared_by, sweep.target) == (("accuracy", "max"), ("accuracy", "max"))
    assert sweep.required_metrics == ["accuracy"]
    sweep = config_of(objectives=OBJECTIVES, metric="latency_ms").sweeps["s"]
    assert sweep.target == ("latency_ms", "min")
