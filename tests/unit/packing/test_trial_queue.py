"""Which trial starts next on a slot, and which still have time to run."""

import math
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from sweep_journals import claims_beside, run_beside, session_of
from trainyard.cluster import slurm_allocation
from trainyard.cluster.slurm_allocation import DEADLINE_MARGIN_SECONDS, Allocation
from trainyard.config.load import check_config
from trainyard.config.user_programs import UserProgram
from trainyard.packing.failure_policy import FailurePolicy, TrialFailure
from trainyard.packing.slot_pool import CurrentTrial, Phase
from trainyard.packing.time_limits import OVERDUE_SECONDS, WORTHWHILE_SECONDS, TimeLimits
from trainyard.packing.trial_claims import TrialClaims
from trainyard.packing.trial_loop import TrialLoop
from trainyard.packing.trial_queue import PREDICT_FRACTION, TrialQueue
from trainyard.planning.attempts import Attempt
from trainyard.planning.duration_forecast import DurationForecast
from trainyard.planning.duration_model import Prediction
from trainyard.planning.journal import Location
from trainyard.planning.plan import plan_sweep
from trainyard.planning.search import OptunaStudy, SuggestionSource
from trainyard.planning.task import Task
from trainyard.planning.trial_space import is_placeholder

HERE, THERE = Location("", "n1", "0", 0), Location("", "n2", "0", 1)
BOTH = [HERE, THERE]
ENDLESS = TimeLimits(None, can_resume=True)


def task(trial, *, seconds=None, least=None, spec=None, earlier=()):
    spec = spec or UserProgram(command="true")
    return Task(trial, spec, {}, 0, earlier, expected_seconds=seconds, min_seconds=least)


@pytest.fixture
def queue_of(tmp_path):
    """Makes a queue of these tasks, in the only job of a sweep."""
    with session_of(tmp_path) as journal:
        claims = claims_beside(journal)

        def make(*tasks, **parts):
            made = TrialQueue(run_beside(journal, claims=claims, **parts))
            made.add(tasks)
            return made

        yield make


def drain(queue, place=HERE):
    taken = []
    while found := queue.take(place, BOTH):
        taken.append(found.trial)
    return taken


def limits(seconds_left, **options):
    end_time = time.time() + seconds_left + DEADLINE_MARGIN_SECONDS
    return TimeLimits(Allocation("1", ("n1",), end_time), **{"can_resume": False, **options})


def test_trials_start_in_order_and_then_the_suggested_ones(queue_of):
    class Search:
        remaining = 2

        def next_task(self, seconds):
            self.remaining -= 1
            return task(f"suggested-{self.remaining}") if self.remaining >= 0 else None

    queue = queue_of(task("a"), task("b"), search=Search())
    assert queue.waiting == 4
    assert drain(queue) == ["a", "b", "suggested-1", "suggested-0"]


def test_a_trial_that_must_fit_a_budget_starts_without_a_look_at_all_others(tmp_path, monkeypatch):
    sweep = check_config({"sweeps": {"s": {"command": "true {x}", "grid": {"x": [1, 2]}, "budget": {"gpu_hours": 1}}}})
    state = plan_sweep(sweep, "s", tmp_path).state
    state.folder.mkdir(parents=True)
    with session_of(state.folder) as journal:
        queue = TrialQueue(run_beside(journal, state))
        queue.add(map(state.task, state.trials))
        monkeypatch.setattr(TrialClaims, "take_changes", None)
        assert drain(queue) == list(state.trials)


def test_a_closed_queue_starts_nothing(queue_of):
    queue = queue_of(task("a"))
    queue.is_closed = True
    assert queue.waiting == 0
    assert not queue.has_task(HERE, BOTH)
    assert drain(queue) == []


def test_a_failed_trial_goes_to_another_slot(queue_of):
    failures = FailurePolicy(retries=1)
    failures.record_failure(TrialFailure("a", HERE, "ValueError", 1.0))
    queue = queue_of(task("a"), task("b"), failures=failures)
    assert drain(queue, HERE) == ["b"]
    assert queue.has_task(THERE, BOTH)
    assert drain(queue, THERE) == ["a"]


