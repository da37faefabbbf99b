"""Keys that are no settings (`average`): a configuration runs at all of their values, and counts by the mean."""

from dataclasses import replace

import pytest
from sweep_journals import record_draws, session_of
from trainyard.config.load import check_config
from trainyard.config.parser import ConfigError
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import count_configured, expand
from trainyard.packing.repeat_best import _draw_seeds
from trainyard.planning.history import read_state
from trainyard.planning.journal import Ended, Started
from trainyard.planning.search import SuggestionSource
from trainyard.planning.trial_space import TrialSpace, is_placeholder
from trainyard.report.plotted_trials import rank_trials
from trainyard.results.answer import answer_sweep
from trainyard.results.best_config import write_best
from trainyard.results.ranking import describe_ranking, rank_sweep
from trainyard.results.retention import reduced_folders
from trainyard.results.sweep_tables import ranking_table, trials_table

GRID = {"lr": [0.1, 0.2], "env_id": ["A", "B"]}


def config_of(**keys):
    sweep = {"function": "os:getcwd", "slots": {"cpus": 1}, "metric": "reward", "grid": GRID, "average": ["env_id"]}
    return check_config({"sweeps": {"s": sweep | keys}})


def ran(results, value, **keys):
    """The state of a sweep whose trials have ended with what `value` says of their settings; None: they have failed."""
    sweep = config_of(**keys).sweeps["s"]
    with session_of(results / "sweeps/s") as journal:
        for name, trial in read_state(sweep, "s", results).trials.items():
            reward = None if is_placeholder(name) else value(**trial.settings)
            if not is_placeholder(name):
                journal.record(Started(trial=name, attempt=1))
                status = TrialStatus.FAILED if reward is None else TrialStatus.FINISHED
                metrics = None if reward is None else {"reward": reward}
                journal.record(Ended(trial=name, attempt=1, status=status, metrics=metrics, seconds=1.0))
    return read_state(sweep, "s", results)


def test_a_configuration_counts_by_the_mean_over_all_values_which_have_columns(tmp_path):
    state = ran(tmp_path, lambda lr, env_id: 10 * lr + {"A": 1.0, "B": 1.5}[env_id] + (lr == 0.1 and env_id == "A"))
    ranking = rank_sweep(state)
    assert ranking.over == "env_id"
    first = describe_ranking(ranking)[0]
    what = "best mean reward over env_id (highest, guessed from its name)"
    assert first.startswith(f"{what}: 3.25 ± 0.35 (n = 2) with lr = 0.2")
    assert first.endswith("(env_id = B): 3.5")
    table = ranking_table(ranking)
    assert table["lr"].tolist() == [0.2, 0.1]
    assert table[["reward_mean", "env_id=A", "env_id=B"]].to_numpy().tolist() == [[3.25, 3, 3.5], [2.75, 3, 2.5]]
    assert "env_id" not in table
    assert rank_trials(state, trials_table(state, ranking), ranking).settings == {"lr": ["lr"]}
    written = write_best(config_of(), state, answer_sweep(state)).read_text()
    assert "average:" in written
    assert written.count("env_id: ") == 2


def test_a_configuration_without_a_result_at_one_value_has_none(tmp_path):
    """Its mean over easier values would be the best."""
    state = ran(tmp_path, lambda lr, env_id: None if (lr, env_id) == (0.2, "B") else 5 * lr + (env_id == "A"))
    lines = describe_ranking(rank_sweep(state))
    assert "with lr = 0.1" in lines[0]
    assert "not ranked, without a result at all values of env_id: 1 configuration" in lines
    table = ranking_table(rank_sweep(state))
    assert table["place"].isna().tolist() == [False, True]
    assert table["env_id=A"].tolist() == [1.5, 2.0]
    nothing = ran(tmp_path / "b", lambda lr, env_id: None if env_id == "B" else lr)
    assert describe_ranking(rank_sweep(nothing)) == ["no configuration has finished at all values of env_id"]


def test_a_seed_counts_once_it_has_run_at_all_values(tmp_path):
    def value(lr, env_id, seed):
        return None if (env_id, seed) == ("B", 1) else lr + seed

    state = ran(tmp_path, value, args={"seed": 0}, repeats=2)
    ranking = rank_sweep(state)
    assert ranking.over == "env_id, seeds"
    assert [(each.mean, each.n, each.total) for each in ranking.counting] == [(0.2, 2, 4), (0.1, 2, 4)]


def test_scales_that_differ_are_said(tmp_path):
    state = ran(tmp_path, lambda lr, env_id: lr + {"A": 0.0, "B": 500.0}[env_id])
    assert describe_ranking(rank_sweep(state))[-1] == (
        "values of `env_id` differ more than configurations, 250.1 to 250.2: 0.15 at A to 500.1 at B; on different "
        "scales, the largest one decides"
    )
    alike = ran(tmp_path / "b", lambda lr, env_id: 9 * lr + (env_id == "A") / 9)
    assert "scales" not in " ".join(describe_ranking(rank_sweep(alike)))


