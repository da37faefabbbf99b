"""Trials on slots: longest first, its bound, and the first wave."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainyard.config.sweep import CommandSweep
from trainyard.config.trials import expand
from trainyard.planning.order import centered_logs, lower_bound, makespan, spanning_trials

DEPTH = (0.2125 * np.arange(80, 0, -4)).tolist()  # longest first
durations = st.lists(st.floats(0.1, 100), min_size=1, max_size=30)


@given(durations, st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_longest_first_is_within_grahams_bound(seconds, slots):
    """The optimum is not known; in any order, list scheduling is at most sum / G + (1 - 1/G) times the last trial."""
    ordered = sorted(seconds, reverse=True)
    bound = lower_bound(ordered, slots)
    assert bound <= makespan(ordered, slots) * (1 + 1e-12)
    assert makespan(ordered, slots) <= (sum(ordered) / slots + (1 - 1 / slots) * ordered[0]) * (1 + 1e-12)


@pytest.mark.parametrize(("slots", "ratio"), [(4, 1.03), (5, 1.0001), (8, 1.11), (10, 1.0001)])
def test_the_depth_sweep_longest_first_is_close_to_its_bound(slots, ratio):
    """On four slots, 210 units of four blocks do not divide by four: no partition is below 53 / 52.5 of the bound."""
    assert makespan(DEPTH, slots) / lower_bound(DEPTH, slots) <= ratio


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


@pytest.mark.parametrize(
    "values", [[-1, -0.9999999999999999], [5e-324, 0], [-(10**17), 1 - 10**17], [-1e20, 16384 - 1e20]]
)
def test_numbers_that_are_nearly_equal_have_logs(values):
    """Their difference must not be lost in the shift that makes them positive."""
    assert len(centered_logs(values)) == len(values)
    assert len(spanning(2, x=values)) == 2


def test_at_most_64_trials_span_the_keys():
    """On hundreds of slots, more would take long, and say little."""
    assert len(spanning(500, x=list(range(1, 1000)))) == 64


def test_seeds_and_lists_without_another_key_keep_their_order():
    assert [each["seed"] for each in spanning(3, seed=[5, 4, 3, 2])] == [5, 4, 3]
    assert [(each["x"], each["seed"]) for each in spanning(2, seed=[5, 4], x=[1, 2, 9])] == [(1, 5), (9, 5)]
    assert spanning_trials([], 4) == []
