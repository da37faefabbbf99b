"""The n-th suggestion of a search is a function of its seed and of what the ones before it have come to."""

from contextlib import contextmanager
from functools import cache

import pytest
from sweep_journals import claims_beside, session_of
from trainyard.config.load import check_config
from trainyard.config.parser import ConfigError
from trainyard.config.sweep import CommandSweep, TrainSweep
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import make_trial
from trainyard.planning.attempts import Attempt, update_attempts
from trainyard.planning.claims import ClaimLog
from trainyard.planning.job_costs import summarize_plan
from trainyard.planning.journal import Ended, Epoch, Started, Suggested
from trainyard.planning.plan import Plan, plan_sweep
from trainyard.planning.requests import UserRequest
from trainyard.planning.search import OptunaStudy, SuggestionSource
from trainyard.planning.trial_space import Suggestion, TrialSpace, is_placeholder

VALUES = {
    "lr": {"low": 0.001, "high": 1.0, "log": True},
    "model_args.blocks": {"low": 1, "high": 9, "integer": True},
    "optimizer": ["sgd", "adam"],
}


def sweep(method="tpe", metric=None, **fields):
    search = {"method": method, "trials": 12, "seed": 3, "values": VALUES, **fields}
    return TrainSweep.model_validate({"dataset": "d", "search": search, "metric": metric})


def score(values):
    return -abs(values["lr"] - 0.1) - abs(values["model_args.blocks"] - 5) / 10 + (values["optimizer"] == "adam")


def ended(name, values):
    return Attempt(name, 1, 0, 1, outcome="finished", metrics={"val_accuracy": score(values)})


def run(made, count, *, known=()):
    """Draw and end trials one after another, as one slot does; what is `known` goes before."""
    drawn, ends, study = list(known), {}, OptunaStudy(made)
    for each in drawn:
        ends[each.name] = Attempt(
            each.name, 1, 0, 1, outcome="finished", metrics={"val_accuracy": score(each.trial.values)}
        )
    while len(drawn) < count:
        values, params, attrs = study.draw(drawn, ends)
        trial = make_trial(made, values)
        name = trial.identity("digest")
        drawn.append(Suggestion(trial, name, params, attrs))
        ends[name] = ended(name, values)
    return drawn


def test_values_are_in_their_range_whole_where_they_must_be_and_not_all_alike():
    drawn = [each.trial.values for each in run(sweep(), 12)]
    assert all(0.001 <= values["lr"] <= 1 for values in drawn)
    assert all(isinstance(values["model_args.blocks"], int) for values in drawn)
    assert {values["optimizer"] for values in drawn} <= {"sgd", "adam"}
    assert len({values["lr"] for values in drawn}) == 12
    assert all(float(f"{values['lr']:.6g}") == values["lr"] for values in drawn), "as a table shows it"


def test_what_runs_is_not_drawn_again_and_what_failed_does_not_count():
    made = sweep()
    first = run(made, 1)
    running = OptunaStudy(made).draw(first, {})[0]
    failed = OptunaStudy(made).draw(first, {first[0].name: Attempt(first[0].name, 1, 0, 1, outcome="failed")})[0]
    assert running != first[0].trial.values
    assert failed != first[0].trial.values


