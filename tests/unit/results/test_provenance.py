"""What trials, scales and tree models ran with, and whether they differ in it."""

import pytest
from sweep_journals import write_session
from trainyard.config.load import check_config
from trainyard.planning.history import read_state
from trainyard.results.answer import answer_sweep
from trainyard.results.best_config import write_best
from trainyard.results.provenance import (
    describe_difference,
    describe_mismatch,
    describe_origin,
    read_sessions,
    sessions_of_results,
)
from trainyard.utils.files import write_json

OLD, NEW = {"python": "3.12.3", "torch": "2.9.0", "trainyard": "0.1.0"}, {"python": "3.12.3", "torch": "2.10.0"}
SCALES = ("1x1", "1x2", "1x4")
FIRST, SECOND = {"code": "1a", "versions": OLD}, {"code": "2b", "versions": NEW}


def state_of(folder, *sessions, **options):
    """A sweep of which each session has run one trial."""
    config = check_config({"sweeps": {"s": {"function": "os:getcwd", "grid": {"lr": [1, 2, 3]}, **options}}})
    for number, (trial, session) in enumerate(
        zip(read_state(config.sweeps["s"], "s", folder).trials, sessions, strict=False)
    ):
        start, of_trial = {"time": 100.0 * number}, {"trial": trial, "attempt": 1, "time": 100.0 * number + 1}
        records = [
            {"event": "session", **start, "job": str(number), **session},
            {"event": "started", **of_trial},
            {"event": "finished", **of_trial, "seconds": 1.0, "metrics": {"rmse": 1.0}},
        ]
        write_session(folder / "sweeps/s", records, number=number, order_job=number)
    return config, read_state(config.sweeps["s"], "s", folder)


@pytest.mark.parametrize(
    ("sessions", "options", "expected"),
    [
        ([{"code": "1a"}, {"code": "1a", "versions": OLD}], {}, ""),
        ([{}, {}, {"versions": OLD}], {}, ""),
        ([{"code": "1a"}, {"code": "1a-dirty"}, {"code": "1a"}], {}, "1a (2), 1a with uncommitted changes (1)"),
        (
            [{"code": "1a-dirty-00ff"}, {"code": "1a-dirty-99aa"}],
            {},
            "1a with uncommitted changes 00ff (1), 1a with uncommitted changes 99aa (1)",
        ),
        ([{"code": "1a"}, {}], {}, "1a (1), an unknown commit (1)"),
        ([{"code": "1a"}, {"code": "2b-dirty"}], {"code": ["."]}, ""),
        ([FIRST, SECOND], {"code": ["."]}, "torch 2.9.0 (1), torch 2.10.0 (1)"),
        ([{"versions": OLD}, {}, {"versions": NEW}], {}, "torch 2.9.0 (1), unknown versions (1), torch 2.10.0 (1)"),
        ([FIRST, SECOND], {}, "1a, torch 2.9.0 (1), 2b, torch 2.10.0 (1)"),
    ],
)
def test_trials_of_different_commits_and_versions_are_told_in_a_line(
    tmp_path, monkeypatch, sessions, options, expected
):
    """With `code`, its digest decides instead of the commit."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text("1")
    monkeypatch.chdir(tmp_path / "src")
    _, state = state_of(tmp_path, *sessions, **options)
    start = "trials ran with different versions: "
    counted = expected.replace("(1)", "(1 trial)").replace("(2)", "(2 trials)")
    assert describe_mismatch(state) == (start + counted if expected else "")


@pytest.mark.parametrize(
    ("summaries", "expected"),
    [
        ({"1x1": [FIRST], "1x1/repeat-2": [FIRST], "1x2": [FIRST]}, ""),
        ({"1x1": None, "1x2": None}, ""),
        ({"1x1": [FIRST], "1x2": [SECOND]}, "1a, torch 2.9.0 (1x1), 2b, torch 2.10.0 (1x2)"),
        ({"1x1": [FIRST], "1x1/repeat-2": [{"code": "2b"}], "1x2": [FIRST]}, "1a and 2b (1x1), 1a (1x2)"),
        ({"1x1": [FIRST, SECOND], "1x2": [FIRST, SECOND]}, "1a, torch 2.9.0 and 2b, torch 2.10.0 (1x1, 1x2)"),
        ({"1x1": None, "1x2": [{"code": "1a", "versions": OLD}]}, "an unknown commit (1x1), 1a (1x2)"),
    ],
)  # fmt: skip
def test_scales_and_repeats_of_different_commits_and_versions_are_told_in_a_line(tmp_path, summaries, expected):
    """A scale has all sessions that have trained it."""
    for run, sessions in summaries.items():
        write_json(tmp_path / run / "summary.json", {"sessions": sessions} if run == "1x1" or sessions else {})
    runs = {scale: [tmp_path / scale / repeat / "summary.json" for repeat in (".", "repeat-2")] for scale in SCALES}
    start = "scales ran with different versions: "
    assert describe_difference("scales ran", read_sessions(runs)) == (start + expected if expected else "")


def test_best_yaml_says_what_its_best_trial_ran_with(tmp_path):
    config, state = state_of(tmp_path, {"code": "1a-dirty", "versions": OLD, "config": "0123abcd"})
    ran_with = "1a with uncommitted changes, python 3.12.3, torch 2.9.0, trainyard 0.1.0"
    (session,) = sessions_of_results(state).values()
    assert describe_origin(session) == ran_with
    text = write_best(config, state, answer_sweep(state)).read_text()
    assert f"\n# It ran with {ran_with}\n# The config of its job: {tmp_path}/configs/0123abcd.json\n" in text
