"""What `keep` removes of the files of ended trials, and what it never removes."""

import pytest
from sweep_journals import record_attempt, session_of
from trainyard.config.load import check_config
from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import metrics_digest
from trainyard.planning.history import read_state
from trainyard.planning.journal import Ended, Started
from trainyard.results.retention import reduce_folders, reduced_folders
from trainyard.utils.guarded_process import hold_folder

FINISHED, STOPPED, FAILED = TrialStatus.FINISHED, TrialStatus.STOPPED, TrialStatus.FAILED
GRID = {"lr": [1, 2, 3], "seed": [0, 1]}
FILES = ["curves/deep/plot.png", "curves/loss.csv", "last.pt", "output-1.log"]


def state_of(results, **options):
    sweep = {"command": "true {args}", "grid": GRID, "metrics": {"file": "curves/loss.csv"}}
    sweep |= {"metric": "loss", "stop": {"method": "asha"}}
    return read_state(check_config({"sweeps": {"s": {**sweep, **options}}}).sweeps["s"], "s", results)


def swept(results, *ends, **options):
    """A sweep whose first trials have ended so: a loss, or a status and a loss. Each has left FILES."""
    state = state_of(results, **options)
    with session_of(state.folder) as journal:
        for name, end in zip(state.trials, ends, strict=False):
            status, loss = end if isinstance(end, tuple) else (FINISHED, end)
            of_attempt = {"trial": name, "attempt": 1}
            journal.record(Started(**of_attempt))
            digest = metrics_digest(state.sweep.program_metrics)
            fields = {"metrics": {"loss": loss}, "seconds": 1.0, "metrics_digest": digest}
            rule = state.stop_rule if status is STOPPED else None
            error = "loss became NaN or infinite" if status is TrialStatus.DIVERGED else None
            why = "asha" if status is STOPPED else None
            journal.record(Ended(**of_attempt, status=status, rule=rule, why=why, error=error, **fields))
            for file in FILES:
                path = state.folder / "trials" / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(file)
    return state_of(results, **options)


def reduce_now(state, keep):
    for folders in reduced_folders(state, keep).values():
        reduce_folders(folders)


def left(state):
    """Per trial, in the config's order, whether its files are whole, reduced, or not there."""
    found = []
    for name in state.trials:
        folder = state.folder / "trials" / name
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        found.append({0: "none", 2: "reduced", 4: "whole"}[len(files)])
        assert files in ([], FILES, ["curves/loss.csv", "output-1.log"])
    return found


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ("all", ["whole"] * 4 + ["none"] * 2),
        ("metrics", ["reduced"] * 4 + ["none"] * 2),
        ("best 1", ["reduced", "reduced", "whole", "whole", "none", "none"]),  # by the mean, with all its seeds
        ("best 2", ["whole"] * 4 + ["none"] * 2),
        ("best 9", ["whole"] * 4 + ["none"] * 2),
    ],
)
def test_the_best_configurations_or_the_metrics_alone_are_kept(tmp_path, keep, expected):
    state = swept(tmp_path, 0.1, 3.0, 1.0, 1.1)  # the best single trial is of a worse configuration
    reduce_now(state, keep)
    assert left(state) == expected
    assert reduced_folders(state, keep).keys() == {
        name for name, what in zip(state.trials, expected, strict=True) if what == "reduced"
    }


@pytest.mark.parametrize("by", [{"metric": "seconds"}, {"objectives": {"seconds": "min", "loss": "min"}}])
def test_the_fastest_are_the_best_if_the_config_says_so(tmp_path, by):
    state = swept(tmp_path, 1.0, 1.0, 2.0, 2.0, stop=None, **({"metric": None} | by))
    assert len(reduced_folders(state, "best 1")) == 2


def test_trials_that_may_go_on_and_configurations_that_are_not_complete_are_whole(tmp_path):
    ends = [3.0, (STOPPED, 5.0), (TrialStatus.INTERRUPTED, 0.0), (FAILED, 0.0), 0.5]
    state = swept(tmp_path, *ends)  # the last configuration has a seed left
    reduce_now(state, "best 1")
    assert left(state) == ["whole", "whole", "whole", "whole", "whole", "none"], (
        "one is complete, and the best of these"
    )
    reduce_now(state, "metrics")
    assert left(state) == ["reduced", "reduced", "whole", "whole", "reduced", "none"]


def test_trials_without_a_value_of_the_metric_are_not_among_the_best(tmp_path):
    ends = [(STOPPED, 0.1), (TrialStatus.DIVERGED, None), 2.0, 2.0]
    state = swept(tmp_path, *ends)
    reduce_now(state, "best 5")
    assert left(state) == ["reduced", "reduced", "whole", "whole", "none", "none"]


def test_nothing_is_removed_where_no_metric_ranks_the_trials(tmp_path):
    function = {"command": None, "metrics": None, "metric": None, "function": "mine:run"}
    options = {key: value for key, value in function.items() if value}
    state = read_state(check_config({"sweeps": {"s": {"grid": GRID, **options}}}).sweeps["s"], "s", tmp_path)
    with session_of(state.folder) as journal:
        for name in state.trials:
            record_attempt(journal, name, status=FINISHED, metrics={"a": 1, "b": 2})
            (state.folder / "trials" / name).mkdir(parents=True)
    assert reduced_folders(read_state(state.sweep, "s", tmp_path), "best 1") == {}


def test_outputs_that_are_read_with_other_rules_are_read_first(tmp_path):
    swept(tmp_path, 1.0, 2.0)
    state = state_of(tmp_path, metrics={"pattern": "loss=(?P<loss>{number})"})
    assert reduced_folders(state, "metrics") == {}, "they may resume"


def test_the_settings_of_a_trial_are_kept(tmp_path):
    state = swept(tmp_path, 1.0)
    folder = state.folder / "trials" / next(iter(state.trials))
    settings = {folder / "settings.yaml", folder / "wandb-settings.yaml"}
    for path in settings:
        path.touch()
    reduce_now(state, "metrics")
    assert settings == set(folder.glob("*settings.yaml"))


def test_what_another_rule_has_stopped_may_go_on_from_its_checkpoint(tmp_path):
    swept(tmp_path, 1.0, (STOPPED, 5.0))
    state = state_of(tmp_path, stop={"method": "asha", "grace_period": 4})
    reduce_now(state, "metrics")
    assert left(state)[:2] == ["reduced", "whole"]


def test_links_are_removed_but_not_what_they_point_at(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.pt").touch()
    state = swept(tmp_path, 1.0, 2.0)
    one, other = (state.folder / "trials" / name for name in list(state.trials)[:2])
    (one / "data").symlink_to(outside)
    other.rename(tmp_path / "moved")
    other.symlink_to(tmp_path / "moved")
    reduce_now(state, "metrics")
    assert not (one / "data").is_symlink()
    assert (outside / "precious.pt").exists()
    assert (tmp_path / "moved/last.pt").exists(), "a folder outside of the results"


def test_the_folder_of_a_running_process_is_left_alone(tmp_path):
    state = swept(tmp_path, 1.0, 2.0)
    folder = state.folder / "trials" / next(iter(state.trials))
    with hold_folder(folder, purpose="a test", grace_seconds=0):
        reduce_now(state, "metrics")
        assert left(state)[:2] == ["whole", "reduced"]
    reduce_now(state, "metrics")
    assert left(state)[:2] == ["reduced", "reduced"]


def test_best_needs_metrics_of_a_command():
    with pytest.raises(Exception, match="best 3 needs the metrics of a command: give `metrics`"):
        check_config({"sweeps": {"s": {"command": "true", "keep": "best 3"}}})