@pytest.mark.parametrize("method", ["tpe", "cmaes"])
def test_a_search_learns_where_trials_diverge(method):
    """Above lr 0.05, all diverges: that a trial failed would teach nothing, that it was bad keeps the search away."""
    made = sweep(method, values={"lr": VALUES["lr"], "momentum": {"low": 0, "high": 1}})

    def end(name, values, outcome):
        if values["lr"] > 0.05:
            return Attempt(name, 1, 0, 1, outcome=outcome, epochs=[{"epoch": 1, "val_accuracy": 0.9}])
        return Attempt(name, 1, 0, 1, outcome="finished", metrics={"val_accuracy": -100.0})

    def diverging(outcome, count=30):
        drawn, ends = [], {}
        while len(drawn) < count:
            values, params, attrs = OptunaStudy(made).draw(drawn, ends)
            drawn.append(Suggestion(make_trial(made, values), f"t{len(drawn)}", params, attrs))
            ends[drawn[-1].name] = end(drawn[-1].name, values, outcome)
        return sum(each.trial.values["lr"] > 0.05 for each in drawn[count // 2 :])

    assert diverging("diverged") < diverging("failed") / 2


def test_a_search_of_which_all_has_diverged_goes_on():
    made = sweep("cmaes")
    first = run(made, 3)
    assert OptunaStudy(made).draw(first, {each.name: Attempt(each.name, 1, 0, 1, outcome="diverged") for each in first})


def test_another_search_begins_where_something_changes_but_not_with_more_trials_or_other_constraints():
    limits = {"constraints": {"val_loss": {"max": 1}}}
    limited = TrainSweep.model_validate(sweep().model_dump(exclude_unset=True) | limits)
    same = sweep(), sweep(trials=50), limited
    assert len({TrialSpace(each, "digest").search_key for each in same}) == 1
    others = [sweep(seed=4), sweep(method="random"), sweep(metric="val_loss")]
    spaces = [TrialSpace(sweep(), "other"), *(TrialSpace(each, "digest") for each in [sweep(), *others])]
    assert len({space.search_key for space in spaces}) == 5


def test_to_retrain_begins_another_search():
    key = TrialSpace(sweep(), "digest").search_key
    again = TrainSweep.model_validate({**sweep().model_dump(exclude_unset=True), "retrain": 2})
    assert TrialSpace(again, "digest").search_key != key


def test_what_is_still_to_draw_has_a_place_in_the_plan():
    made = sweep()
    drawn = run(made, 10)
    key = TrialSpace(made, "digest").search_key
    events = [Suggested(search=key, values=each.trial.values, params=each.params, attrs=each.attrs) for each in drawn]
    space = TrialSpace(made, "digest", events)
    assert list(space.trials) == [*(each.name for each in drawn), "draw-11", "draw-12"]
    assert (list(map(is_placeholder, space.trials)), space.undrawn_count) == ([False] * 10 + [True] * 2, 2)
    command = {"command": "./run {lr}", "metrics": {"file": "m.json"}}
    made = CommandSweep.model_validate({**command, "search": {"trials": 2, "values": {"lr": [0.1, 0.2]}}})
    assert list(TrialSpace(made, "digest").trials) == ["draw-1", "draw-2"]


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ({"x": [1, 2, 3], "n": {"low": 1, "high": 4, "step": 2}}, 6),
        ({"x": ["a", "b"], "n": {"low": 0.5, "high": 3, "integer": True, "when": {"x": "a"}}}, 6),
        ({"x": [1, 2], "lr": {"low": 0, "high": 1}}, 20),
    ],
)
@pytest.mark.parametrize("repeats", [1, 2])
def test_the_plan_counts_no_more_draws_than_there_are_configurations(tmp_path, values, count, repeats):
    own = {"command": "./run {args}", "args": {"seed": 7}, "metrics": {"file": "m.json"}, "repeats": repeats}
    search = {"method": "random", "trials": 20, "values": values}
    config = check_config({"sweeps": {"s": own | {"search": search}}})
    state = plan_sweep(config, "s", tmp_path).state
    assert (len(state.unfinished), state.space.undrawn_count) == (count * repeats, 20 * repeats)
    if count == 20:
        return
    with session_of(tmp_path / "sweeps/s") as journal:
        source = SuggestionSource(state, claims_beside(journal, state))
        while source.next_task():
            assert len(plan_sweep(config, "s", tmp_path).state.trials) == count * repeats, "also what is drawn twice"
    more = check_config({"sweeps": {"s": own | {"search": {**search, "trials": 30}}}})
    state = plan_sweep(more, "s", tmp_path).state
    assert len(state.trials) == count * repeats
    more = check_config({"sweeps": {"s": own | {"search": {**search, "trials": 40}}}})
    assert state.grow(more.sweeps["s"]) == []


