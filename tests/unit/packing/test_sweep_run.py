"""Who hears of an event of this job, and of one of another job."""

import pytest
from sweep_journals import claims_beside, read_journal, run_beside, session_of
from trainyard.config.trial_status import TrialStatus
from trainyard.packing.failure_policy import FailurePolicy
from trainyard.planning.attempts import Attempt
from trainyard.planning.journal import Ended, Location, Started


class Consumer:
    def __init__(self):
        self.heard = []

    def on_event(self, event, attempt, *, is_own):
        self.heard.append((type(event), attempt.outcome, is_own))


def test_all_consumers_hear_of_events_of_this_job_once_they_are_in_its_journal_and_of_those_of_others(tmp_path):
    first, second = Consumer(), Consumer()
    with session_of(tmp_path) as journal:
        run = run_beside(journal, consumers=[first, second])
        run.record(Started(trial="a", attempt=1))
        attempt = run.record(Ended(trial="a", attempt=1, status=TrialStatus.FINISHED, seconds=2.0))
        assert [type(event) for event in read_journal(tmp_path)] == [Started, Ended]
        other = Attempt("b", 1, 0.0, 1.0)
        run.apply(Started(trial="b", attempt=1), other, is_own=False)
    assert attempt.seconds == 2.0
    running, finished = TrialStatus.RUNNING, TrialStatus.FINISHED
    assert first.heard == [(Started, running, True), (Ended, finished, True), (Started, running, False)]
    assert second.heard == first.heard


@pytest.mark.parametrize(("is_own", "failures"), [(True, 1), (False, 2)])
def test_a_failure_of_this_job_counts_when_its_retry_is_decided_and_one_of_another_job_when_it_is_read(
    tmp_path, is_own, failures
):
    with session_of(tmp_path) as journal:
        state = claims_beside(journal).state_now()
    trial = next(iter(state.trials))
    policy = FailurePolicy.of_sweep(state)
    location = Location("1", "n", "0", 0)
    place = location
    attempt = Attempt(trial, 1, 0.0, 1.0, location, outcome=TrialStatus.FAILED, error="ValueError: no")
    ended = Ended(trial=trial, attempt=1, status=TrialStatus.FAILED, error="ValueError: no", retried=True)
    policy.on_event(ended, attempt, is_own=False)
    policy.on_event(ended, attempt, is_own=is_own)
    assert len(policy._failures[trial]) == failures
    finished = Attempt(trial, 2, 1.0, 2.0, location, outcome=TrialStatus.FINISHED)
    policy.on_event(Ended(trial=trial, attempt=2, status=TrialStatus.FINISHED), finished, is_own=is_own)
    assert policy.failures_in_a_row(place) == 0, "a success counts in whichever job"
