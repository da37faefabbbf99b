"""What is computed from the log of a run."""

import pytest
from peers.columns import attempts_of, columns, overheads
from peers.works import Work, works

TWO = Work("two", "Two slots", (1.0, 2.0, 3.0), nodes=1, limit_seconds=1)


def log(*lines: tuple[str, int, float]) -> str:
    """A log with one process per trial."""
    return "".join(f"{event} {index} {time} n1 0 {index}\n" for event, index, time in lines)


RUN = log(
    ("start", 3, 101), ("start", 2, 101.5), ("end", 2, 103.5), ("end", 3, 104), ("start", 1, 104.1), ("end", 1, 105.1)
)  # fmt: skip


def test_the_depth_sweep_is_that_of_the_packing_reference():
    depth = works(scale=1, short_trials=1000)["depth"]
    assert sum(depth.seconds) == pytest.approx(178.5)
    assert max(depth.seconds) == pytest.approx(17)
    assert depth.bound_seconds == pytest.approx(178.5 / 4)
    assert depth.crashing_trial == 20


def test_columns_of_a_run():
    found = columns(TWO, RUN, submitted=100, over=106, gpu_seconds=12)
    assert found["seconds"] == pytest.approx(5.1)  # until the last trial ended
    assert found["over_seconds"] == 6
    assert found["first_seconds"] == 1
    assert found["over_bound"] == pytest.approx(4.1 / 3)
    assert found["idle_fraction"] == pytest.approx(0.5)
    # The second slot waited 0.5 s for its first trial; when trial 1 started, a slot had been free since 103.5.
    assert found["overhead_p50_seconds"] == pytest.approx((0.5 + 0.6) / 2)


def test_a_run_that_is_not_complete_has_no_duration():
    found = columns(TWO, log(("start", 3, 101), ("end", 3, 104)), submitted=100, over=200, gpu_seconds=0)
    assert found["trials_finished"] == 1
    assert (found["seconds"], found["over_bound"], found["idle_fraction"]) == (None, None, None)
    nothing = columns(TWO, "", submitted=100, over=200, gpu_seconds=0)
    assert (nothing["trials_finished"], nothing["first_seconds"], nothing["overhead_p50_seconds"]) == (0, None, None)


def test_a_kill_costs_what_had_finished_and_ran_again_and_what_was_running():
    trouble = log(
        ("start", 1, 101), ("start", 3, 101), ("end", 1, 102), ("start", 2, 102),  # killed at 103: trials 2 and 3
        ("start", 3, 110), ("end", 3, 113), ("start", 1, 110), ("end", 1, 111), ("start", 2, 111), ("end", 2, 113),
    )  # fmt: skip
    found = columns(TWO, trouble, submitted=100, over=114, gpu_seconds=20, kill=103)
    assert found["lost_seconds"] == pytest.approx(1)
    assert found["repeated_seconds"] == pytest.approx(1 + 2 + 1)
    assert found["seconds"] == pytest.approx(13)


def test_a_trial_that_ended_after_the_kill_had_begun_had_not_finished():
    trouble = log(("start", 1, 101), ("end", 1, 103.1), ("start", 1, 110), ("end", 1, 112))
    found = columns(TWO, trouble, submitted=100, over=114, gpu_seconds=20, kill=103)
    assert found["lost_seconds"] == 0
    assert found["repeated_seconds"] == pytest.approx(2.1)


def test_a_crash_is_an_attempt_that_did_not_finish():
    first, second = attempts_of(log(("start", 1, 1), ("crash", 1, 2), ("start", 1, 3), ("end", 1, 5)))
    assert (first.has_finished, first.seconds) == (False, 1)
    assert (second.has_finished, second.seconds) == (True, 2)


def test_more_trials_at_once_than_slots_were_asked_for_do_not_count_as_negative():
    attempts = attempts_of(log(("start", 1, 1), ("start", 2, 1), ("start", 3, 1), ("end", 1, 9), ("end", 2, 9)))
    assert overheads(attempts, slots=2) == [0, 0]