def test_a_search_ignores_suggestions_of_others_and_those_beyond_its_number_of_trials():
    made = sweep()
    known = TrialSpace(made, "digest")
    values = {"lr": 0.1, "model_args.blocks": 5, "optimizer": "adam"}
    of_other = Suggested(search="other", values=values, params={}, attrs={})
    own = [
        Suggested(search=known.search_key, values={**values, "lr": lr / 100}, params={}, attrs={})
        for lr in range(1, 20)
    ]
    space = TrialSpace(made, "digest", [of_other, *own])
    assert [each.trial.values["lr"] for each in space.suggestions] == [lr / 100 for lr in range(1, 13)]
    assert (len(space.trials), space.undrawn_count) == (12, 0)


def test_what_a_user_has_cancelled_does_not_run_for_optuna(tmp_path):
    """Otherwise TPE would keep away from it for ever."""
    space = {"method": "tpe", "trials": 9, "values": {"x": {"low": 0, "high": 1}}}
    config = check_config({"sweeps": {"s": {"command": "./p {x}", "metrics": {"file": "m.json"}, "search": space}}})
    claims = ClaimLog(tmp_path / "sweeps/s")
    with session_of(tmp_path / "sweeps/s") as journal:
        state = plan_sweep(config, "s", tmp_path).state
        source = SuggestionSource(state, claims_beside(journal, state))

        def states():
            return [each.state.name for each in source._study._study.get_trials()]

        first, second = (source.next_task().trial for _ in range(2))
        claims.request(UserRequest("cancel", 0.0, trial=first))
        source.next_task()
        assert states() == ["FAIL", "RUNNING", "RUNNING"]
        claims.request(UserRequest("restore", 0.0, trial=first))
        claims.request(UserRequest("cancel", 0.0, trial=second))
        source.next_task()
        assert states() == ["RUNNING", "FAIL", "RUNNING", "RUNNING"]


def test_a_configuration_that_an_earlier_search_has_started_resumes_with_the_number_of_its_epoch(tmp_path):
    """After a change of `mode`, a random search draws the same ones again."""
    values, metrics = {"x": {"low": 0, "high": 1}}, {"pattern": "loss (?P<loss>{number})"}
    own = {"command": "./p {x}", "checkpoint": "*.pt", "resume": "{resume_from}", "metrics": metrics}

    def next_task(mode):
        search = {"method": "random", "trials": 1, "values": values}
        made = {**own, "search": search, "metric": "loss", "mode": mode}
        state = plan_sweep(check_config({"sweeps": {"s": made}}), "s", tmp_path).state
        return SuggestionSource(state, claims_beside(journal, state)).next_task()

    with session_of(tmp_path / "sweeps/s") as journal:
        first = next_task("max")
        journal.record(Started(trial=first.trial, attempt=1))
        journal.record(Epoch(trial=first.trial, attempt=1, metrics={"epoch": 1, "loss": 0.5}))
        journal.record(Ended(trial=first.trial, attempt=1, status=TrialStatus.INTERRUPTED))
    with session_of(tmp_path / "sweeps/s") as journal:
        again = next_task("min")
    assert again.trial == first.trial
    assert [list(each.epoch_times) for each in again.earlier] == [[1]]