def test_a_trial_that_may_not_run_again_here_is_not_claimed_with_others(tmp_path, monkeypatch):
    """Another job has a better place for it, and would end without it."""
    failures = FailurePolicy(retries=1)
    failures.record_failure(TrialFailure("b", HERE, "ValueError", 1.0))
    with session_of(tmp_path) as journal:
        claims = claims_beside(journal)
        queue = TrialQueue(run_beside(journal, claims=claims, failures=failures))
        queue.add(map(task, "abcdef"))
        monkeypatch.setattr(TrialClaims, "places", [THERE])
        assert queue.take(HERE, [HERE]).trial == "a"
        assert [name for name in "abcdef" if claims.is_mine(name)] == ["a", "c", "d"]


def test_a_gpu_that_is_avoided_gets_neither_a_waiting_nor_a_suggested_trial(queue_of):
    class Search:
        remaining = 1

        def next_task(self, seconds):
            return task("suggested")

    failures = FailurePolicy(retries=0)
    for number in range(9):
        failures.record_success(f"good{number}", THERE)
        failures.record_failure(TrialFailure(f"bad{number}", HERE, "ValueError", 1.0))
    for queue in (queue_of(task("a"), failures=failures), queue_of(failures=failures, search=Search())):
        assert not queue.has_task(HERE, BOTH)
        assert queue.take(HERE, BOTH) is None
        assert queue.has_task(THERE, BOTH)
        assert queue.take(THERE, BOTH)


def test_a_shorter_trial_takes_the_place_of_one_that_cannot_end_in_time(queue_of):
    long, short = task("long", seconds=500, least=400), task("short", seconds=50, least=40)
    assert drain(queue_of(long, short, limits=limits(300))) == ["short"]
    assert drain(queue_of(long, short, limits=limits(600))) == ["long", "short"]


def test_without_an_estimate_a_trial_needs_as_long_as_the_longest_so_far(queue_of):
    queue = queue_of(task("a"), limits=limits(300))
    queue.note_finished("x", 400.0)
    assert not queue.has_task(HERE, BOTH)


@pytest.mark.parametrize(("spare", "starts"), [(60, True), (-60, False)])
def test_a_trial_that_can_resume_starts_if_it_can_run_for_a_while(spare, starts):
    left = limits(WORTHWHILE_SECONDS + 30 + spare, can_resume=True, grace_seconds=30)
    assert left.is_worthwhile(10_000) == starts


def predicts(seconds):
    """A model that is sure of its predictions."""

    def predict(self, names, finished):
        expected = np.array([seconds[name] for name in names])
        return Prediction(expected, np.tile(expected, (20, 1)))

    return predict


def test_the_order_follows_new_predictions_with_retries_last(queue_of, monkeypatch):
    predict = predicts({"a": 1.0, "b": 9.0, "retried": 99.0, "failed": 98.0})
    failed = replace(task("failed"), has_failed=True)  # in an earlier run
    monkeypatch.setattr(DurationForecast, "predict", predict)
    queue = queue_of(task("a"), task("retried"), failed, task("b"))
    assert queue._claims.claim(["retried"])
    queue.start_attempt(task("retried"))
    queue.note_finished("x", 5.0)
    queue.update_order()
    assert drain(queue)[:2] == ["b", "a"]


def test_the_slots_of_short_trials_do_not_wait_for_predictions(queue_of, monkeypatch):
    """Here, one takes 20 ms."""
    now, predicted_at = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def predict(self, names, finished):
        predicted_at.append(len(finished))
        now[0] += 0.02
        return predicts({"a": 1.0})(self, names, finished)

    monkeypatch.setattr(DurationForecast, "predict", predict)
    queue = queue_of(task("a"))
    for number in range(100):
        queue.note_finished(str(number), 0.05)
        queue.update_order()
        now[0] += 0.05
    assert predicted_at[0] == 1
    assert 3 <= len(predicted_at) <= 1 + (now[0] - 100.0) * PREDICT_FRACTION / 0.02


SECONDS = {"3 s": 3.0, "6 s": 6.0, "5 s": 5.0, "4 s": 4.0}


def test_an_order_that_is_updated_keeps_the_predictions_of_each_trial(queue_of, monkeypatch):
    monkeypatch.setattr(DurationForecast, "predict", predicts(SECONDS))
    queue = queue_of(*(task(name) for name in SECONDS))
    queue.note_finished("x", 5.0)
    queue.update_order()
    taken = [queue.take(HERE, BOTH) for _ in SECONDS]
    assert {each.trial: each.expected_seconds for each in taken} == SECONDS
    assert {each.trial: each.min_seconds for each in taken} == SECONDS


