"""Which changes of a config the jobs of its sweep take up while they run."""

import pytest
from trainyard.config.load import as_given, check_config, config_copy
from trainyard.planning.added_trials import add_trials, announce_config, list_changes, read_current_config
from trainyard.planning.attempts import Fold
from trainyard.planning.claims import ClaimLog
from trainyard.planning.early_stopping import EarlyStoppingRule
from trainyard.planning.history import History
from trainyard.planning.job_marks import RUN
from trainyard.planning.trial_space import TrialSpace
from trainyard.utils.files import write_json

OWN = {"command": "true {x}", "grid": {"x": [1, 2]}, "metrics": {"file": "m.json"}, "metric": "loss"}
SEARCH = {"method": "random", "trials": 3, "values": {"x": {"low": 0.0, "high": 1.0}}}
TRAIN = {"dataset": "d", "train": {"epochs": 1}, "grid": {"lr": [0.1]}}


def config_of(**sweep):
    data = {"datasets": {"d": {"source": "torchvision", "name": "CIFAR10"}}} if "train" in sweep else {}
    return check_config({**data, "sweeps": {"s": sweep}})


@pytest.mark.parametrize(
    ("before", "change", "expected"),
    [
        (OWN, {}, []),
        (OWN, {"grid": {"x": [1, 2, 3]}}, []),
        (OWN, {"grid": {"x": [1]}, "trials": [{"x": 2}, {"x": 9}]}, []),
        (OWN, {"sample": {"count": 2, "values": {"x": {"low": 0.0, "high": 1.0}}}}, []),
        (OWN, {"slots": {"jobs": 4}}, []),
        (OWN, {"grid": {"x": [2, 3]}}, ["the number of trials"]),
        (OWN, {"metric": "accuracy", "mode": "max", "grid": {"x": [1, 2, 3]}}, ["metric", "mode"]),
        (OWN, {"stop": {"method": "median"}}, ["stop"]),
        (OWN, {"slots": {"gpus_per_node": 2}}, ["slots"]),
        (OWN, {"command": "false {x}"}, ["command", "the number of trials"]),
        (OWN | {"grid": {}, "search": SEARCH}, {"search": SEARCH | {"trials": 9}}, []),
        (OWN | {"grid": {}, "search": SEARCH}, {"search": SEARCH | {"trials": 2}}, ["the number of trials"]),
        (OWN | {"grid": {}, "search": SEARCH}, {"search": SEARCH | {"seed": 1}}, ["search"]),
        (OWN | {"grid": {}, "search": SEARCH}, {"trials": [{"x": 9}]}, []),
        (OWN | {"search": SEARCH}, {"grid": {"x": [2]}}, ["the number of trials"]),
        (TRAIN, {"grid": {"lr": [0.1, 0.2]}}, []),
        (TRAIN, {"trials": [{"deterministic": True}]}, ["deterministic"]),
    ],
)
def test_only_trials_that_are_added_are_taken_up(before, change, expected):
    old, new = config_of(**before).sweeps["s"], config_of(**before | change).sweeps["s"]
    assert list_changes(old, new) == expected


def test_what_a_search_and_a_grid_gain_has_the_same_names_as_in_a_new_config(tmp_path):
    for before, change in ((OWN, {"grid": {"x": [1, 2, 3]}}), (OWN | {"grid": {}, "search": SEARCH},
                                                              {"search": SEARCH | {"trials": 5}})):  # fmt: skip
        old, new = config_of(**before).sweeps["s"], config_of(**before | change).sweeps["s"]
        history = History("s", old, "no dataset", tmp_path, Fold(tmp_path))
        known = set(history.trials)
        added = history.grow(new)
        assert known.isdisjoint(added)
        assert history.trials == TrialSpace(new, "no dataset").trials
        assert history.space.undrawn_count == TrialSpace(new, "no dataset").undrawn_count


def test_further_seeds_of_the_best_are_not_stopped_after_the_config_has_gained_trials(tmp_path):
    best = {
        "command": "true {x} {seed}",
        "args": {"seed": 0},
        "repeat_best": 1,
        "repeats": 3,
        "metric": "loss",
        "mode": "min",
        "stop": {"method": "asha"},
    }
    old, new = (config_of(**OWN | best | {"grid": {"x": values}}).sweeps["s"] for values in ([1, 2], [1, 2, 3]))
    history = History("s", old, "no dataset", tmp_path, Fold(tmp_path))
    rule = EarlyStoppingRule.of(history)
    (added, *_) = history.grow(new)
    for loss, name in enumerate(("a", "b", "c")):
        rule.verdict(name, {"epoch": 1, "loss": float(loss)})
    assert rule.awaits_verdict(added, {"epoch": 1, "loss": 9.0})
    history.space.further.add(added)
    assert not rule.awaits_verdict(added, {"epoch": 1, "loss": 9.0})
    assert not rule.verdict(added, {"epoch": 1, "loss": 9.0})


def test_each_run_takes_up_what_later_ones_add_and_nothing_of_those_before_it(tmp_path, monkeypatch):
    runs = {"first": [1, 2], "second": [1, 2, 3], "third": [1, 2], "fourth": [1, 2, 4]}
    configs, entries = {}, {}
    for run, values in runs.items():
        monkeypatch.setenv(RUN, run)
        configs[run] = config_of(**OWN | {"grid": {"x": values}})
        entries[run] = announce_config(configs[run], "s", tmp_path)
        assert announce_config(configs[run], "s", tmp_path) == entries[run], "once"
    claims = ClaimLog(tmp_path / "sweeps/s")
    claims.read()

    def values_of(config):
        return sorted(trial.values["x"] for trial in TrialSpace(config.sweeps["s"], "").trials.values())

    found = {
        run: values_of(add_trials(configs[run], "s", tmp_path, claims.requests, after=entries[run])) for run in runs
    }
    assert found == {"first": [1, 2, 3], "second": [1, 2, 3], "third": [1, 2, 4], "fourth": [1, 2, 4]}
    monkeypatch.setenv(RUN, "third")
    copy = config_copy(configs["third"], tmp_path)
    write_json(copy, as_given(configs["third"]))
    assert values_of(read_current_config(copy, tmp_path)) == [1, 2, 4]
    assert values_of(read_current_config(copy, tmp_path, study="s")) == [1, 2, 4]
    assert values_of(read_current_config(copy, tmp_path, study="another")) == [1, 2], "only of that study"
    monkeypatch.delenv(RUN)
    assert values_of(read_current_config(copy, tmp_path)) == [1, 2], "by hand, as the file is"