METHODS = ["tpe", "gp", "cmaes", "nsgaii", "nsgaiii", "qmc", "random", "brute_force"]
CONDITIONAL = {
    "optimizer": ["adam", "sgd"],
    "momentum": {"low": 0.0, "high": 0.9, "step": 0.1, "when": {"optimizer": "sgd"}},
    "nesterov": {"choices": [True, False], "when": {"momentum": "never"}},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_search_continued_by_another_job_draws_the_same_with_each_sampler(method):
    """Values of a step or a list, so that `brute_force` has an end; a second job knows the first one's draws only."""
    values = {
        "lr": {"low": 0.1, "high": 1.0, "step": 0.1},
        "model_args.blocks": {"low": 1, "high": 9, "step": 2, "integer": True},
        "optimizer": ["sgd", "adam"],
    }
    made = sweep(method, values=values)
    whole = run(made, 12)
    key = TrialSpace(made, "digest").search_key
    events = [Suggested(search=key, values=each.trial.values, params=each.params, attrs=each.attrs) for each in whole]
    known = TrialSpace(made, "digest", events[:7]).suggestions
    assert [each.name for each in run(made, 12, known=known)] == [each.name for each in whole]
    drawn = [each.trial.values for each in whole]
    assert {each["lr"] for each in drawn} <= {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0}
    assert {each["model_args.blocks"] for each in drawn} <= {1, 3, 5, 7, 9}
    assert len({str(each) for each in drawn}) > 6


def test_a_draw_of_tpe_adds_only_what_is_new(monkeypatch):
    import optuna

    added = []
    add = optuna.study.Study.add_trial
    monkeypatch.setattr(optuna.study.Study, "add_trial", lambda self, trial: (added.append(trial), add(self, trial)))
    run(sweep(trials=40), 40)
    assert not added, "each is in the study since it was drawn"


@pytest.mark.parametrize("method", METHODS)
def test_a_key_that_does_not_apply_is_not_drawn(method):
    values = {key: CONDITIONAL[key] for key in ("optimizer", "momentum")}
    command = {"command": "./run {args}", "metrics": {"file": "m.json"}, "metric": "val_accuracy"}
    made = CommandSweep.model_validate({**command, "search": {"method": method, "trials": 20, "values": values}})
    drawn, ends, study = [], {}, OptunaStudy(made)
    for number in range(14):
        found, params, attrs = study.draw(drawn, ends)
        drawn.append(Suggestion(make_trial(made, found), f"t{number}", params, attrs))
        ends[f"t{number}"] = Attempt(f"t{number}", 1, 0, 1, outcome="finished", metrics={"val_accuracy": number % 5})
    assert all(("momentum" in each.trial.values) == (each.trial.values["optimizer"] == "sgd") for each in drawn)
    assert {each.trial.values["optimizer"] for each in drawn} == {"adam", "sgd"}


def test_a_search_begins_with_what_its_author_would_guess():
    values = {
        "lr": {"low": 0.001, "high": 1.0, "log": True, "guess": 0.01},
        "optimizer": {"choices": ["sgd", "adam"], "guess": "adam"},
        "model_args.blocks": {"low": 1, "high": 9, "integer": True},
    }
    first, second = (each.trial.values for each in run(sweep(values=values), 2))
    assert (first["lr"], first["optimizer"]) == (0.01, "adam")
    assert second["lr"] != 0.01


def test_a_whole_section_can_be_drawn():
    sections = [{"name": "step", "step_size": 1}, {"name": "cosine"}]
    drawn = [each.trial for each in run(sweep(values={**VALUES, "schedule": sections}), 8)]
    assert {each.spec.schedule.name for each in drawn} == {"step", "cosine"}


@pytest.mark.parametrize(
    ("search", "wrong"),
    [
        ({"options": {"n_startup_trial": 3}}, "tpe has no option n_startup_trial; did you mean 'n_startup_trials'"),
        ({"method": "nsgaii", "options": {"population_size": 1}}, "`population_size` must be greater than or"),
        ({"options": {"n_startup_trials": "20"}}, "n_startup_trials: '20' is of another type: give int"),
        ({"method": "brute_force", "values": VALUES}, "brute_force cannot run every value of lr: give a list, step"),
        ({"values": {"lr": {"low": 0, "high": 1, "guess": 3}}}, "guess (3.0) is not from 0.0 to 1.0"),
        ({"values": {"lr": {"low": 0, "high": 1, "step": 0.25, "guess": 0.3}}}, "guess (0.3) is not a step of 0.25"),
        ({"values": {"lr": {"low": 0.1, "high": 1, "step": 0.1, "log": True}}}, "with log there is no step"),
        ({"values": {"lr": {"choices": [0.1], "guess": 0.2}}}, "guess (0.2) is not among the choices"),
        ({"values": {"lr": {"choices": [0.1], "when": {"optimiser": "sgd"}}}}, "lr depends on optimiser, which is not"),
        ({"values": CONDITIONAL}, "nesterov depends on momentum: never, but momentum is never never"),
        (
            {"values": {"lr": {"choices": [1], "when": {"seed": 1}}, "seed": {"choices": [1], "when": {"lr": 1}}}},
            "lr depends on itself",
        ),
    ],
)
def test_a_search_that_cannot_be_drawn_is_an_error(search, wrong):
    raw = {"dataset": "d", "search": {"trials": 3, "values": {"optimizer": ["sgd"]}, **search}}
    with pytest.raises(ConfigError) as caught:
        check_config({"datasets": {"d": {"source": "digits"}}, "sweeps": {"s": raw}})
    assert wrong in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2


def test_a_command_with_a_key_that_may_be_absent_needs_args():
    values = {key: CONDITIONAL[key] for key in ("optimizer", "momentum")}
    raw = {"command": "./run {optimizer} {momentum}", "metrics": {"file": "m.json"}, "metric": "val_accuracy"}
    with pytest.raises(ConfigError, match=r"momentum has no value where its `when` does not hold: write {args} inst"):
        check_config({"sweeps": {"s": {**raw, "search": {"trials": 3, "values": values}}}})


def test_a_search_draws_from_the_means_of_repeats(tmp_path, monkeypatch):
    """Two seeds each: their mean counts when both have ended; one that has diverged makes its configuration bad."""
    known = []
    whole = OptunaStudy.draw
    monkeypatch.setattr(OptunaStudy, "draw", lambda self, *given: (known.append(given), whole(self, *given))[1])
    own = {"command": "./run {args}", "args": {"seed": 7}, "metrics": {"file": "m.json"}, "metric": "loss"}
    made = {**own, "repeats": 2, "search": {"trials": 4, "values": {"lr": {"low": 0, "high": 1}}}}
    state = plan_sweep(check_config({"sweeps": {"s": made}}), "s", tmp_path).state
    assert len(state.trials) == 8
    finished, diverged, stopped = TrialStatus.FINISHED, TrialStatus.DIVERGED, TrialStatus.STOPPED
    results = [(0.2, finished), (0.4, finished), (0.1, finished), (None, diverged), (0.3, stopped), (0.1, finished)]
    with session_of(tmp_path / "sweeps/s") as journal:
        source = SuggestionSource(state, claims_beside(journal, state))
        seeds = []
        for loss, outcome in results:
            task = source.next_task()
            seeds.append(task.spec.args["seed"])
            metrics = {} if loss is None else {"loss": loss}
            event = Ended(trial=task.trial, attempt=1, status=outcome, metrics=metrics)
            journal.record(Started(trial=task.trial, attempt=1))
            journal.record(event)
            attempt = Attempt(task.trial, 1, 0, 1, outcome=outcome, metrics=metrics)
            source.on_event(event, attempt, is_own=True)
        source.next_task()
    assert seeds == [7, 8] * 3
    drawn, ends, _ = known[-1]
    assert len(drawn) == 3, "configurations"
    found = [ends[each.name] for each in drawn]
    assert [each.outcome for each in found] == [finished, diverged, stopped]
    assert [round(found[0].metrics["loss"], 6), round(found[2].metrics["loss"], 6)] == [0.3, 0.2]
    assert len(known) == 4, "one draw for both repeats of a configuration"


def states_of(source):
    """What Optuna knows of trials: their value, or their state where they have none."""
    return [each.value if each.value is not None else each.state.name for each in source._study._study.get_trials()]


@contextmanager
def searching(results, **changes):
    """A session of a sweep of one key, and the search from which it draws; `end` ends a trial with a loss."""
    own = {"command": "./run {args}", "args": {"seed": 7}, "metrics": {"file": "m.json"}, "metric": "loss"}
    search = {"trials": 20, "values": {"x": {"low": 0.0, "high": 1.0}}, **changes.pop("search", {})}
    state = plan_sweep(check_config({"sweeps": {"s": {**own, "search": search, **changes}}}), "s", results).state
    with session_of(results / "sweeps/s") as journal:
        source = SuggestionSource(state, claims_beside(journal, state))

        def end(trial, loss):
            values = state.trials[trial].values
            journal.record(Started(trial=trial, attempt=1, values=values))
            event = Ended(trial=trial, attempt=1, status=TrialStatus.FINISHED, metrics={"loss": loss})
            journal.record(event)
            attempt = Attempt(trial, 1, 0, 1, outcome=TrialStatus.FINISHED, metrics={"loss": loss})
            source.on_event(event, attempt, is_own=True)

        yield source, state, end


def test_trials_beside_a_search_run_first_and_count_for_it(tmp_path):
    beside = {"grid": {"x": [0.25, 0.5, 7]}, "trials": [{"x": 0.75, "more": 1}]}
    with searching(tmp_path, **beside) as (source, state, end):
        known = list(state.trials)
        assert [state.trials[each].values for each in known[:4]] == [
            {"x": 0.25},
            {"x": 0.5},
            {"x": 7},
            *beside["trials"],
        ]
        assert sum(map(is_placeholder, known)) == 20
        end(known[0], 3.0)
        end(known[2], 1.0)
        first = source.next_task().trial
        assert states_of(source) == [3.0, "RUNNING", "RUNNING"], "neither 7, nor what differs in another key"
        end(known[1], 2.0)
        end(first, 4.0)
        source.next_task()
        assert states_of(source) == [3.0, 2.0, 4.0, "RUNNING"]
    with searching(tmp_path, **beside) as (source, state, end):
        source.next_task()
        assert states_of(source) == [3.0, 2.0, 4.0, "RUNNING", "RUNNING"], "also in another job"
        more = {**beside["grid"], "x": [0.25, 0.5, 7, 0.125]}
        (added,) = state.grow(state.sweep.model_copy(update={"grid": more}))
        end(added, 5.0)
        source.next_task()
        assert states_of(source)[:3] == [3.0, 2.0, 5.0], "and what is added to it"


def test_a_changed_range_keeps_the_results_that_fit(tmp_path):
    losses = {}
    with searching(tmp_path) as (source, state, end):
        for number in range(6):
            trial = source.next_task().trial
            end(trial, float(number))
            losses[float(number)] = state.trials[trial].values["x"]
    kept = [loss for loss, x in losses.items() if 0.1 <= x <= 0.6]
    assert 0 < len(kept) < 6
    narrow = {"search": {"values": {"x": {"low": 0.1, "high": 0.6}}}}
    with searching(tmp_path, **narrow) as (source, state, end):
        first = source.next_task()
        assert states_of(source) == [*kept, "RUNNING"]
        end(first.trial, 9.0)
        second = source.next_task()
    with searching(tmp_path, **narrow) as (source, _, _):
        values = source._choose()[0][0].values
        assert states_of(source)[: len(kept) + 2] == [*kept, 9.0, "RUNNING"]
        assert values != second.values
    with searching(tmp_path, retrain=1) as (source, _, _):
        source.next_task()
        assert states_of(source) == ["RUNNING"], "what is to run again is no evidence"


@pytest.mark.parametrize(
    ("changes", "counting"),
    [
        ({"mode": "max"}, 4),
        ({"metric": "val_loss"}, 0),  # which none has reported
        ({"search": {"method": "random"}}, 0),
        ({"retrain": 1}, None),
        ({"search": {"trials": 30}}, None),
    ],
)
def test_the_plan_says_that_a_search_begins_anew_and_how_many_trials_count(tmp_path, changes, counting):
    with searching(tmp_path) as (source, _, end):
        for number in range(4):
            end(source.next_task().trial, float(number))
    with searching(tmp_path, **changes) as (source, state, _):
        says = f"20 of 20 trials pending (a new search, for which {counting} of 4 earlier trials count)"
        told = summarize_plan(Plan(state))
        assert says in told if counting is not None else "a new search" not in told
        source.next_task()
    with searching(tmp_path, **changes) as (_, state, _):
        assert "a new search" not in summarize_plan(Plan(state)), "once it has drawn"


def test_seeds_of_a_configuration_beside_a_search_count_with_their_mean(tmp_path):
    with searching(tmp_path, trials=[{"x": 0.5}], repeats=2) as (source, state, end):
        first, second = list(state.trials)[:2]
        end(first, 1.0)
        source.next_task()
        assert states_of(source) == ["RUNNING", "RUNNING"]
        source.next_task()
        end(second, 2.0)
        source.next_task()
        assert states_of(source) == [1.5, "RUNNING", "RUNNING"]


def test_a_trial_of_the_config_that_a_search_draws_does_not_run_again(tmp_path):
    search = {"method": "brute_force", "trials": 3, "values": {"x": [1, 2, 3]}}
    with searching(tmp_path, search=search, trials=[{"x": 2}]) as (source, state, _):
        drawn = [source.next_task(), source.next_task(), source.next_task()]
        assert sorted(each.values["x"] for each in drawn if each) == [1, 3]
        assert len(state.space.suggestions) == 3


def test_trials_beside_a_search_change_what_the_sweep_must_have_but_not_the_search():
    alone = CommandSweep.model_validate(
        {
            "command": "./p {x}",
            "metrics": {"file": "m.json"},
            "metric": "loss",
            "search": {"trials": 2, "values": {"x": [1, 2]}},
        }
    )
    beside = alone.model_copy(update={"trials": [{"x": 1}]})
    spaces = [TrialSpace(each, "digest") for each in (alone, beside)]
    assert spaces[0].digest != spaces[1].digest
    assert spaces[0].search_key == spaces[1].search_key


PLANE = {"a": {"low": 0.0, "high": 1.0}, "b": {"low": 0.0, "high": 1.0}}
DRAWING_NEAR = {"tpe": {}, "gp": {"n_startup_trials": 6}, "nsgaii": {"population_size": 8},
                "nsgaiii": {"population_size": 8}}  # fmt: skip
SEVERAL = {**DRAWING_NEAR, "qmc": {}, "random": {}}


def searched(method, end, count, *, known=(), **options):
    """The values that a search of a command draws, one after another; `end` has the outcome and metrics of a trial."""
    raw = {"command": "./run {args}", "metrics": {"file": "m.json"}, "objectives": {"x": "min", "y": "max"}, **options}
    search = {"method": method, "options": SEVERAL[method], "trials": count, "values": PLANE}
    made = CommandSweep.model_validate({**raw, "search": search})
    drawn, ends, study = list(known), {}, OptunaStudy(made)
    for number in range(count):
        if number == len(drawn):
            values, params, attrs = study.draw(drawn, ends)
            drawn.append(Suggestion(make_trial(made, values), f"t{number}", params, attrs))
        outcome, metrics = end(drawn[number].trial.values)
        ends[f"t{number}"] = Attempt(f"t{number}", 1, 0, 1, outcome=outcome, metrics=metrics)
    return drawn


def trade_off(values):
    """Along `a`, x and y are better one at the expense of the other; `b` is bad for both."""
    return "finished", {"x": values["a"] + values["b"], "y": values["a"] - values["b"], "mib": 100 * values["a"]}


BY_ONE = {"objectives": {}, "metric": "y", "mode": "max"}


@pytest.mark.parametrize(("method", "options"), [*((method, {}) for method in SEVERAL), ("tpe", BY_ONE)])
def test_a_search_with_objectives_or_constraints_continues_as_it_began(method, options):
    """Some trials diverge or are stopped, and do not have all metrics."""

    def end(values):
        if values["b"] > 0.5:
            return ("diverged", {}) if values["a"] > 0.5 else ("stopped", {"x": 0.0})
        return trade_off(values)

    options = {"constraints": {"mib": {"max": 50}}, **options}
    count = 12 if method == "gp" else 16
    whole = searched(method, end, count, **options)
    again = searched(method, end, count, known=whole[: count - 3], **options)
    assert [each.trial.values for each in again] == [each.trial.values for each in whole]
    assert len({str(each.trial.values) for each in whole}) > 10, "a crossover may repeat one"


@cache
def later_of(method, *, is_limited=False, has_objectives=True):
    """The second half of the values that a search draws where all trials finish."""
    count = 14 if method == "gp" else 60
    options = {"constraints": {"mib": {"max": 50}}} if is_limited else {}
    options |= {} if has_objectives else BY_ONE
    return [each.trial.values for each in searched(method, trade_off, count, **options)][count // 2 :]


@pytest.mark.parametrize("method", DRAWING_NEAR)
def test_a_search_with_several_objectives_draws_near_all_of_their_front(method):
    """Everything with b = 0 is on the front. Of random draws, a quarter has b below 0.25."""
    late = later_of(method)
    assert sum(each["b"] < 0.25 for each in late) > len(late) / 2
    assert min(each["a"] for each in late) < 0.35
    assert max(each["a"] for each in late) > 0.65


@pytest.mark.parametrize("method", DRAWING_NEAR)
@pytest.mark.parametrize("has_objectives", [True, False])
def test_a_search_draws_within_the_constraints(method, has_objectives):
    """The best y has a = 1, but above a = 0.5 trials do not fit: the search learns it, as it does where trials end."""
    late = later_of(method, is_limited=True, has_objectives=has_objectives)
    free = later_of(method, has_objectives=has_objectives)
    assert sum(each["a"] > 0.5 for each in late) < sum(each["a"] > 0.5 for each in free)
    assert sum(each["a"] > 0.55 for each in late) < 0.4 * len(late)


def test_a_draw_for_several_objectives_adds_only_what_is_new(monkeypatch):
    """All are added again where the bad values change, which are told of trials that diverged."""
    import optuna

    added, add = [], optuna.study.Study.add_trial
    monkeypatch.setattr(optuna.study.Study, "add_trial", lambda self, trial: (added.append(trial), add(self, trial)))
    searched("tpe", lambda values: ("finished", {"x": round(values["a"]), "y": round(values["b"])}), 60)
    assert 0 < len(added) < 60


def test_a_stopped_trial_is_bad_in_each_objective():
    """At the epoch at which it was stopped, x was the best of all; Optuna itself would not take it as pruned."""
    made = CommandSweep.model_validate(
        {"command": "./run {args}", "metrics": {"file": "m.json"}, "objectives": {"x": "min", "y": "max"},
         "search": {"trials": 9, "values": PLANE}}
    )  # fmt: skip
    drawn = searched("random", trade_off, 3)
    metrics = {"finished": [{"x": 2.0, "y": 1.0}, {"x": 1.0, "y": 0.0}], "stopped": [{"x": 0.0}]}
    ends = {
        f"t{number}": Attempt(f"t{number}", 1, 0, 1, outcome=outcome, metrics=found)
        for number, (outcome, found) in enumerate((key, each) for key, rows in metrics.items() for each in rows)
    }
    study = OptunaStudy(made)
    study.draw(drawn, ends)
    told = study._study.trials[:3]
    assert [each.state.name for each in told] == ["COMPLETE"] * 3
    assert told[2].values[0] > 2
    assert told[2].values[1] < 0


def test_the_duration_of_a_trial_is_that_of_all_its_attempts(tmp_path, monkeypatch):
    """The second attempt continues from a checkpoint of the first, at second 6 of it."""
    own = {"command": "./run {args}", "metrics": {"file": "m.json"}, "checkpoint": "c.pt"}
    options = {"objectives": {"loss": "min", "seconds": "min"}, "search": {"trials": 2, "values": PLANE}}
    state = plan_sweep(check_config({"sweeps": {"s": {**own, **options}}}), "s", tmp_path).state
    with session_of(tmp_path / "sweeps/s") as journal:
        claims = claims_beside(journal, state)
        source = SuggestionSource(state, claims)
        trial = source.next_task().trial
        events = [
            Started(trial=trial, attempt=1, time=100.0),
            Epoch(trial=trial, attempt=1, time=106.0, metrics={"epoch": 1, "loss": 2.0}),
            Ended(trial=trial, attempt=1, time=109.0, status=TrialStatus.INTERRUPTED, seconds=9.0),
            Started(trial=trial, attempt=2, time=200.0),
            Epoch(trial=trial, attempt=2, time=203.0, metrics={"epoch": 2, "loss": 1.0}),
            Ended(trial=trial, attempt=2, time=204.0, status=TrialStatus.FINISHED, seconds=4.0, metrics={"loss": 1.0}),
        ]
        attempts = {}
        for event in events:
            monkeypatch.setattr("trainyard.planning.journal.read_clock", lambda time=event.time: time)
            journal.record(event)
            source.on_event(event, update_attempts(attempts, event), is_own=True)
        claims.refresh()
        source.on_event(events[-1], attempts[trial, 2], is_own=True)
    assert source._ends[trial].metrics == {"loss": 1.0, "seconds": 10.0}
    again = plan_sweep(check_config({"sweeps": {"s": {**own, **options}}}), "s", tmp_path).state
    assert SuggestionSource(again, claims)._ends == source._ends