def test_a_worker_is_killed_some_time_after_it_should_have_ended_a_command():
    limited = limits(300, grace_seconds=30, timeout_seconds=60)
    assert limited.kill_seconds(task("a")) == 60 + 30 + OVERDUE_SECONDS
    assert limited.kill_seconds(task("a", spec=UserProgram(function="m:f"))) == 60
    assert ENDLESS.kill_seconds(task("a")) == float("inf")


def test_after_a_suspension_trials_have_the_rest_of_their_time_and_of_the_walltime(tmp_path, slurm):
    """Slurm moves the end of the job on when it resumes it."""

    def ends_in(seconds):
        return f"EndTime={time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(time.time() + seconds))}"

    slurm.allocate("n1", line=ends_in(-1000))
    given = slurm_allocation.current_allocation()

    class GoesOnError(Exception):
        pass

    class BusyWorkers:
        have_ended = False

        def wait(self, answers, *, seconds):
            if claims.paused_seconds:
                raise GoesOnError
            slurm.prints("scontrol", f"JobId={given.job} NumCPUs=1 NodeList=n1 {ends_in(2600)}", of="show job")
            claims._watch._paused = 3600.0, math.inf
            return []

    with session_of(tmp_path) as journal:
        claims = claims_beside(journal)
        limits = TimeLimits(given, can_resume=False)
        loop = TrialLoop(run_beside(journal, claims=claims, limits=limits), BusyWorkers())
        (slot,) = loop.slots.slots
        slot.worker = object()
        slot.current = CurrentTrial(slot, task("a"), Attempt("a", 1, 0.0, 0.0), began=0.0)
        slot.expect(Phase.RUNNING, "answer", due=time.monotonic() - 1000)
        with pytest.raises(GoesOnError):
            loop._run_until_idle()
    assert 2000 < limits.seconds_left() < 2600
    assert 2000 < slot.due - time.monotonic() < 2600


@contextmanager
def searching(folder, trials=4):
    """The queue of a job of a search, and the order that it shares with other jobs."""
    own = {"command": "./p {x}", "metrics": {"file": "m.json"}, "metric": "loss", "slots": {"jobs": 2}}
    own["search"] = {"trials": trials, "values": {"x": {"low": 0, "high": 1}}}
    state = plan_sweep(check_config({"sweeps": {"s": own}}), "s", folder).state
    with session_of(folder / "sweeps/s") as journal:
        claims = claims_beside(journal, state)
        source = SuggestionSource(state, claims)
        queue = TrialQueue(run_beside(journal, claims=claims, search=source))
        names = [name for name in state.unfinished if not is_placeholder(name) and claims.may_run(name)]
        queue.add(map(state.task, names))
        yield queue, claims


def test_a_search_draws_one_configuration_ahead_while_several_slots_are_busy(tmp_path, monkeypatch):
    with searching(tmp_path) as (queue, claims):
        assert not queue.lacks_draw(1), "a search on one slot awaits each result"
        assert queue.lacks_draw(2)
        queue.draw_ahead()
        (ahead,) = claims.space.suggestions
        assert not claims.is_mine(ahead.name)
        assert queue.waiting == 4
        assert not queue.lacks_draw(2), "one is enough"
        with monkeypatch.context() as patched:
            patched.setattr(OptunaStudy, "draw", None)
            assert queue.take(HERE, BOTH).trial == ahead.name
        assert claims.is_mine(ahead.name)
        queue.draw_ahead()
    with searching(tmp_path) as (queue, claims):
        drawn = [each.name for each in claims.space.suggestions]
        assert drain(queue)[0] == drawn[1], "nobody has claimed it"
        assert len(claims.space.suggestions) == 4


def test_what_a_job_has_drawn_ahead_runs_in_the_job_with_the_first_free_slot(tmp_path, monkeypatch):
    with searching(tmp_path) as (mine, claims), searching(tmp_path) as (theirs, _):
        first = mine.take(HERE, [HERE])
        theirs.take(THERE, [THERE])
        claims.refresh()
        assert mine.lacks_draw(1), "another job is busy, too"
        mine.draw_ahead()
        monkeypatch.setattr(OptunaStudy, "draw", None)
        theirs.draw_ahead()  # another job has just drawn
        ahead = claims.space.suggestions[2].name
        assert theirs.take(THERE, [THERE]).trial == ahead
        monkeypatch.undo()
        assert ahead not in drain(mine)
        assert first.trial in {each.name for each in claims.space.suggestions}
