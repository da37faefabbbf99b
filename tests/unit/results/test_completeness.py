"""Whether the results of a sweep are complete enough for its tables."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from sweep_journals import record_attempt, session_of
from trainyard.config.load import check_config
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.claims import ClaimLog
from trainyard.planning.journal import Started
from trainyard.planning.plan import plan_sweep
from trainyard.planning.requests import UserRequest
from trainyard.planning.task import output_file
from trainyard.results.completeness import check_sweep, summarize_sweep
from trainyard.utils.errors import FinalError, UserError
from trainyard.utils.locks import Holder, LockHeldError

SWEEP = {"function": "os:getcwd", "grid": {"lr": [0.1, 0.2, 0.3]}}


def swept(results, last_error):
    """The state of a sweep of three trials, of which the last one has failed."""
    config = check_config({"sweeps": {"s": SWEEP}})
    first, second, last = plan_sweep(config, "s", results).state.trials
    with session_of(results / "sweeps/s") as journal:
        for trial, fields in (
            (first, {"status": TrialStatus.FINISHED, "metrics": {"loss": 1.0}}),
            (second, {"status": TrialStatus.FINISHED, "metrics": {"loss": 2.0}}),
            (last, {"status": TrialStatus.FAILED, "error": last_error}),
        ):
            record_attempt(journal, trial, **fields)
    return plan_sweep(config, "s", results).state


@pytest.mark.parametrize("error", ["RuntimeError: an error of its own", "OSError: device cuda:0 is in use by pid 7"])
def test_a_sweep_with_a_few_failed_trials_is_complete(tmp_path, error):
    check_sweep(swept(tmp_path, error))


@pytest.mark.parametrize("limit", [0.3, 0.4])
def test_a_sweep_of_which_too_many_trials_failed_is_not_complete(tmp_path, limit):
    state = swept(tmp_path, "RuntimeError: an error of its own")
    state.sweep.__dict__["max_failed_fraction"] = limit
    with pytest.raises(UserError, match="1 of 3 trials failed for good") if limit < 1 / 3 else nullcontext():
        check_sweep(state)


def test_a_trial_that_has_not_failed_is_missing_also_after_an_attempt(tmp_path):
    """Its job was killed, and no other runs it."""
    (last,) = swept(tmp_path, "RuntimeError: an error of its own").unfinished
    with session_of(tmp_path / "sweeps/s") as journal:
        journal.record(Started(trial=last, attempt=2))
    with pytest.raises(UserError, match="sweep s: 1 of 3 trials are without a result") as error:
        check_sweep(plan_sweep(check_config({"sweeps": {"s": SWEEP}}), "s", tmp_path).state)
    assert not isinstance(error.value, FinalError), "a retry runs it"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("OSError: [Errno 28] No space left on device", "had no space on the disk"),
        ("[Errno 122] Disk quota exceeded: 'x'", "had no space on the disk"),
        (str(LockHeldError(Path("trials/a"), Holder(7, "n2", "2026-01-31 10:00:00"))), "are still running elsewhere"),
    ],
)
def test_a_sweep_is_not_complete_if_a_trial_failed_for_a_reason_that_is_not_its_own(tmp_path, error, says):
    state = swept(tmp_path, error)
    with pytest.raises(UserError, match=rf"sweep s: 1 of 3 trials {says}; .*, then run the same command"):
        check_sweep(state)


def test_the_most_common_cause_is_counted_without_the_names_and_values_of_trials(tmp_path):
    config = check_config({"sweeps": {"s": SWEEP}})
    trials = plan_sweep(config, "s", tmp_path).state.trials
    with session_of(tmp_path / "sweeps/s") as journal:
        for trial, lr in zip(trials, (0.1, 0.2, 0.3), strict=True):
            error = "ValueError: other" if lr == 0.1 else f"ValueError: lr {lr} is too large for {trial}"
            record_attempt(journal, trial, status=TrialStatus.FAILED, error=error)
    with pytest.raises(UserError, match=r"failed for good, 2 of them with: ValueError: lr 0\.2 is too large"):
        check_sweep(plan_sweep(config, "s", tmp_path).state)


@pytest.mark.parametrize("other", ["", TrialStatus.FAILED], ids=["alone", "beside a failed trial"])
def test_a_sweep_without_any_metrics_would_end_in_the_same_way_again_unless_a_trial_is_retried(tmp_path, other):
    sweep = {"command": "true {n}", "grid": {"n": [1, 2]}, "metrics": {"pattern": "acc=(?P<acc>{number})"}}
    config = check_config({"sweeps": {"s": sweep}})
    trials = list(plan_sweep(config, "s", tmp_path).state.trials)
    with session_of(tmp_path / "sweeps/s") as journal:
        for trial, status in zip(trials, (TrialStatus.UNREADABLE, other or TrialStatus.UNREADABLE), strict=True):
            record_attempt(journal, trial, status=status, error="none were found")
    state = plan_sweep(config, "s", tmp_path).state
    for trial in trials:
        output = output_file(state.folder, state.attempts[trial][0])
        output.parent.mkdir(parents=True)
        output.touch()
    with pytest.raises(UserError, match=f"{1 if other else 2} of 2 trials have no metrics") as error:
        check_sweep(state)
    assert isinstance(error.value, FinalError) is not bool(other)


def test_a_sweep_of_which_all_trials_diverged_would_end_in_the_same_way_again(tmp_path):
    config = check_config({"sweeps": {"s": SWEEP}})
    with session_of(tmp_path / "sweeps/s") as journal:
        for trial in plan_sweep(config, "s", tmp_path).state.trials:
            record_attempt(journal, trial, status=TrialStatus.DIVERGED, error="NaN")
    with pytest.raises(FinalError, match="all 3 trials diverged"):
        check_sweep(plan_sweep(config, "s", tmp_path).state)


@pytest.mark.parametrize("failed", [False, True])
def test_a_sweep_whose_budget_was_reached_before_any_result_is_complete_unless_trials_failed(tmp_path, failed):
    config = check_config({"sweeps": {"s": SWEEP | {"budget": {"hours": 0.001}}}})
    first = next(iter(plan_sweep(config, "s", tmp_path).state.trials))
    with session_of(tmp_path / "sweeps/s") as journal:
        journal.append("session", time=1.0, slots=1, gpus=1)
        if failed:
            record_attempt(journal, first, status=TrialStatus.FAILED, error="KeyError: 'x'")
        else:
            journal.append("started", trial=first, attempt=1, time=1.0)
    state = plan_sweep(config, "s", tmp_path).state
    says = r"a result: 1 failed; trial \w+ failed: KeyError: 'x'; budget reached"
    with pytest.raises(FinalError, match=says) if failed else nullcontext():
        check_sweep(state)
    assert "; budget reached: 0 of 3 trials ran; raise `budget`" in summarize_sweep(state)
    assert failed or "0 trials finished, 0 failed; budget" in summarize_sweep(state)


def test_cancelled_trials_are_not_missing_unless_there_is_no_other(tmp_path):
    config = check_config({"sweeps": {"s": SWEEP}})
    first, *others = plan_sweep(config, "s", tmp_path).state.trials
    claims = ClaimLog(tmp_path / "sweeps/s")
    for trial in others:
        claims.request(UserRequest("cancel", 1.0, trial=trial))
    with session_of(tmp_path / "sweeps/s") as journal:
        record_attempt(journal, first, status=TrialStatus.FINISHED, metrics={"loss": 1.0})
    state = plan_sweep(config, "s", tmp_path).state
    check_sweep(state)
    assert summarize_sweep(state) == "sweep s: 1 trial finished, 2 cancelled, 0 failed"
    again = check_config({"sweeps": {"s": SWEEP | {"retrain": 1}}})
    claims.request(UserRequest("cancel", 1.0, trial=first))
    with pytest.raises(FinalError, match="all 3 trials are cancelled"):
        check_sweep(plan_sweep(again, "s", tmp_path).state)