def trials_of(**keys):
    return [each.values for each in expand(config_of(**keys).sweeps["s"]).trials]


def test_a_grid_of_values_alone_is_for_the_other_configurations():
    values = [{"lr": 0.3, "env_id": "A"}, {"lr": 0.3, "env_id": "B"}]
    assert trials_of(grid={"env_id": ["A", "B"]}, trials=[{"lr": 0.3}]) == values
    assert trials_of(grid={}, trials=values) == values
    sample = {"count": 1, "values": {"lr": [0.3]}}
    sampled = config_of(grid={"env_id": ["A", "B"]}, sample=sample).sweeps["s"]
    assert [each.values for each in expand(sampled).trials] == values
    assert count_configured(sampled) == 2


def searched(**keys):
    search = {"trials": 3, "values": {"lr": {"low": 0.1, "high": 1}}}
    return {"grid": {"env_id": ["A", "B"]}, "search": search, **keys}


def test_a_search_runs_each_configuration_at_all_values_and_is_told_the_mean(tmp_path):
    sweep = config_of(**searched(args={"seed": 0}, repeats=2)).sweeps["s"]
    assert (sweep.draw_count, len(read_state(sweep, "s", tmp_path).trials)) == (12, 12)
    state = read_state(sweep, "s", tmp_path)

    class Order:
        cancelled = frozenset()

    source, drawn = SuggestionSource(state, Order()), []
    for number in range(5):
        values, params, attrs = source._draw(drawn)
        trial = state.space.suggestion(_event(state, values, params, attrs))
        drawn.append(trial)
        source._ends[trial.name] = _end(trial.name, number)
    four = [(each.trial.values["env_id"], each.trial.values["seed"]) for each in drawn[:4]]
    assert four == [("A", 0), ("B", 0), ("A", 1), ("B", 1)]
    assert len({each.trial.values["lr"] for each in drawn[:4]}) == 1
    assert drawn[4].trial.values["lr"] != drawn[0].trial.values["lr"]
    assert source._mean_end(drawn[:4], source._ends).metrics["reward"] == 1.5


