"""The order in which trials start: never worse than longest first, and better where that leaves slots idle."""

import heapq
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainyard.config.sweep import CommandSweep
from trainyard.config.trials import expand
from trainyard.planning.order import MAX_PER_SLOT, best_order, lower_bound, makespan, remaining_seconds, spanning_trials

DEPTH = 0.2125 * np.arange(80, 0, -4)  # longest first
durations = st.lists(st.floats(0.1, 100), min_size=1, max_size=30).map(lambda each: np.sort(each)[::-1])


def draws_of(expected, noise, *, draws=200, seed=0):
    return expected * np.exp(np.random.default_rng(seed).normal(0, noise, (draws, len(expected))))


def mean_makespan(order, draws, slots, busy=None):
    """The mean makespan, computed by a heap and not by arrays."""
    spans = []
    for index, seconds in enumerate(draws):
        free = [0.0] * slots if busy is None else sorted([*busy[index], *[0.0] * (slots - busy.shape[1])])
        for trial in order:
            heapq.heapreplace(free, free[0] + seconds[trial])
        spans.append(max(free))
    return statistics.fmean(spans)


@given(durations, st.integers(1, 8), st.sampled_from([0.0, 0.03, 0.3]), st.integers(0, 5), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_no_order_is_worse_than_longest_first_over_the_draws(expected, slots, noise, last, busy_slots):
    """In a sweep that begins and in one that runs, with and without trials that stay last."""
    draws, last = draws_of(expected, noise, draws=40), min(last, len(expected))
    busy = draws_of(np.full(min(slots, busy_slots), 20.0), 0.2, draws=40, seed=1)
    order = best_order(expected, draws, slots=slots, busy=busy, last=last)
    assert sorted(order) == list(range(len(expected)))
    assert order[len(order) - last :] == list(range(len(order) - last, len(order)))
    longest_first = mean_makespan(range(len(expected)), draws, slots, busy)
    assert mean_makespan(order, draws, slots, busy) <= longest_first * (1 + 1e-12)


@pytest.mark.parametrize(("slots", "ratio"), [(4, 1.0096), (5, 1.0), (8, 1.0287), (10, 1.0)])
def test_the_depth_sweep_is_packed_as_well_as_blocks_can_be(slots, ratio):
    """On four slots, 210 units of four blocks do not divide by four: no partition is below 53 / 52.5 of the bound."""
    order = best_order(DEPTH, draws_of(DEPTH, 0.0, draws=20), slots=slots)
    assert makespan(DEPTH[order].tolist(), slots) / lower_bound(DEPTH.tolist(), slots) <= ratio


def test_the_same_durations_give_the_same_order():
    draws = draws_of(DEPTH, 0.03)
    assert best_order(DEPTH, draws, slots=8) == best_order(DEPTH, draws.copy(), slots=8)


@pytest.mark.parametrize("slots", [4, 8])
def test_durations_that_the_search_has_not_seen_are_packed_better_too(slots):
    """The search must not adapt to its samples."""
    order = best_order(DEPTH, draws_of(DEPTH, 0.03), slots=slots)
    unseen = draws_of(DEPTH, 0.03, draws=400, seed=1)
    assert mean_makespan(order, unseen, slots) < 0.995 * mean_makespan(range(len(DEPTH)), unseen, slots)


@pytest.mark.parametrize("slots", [4, 8])
@pytest.mark.parametrize("draws", [60, 200])
def test_an_order_that_is_better_on_few_samples_by_chance_is_not_chosen(slots, draws):
    """With much noise, no order is much better than longest first, but many are on 60 or 200 samples."""
    expected = np.linspace(20, 10, 20)
    for seed in range(4):
        order = best_order(expected, draws_of(expected, 0.3, draws=draws, seed=seed), slots=slots)
        assert order == list(range(20))


def test_the_search_starts_from_the_present_loads_of_the_slots():
    """One slot is busy for 6 s: 6 + 6 and 5 + 4 + 3 are better than 6 + 4 + 3 and 6 + 5."""
    expected, busy = np.array([6.0, 5.0, 4.0, 3.0]), np.full((20, 1), 6.0)
    order = best_order(expected, np.tile(expected, (20, 1)), slots=2, busy=busy)
    assert mean_makespan(order, [expected], 2, busy) == 12.0
    assert mean_makespan(range(4), [expected], 2, busy) == 13.0


def test_a_present_order_that_is_better_stays():
    draws = draws_of(DEPTH, 0.03)
    best = best_order(DEPTH, draws, slots=4)
    again = best_order(DEPTH, draws, slots=4, present=best)
    assert mean_makespan(again, draws, 4) <= mean_makespan(best, draws, 4)


@pytest.mark.parametrize(("count", "slots"), [(1, 1), (1, 4), (3, 4), (4, 4), (9, 1), (12, 4)])
def test_longest_first_stays_where_no_order_is_better(count, slots):
    """Equal durations, one slot, and as many slots as trials."""
    equal = np.full(count, 10.0)
    assert best_order(equal, draws_of(equal, 0.0, draws=20), slots=slots) == list(range(count))
    if slots == 1 or slots >= count:
        falling = np.arange(count, 0, -1.0)
        assert best_order(falling, draws_of(falling, 0.1), slots=slots) == list(range(count))


def test_longest_first_stays_where_not_all_trials_end_in_time():
    """Trials that are left at a deadline should be short ones: they fit into what the long ones leave."""
    draws = draws_of(DEPTH, 0.03)
    best = best_order(DEPTH, draws, slots=4)
    assert best != list(range(20))
    end = mean_makespan(best, draws, 4)
    assert best_order(DEPTH, draws, slots=4, limit_seconds=1.01 * end) == best
    assert best_order(DEPTH, draws, slots=4, limit_seconds=0.99 * end) == list(range(20))


def test_many_trials_per_slot_are_not_searched():
    many = np.sort(np.random.default_rng(0).uniform(1, 20, MAX_PER_SLOT * 4 + 1))[::-1]
    assert best_order(many, draws_of(many, 0.03), slots=4) == list(range(len(many)))


def test_the_remaining_seconds_of_a_running_trial_are_those_of_samples_that_it_has_not_outlasted():
    draws = np.array([[10.0, 1.0], [12.0, 2.0], [30.0, 3.0], [8.0, 4.0]])
    remaining = remaining_seconds(draws, np.array([11.0, 5.0]))
    assert sorted(set(remaining[:, 0])) == [1.0, 19.0], "a straggler, or about to end"
    assert remaining[1, 0] == 1.0
    assert remaining[2, 0] == 19.0
    assert (remaining[:, 1] == 0).all(), "longer than predicted: it may end now"
    assert remaining_seconds(np.empty((4, 0)), np.empty(0)).shape == (4, 0)


def spanning(count, **grid):
    """The values of the trials that span the keys of a grid."""
    command = "true " + " ".join(f"{{{key}}}" for key in grid)
    trials = expand(CommandSweep(command=command, grid=grid)).trials
    places = spanning_trials(trials, count)
    assert len(set(places)) == len(places)
    return [trials[place].values for place in places]


def test_the_first_trials_differ_in_every_key():
    found = spanning(4, model=["a", "b", "c"], batch=[64, 128, 256], lr=[0.1, 0.01, 0.001, 0.0001])
    for key, count in (("model", 3), ("batch", 2), ("lr", 2)):
        assert len({values[key] for values in found}) >= count
    assert {found[0]["lr"], found[1]["lr"]} == {0.1, 0.0001}
    assert {found[0]["batch"], found[1]["batch"]} == {64, 256}


@pytest.mark.parametrize(("values", "expected"), [([1, 2, 4, 8, 16], [1, 16, 4]), ([0, 10, 20], [0, 20, 10]),
                                                  ([True, False], [True, False]), ([5], [5])])  # fmt: skip
def test_the_first_trials_span_numbers_by_their_logs(values, expected):
    """Numbers that are not all positive are shifted; Booleans are no numbers."""
    assert [each["x"] for each in spanning(3, x=values)] == expected


def test_seeds_and_lists_without_another_key_keep_their_order():
    assert [each["seed"] for each in spanning(3, seed=[5, 4, 3, 2])] == [5, 4, 3]
    assert [(each["x"], each["seed"]) for each in spanning(2, seed=[5, 4], x=[1, 2, 9])] == [(1, 5), (9, 5)]
    assert spanning_trials([], 4) == []