def test_a_search_is_told_of_no_mean_over_some_values(tmp_path):
    """Nor of the configurations for which there is too little memory."""
    sweep = config_of(**searched()).sweeps["s"]
    state = read_state(sweep, "s", tmp_path)

    class Order:
        cancelled = frozenset()

    source, drawn = SuggestionSource(state, Order()), []
    for _ in range(2):
        drawn.append(state.space.suggestion(_event(state, *source._draw(drawn))))
    first, second = (each.name for each in drawn)
    failed = replace(_end(second, 0), outcome=TrialStatus.FAILED, metrics={}, error="KeyError: 1")
    memory = replace(failed, error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    without = replace(_end(second, 0), metrics={})
    for end in (failed, memory, without):
        mean = source._mean_end(drawn, {first: _end(first, 900), second: end})
        assert (mean.metrics, mean.ran_out_of_memory) == ({}, end is memory)
    assert source._mean_end(drawn, {first: _end(first, 900), second: _end(second, 100)}).metrics == {"reward": 500.0}


def test_a_configuration_of_which_one_value_is_not_drawn_yet_does_not_count(tmp_path):
    """As while a search runs, or after its budget: neither is it ranked, nor are its files removed."""
    sweep = config_of(**searched(keep="best 1")).sweeps["s"]
    state = read_state(sweep, "s", tmp_path)
    values = [{"lr": 0.5, "env_id": "A"}, {"lr": 0.5, "env_id": "B"}, {"lr": 0.7, "env_id": "A"}]
    for number, each in enumerate(values):
        event = _event(state, each, {"lr": each["lr"]}, {})
        name = state.space.suggestion(event).name
        record_draws(state.folder, event)
        with session_of(state.folder) as journal:
            journal.record(Started(trial=name, attempt=1))
            end = {"status": TrialStatus.FINISHED, "metrics": {"reward": float(number)}, "seconds": 1.0}
            journal.record(Ended(trial=name, attempt=1, **end))
        if number == 0:
            half = read_state(sweep, "s", tmp_path)
            assert describe_ranking(rank_sweep(half)) == ["no configuration has finished at all values of env_id"]
            assert ranking_table(rank_sweep(half))["n"].tolist() == [0]
            assert reduced_folders(half, "best 1") == {}
    ranking = rank_sweep(read_state(sweep, "s", tmp_path))
    assert [(each.values["lr"], each.n) for each in ranking.configurations] == [(0.5, 2), (0.7, 0)]
    assert reduced_folders(read_state(sweep, "s", tmp_path), "best 1") == {}


def test_the_means_at_values_are_of_the_trials_that_count(tmp_path):
    def value(lr, env_id, seed):
        return None if (env_id, seed) == ("B", 1) else lr + 10 * seed

    table = ranking_table(rank_sweep(ran(tmp_path, value, args={"seed": 0}, repeats=2)))
    assert table[["reward_mean", "env_id=A", "env_id=B"]].to_numpy().tolist() == [[0.2] * 3, [0.1] * 3]


def _event(state, values, params, attrs):
    from trainyard.planning.journal import Suggested

    return Suggested(search=state.space.search_key, values=values, params=params, attrs=attrs)


def _end(name, reward):
    from trainyard.planning.attempts import Attempt

    return Attempt(name, 1, 0, 1, outcome=TrialStatus.FINISHED, metrics={"reward": float(reward)})


def test_evidence_for_a_search_has_all_values(tmp_path):
    keys = searched(trials=[{"lr": 0.5}, {"lr": 0.6, "env_id": "A"}])
    state = ran(tmp_path, lambda lr, env_id: lr, **keys)

    class Order:
        cancelled = frozenset()

    source = SuggestionSource(state, Order())
    source._find_evidence()
    assert [[each.trial.values for each in group] for group in source._evidence] == [
        [{"lr": 0.5, "env_id": "A"}, {"lr": 0.5, "env_id": "B"}]
    ]


def test_a_trial_of_before_the_key_was_varied_is_no_evidence(tmp_path):
    """Its value is that of `args`."""
    args = {"env_id": "A"}
    ran(tmp_path, lambda lr, env_id: lr, args=args, grid={}, trials=[{"lr": 0.5}], average=[])
    sweep = config_of(args=args, **searched()).sweeps["s"]
    state = read_state(sweep, "s", tmp_path)
    assert len(state.earlier) == 1

    class Order:
        cancelled = frozenset()

    source = SuggestionSource(state, Order())
    source._find_evidence()
    assert source._evidence == []


def test_further_seeds_of_the_best_run_at_all_values(tmp_path):
    state = ran(tmp_path, lambda lr, env_id, seed: lr, args={"seed": 0}, repeats=2, repeat_best=1)
    assert state.space.unchosen == 2

    class Order:
        space = state.space

        def ended(self, first):
            return state

    draws, _ = _draw_seeds(Order(), list(state.trials))
    assert [each.values for each in draws] == [
        {"lr": 0.2, "env_id": "A", "seed": 1},
        {"lr": 0.2, "env_id": "B", "seed": 1},
    ]


def test_what_is_averaged_changes_what_a_search_draws_but_no_trial():
    spaces = [TrialSpace(config_of(average=average).sweeps["s"], "d") for average in ([], ["env_id"])]
    assert len({space.digest for space in spaces}) == 2
    assert len({tuple(space.trials) for space in spaces}) == 1
    more = searched(grid={"env_id": ["A", "B", "C"]})
    keys = [TrialSpace(config_of(**each).sweeps["s"], "d").search_key for each in (searched(), more)]
    assert len(set(keys)) == 2


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"average": ["env"]}, "env is no varied key; did you mean 'env_id'?"),
        ({"average": ["seed"]}, "trials that differ in seed are one configuration anyway: remove it"),
        ({"grid": {"seed": [0, 1]}, "average": ["seed"]}, "trials that differ in seed are one configuration anyway"),
        (searched(average=["lr"]), "each configuration needs all values of lr: give them as a list in `grid`"),
        (
            {"grid": {"lr": [1, 2], "env_id": {"choices": ["A", "B"], "when": {"lr": 1}}}},
            "each configuration needs all values of env_id",
        ),
        ({"grid": {"env_id": ["A"]}, "trials": [{"fold": 1}], "average": ["env_id", "fold"]}, "all values of env_id"),
        (
            {"trials": [{"lr": 1, "env_id": "C"}]},
            "trials.0 has env_id = C: give a value that all configurations have",
        ),
        (
            {"trials": [{"lr": 3, "env_id": "A", "fold": 1}], "average": ["env_id", "fold"]},
            "each configuration needs all values of fold: give them as a list in `grid`",
        ),
        (
            {
                "grid": {"lr": [1]},
                "trials": [{"lr": 3, "env_id": "A", "fold": 1}, {"lr": 4, "env_id": "A"}],
                "average": ["env_id", "fold"],
            },
            "trials.1 has env_id = A: give a value that all configurations have of each of env_id, fold, or of none",
        ),
        (
            {
                "grid": {"lr": [1], "env": [{"id": "A", "steps": 1}, {"id": "B", "steps": 2}]},
                "trials": [{"lr": 3, "env.id": "A"}],
                "average": ["env.id"],
            },
            "each configuration needs all values of env.id: give them as a list in `grid`",
        ),
        ({"stop": {"method": "asha"}}, "stop compares each trial with all others, also at other values"),
        (
            {"grid": {}, "trials": [{"lr": 1}, {"env_id": "A"}], "search": searched()["search"]},
            "each configuration needs all values of env_id: give them as a list in `grid`",
        ),
    ],
)
def test_what_cannot_be_averaged_is_one_error(keys, message):
    with pytest.raises(ConfigError) as error:
        config_of(**keys)
    assert message in str(error.value)
    assert str(error.value).count("average") == 1
