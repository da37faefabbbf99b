"""Whole sweeps, simulated: how honest predictions are, and how long the order of trials lets a sweep take.

These are benchmarks/calibration.py and benchmarks/order.py in small.
"""

import statistics

import calibration
import pytest
from order import simulate


@pytest.mark.parametrize(("kind", "order", "finished", "least", "upper"), [
    ("blocks; FLOPs known", "longest first", 1, 85, 1.8),
    ("blocks; FLOPs known", "longest first", 4, 85, 1.4),
    ("blocks x epochs; FLOPs known", "longest first", 4, 80, 1.35),
    ("square of a key", "longest first", 12, 80, 1.3),
    ("100 subjects x 3 seeds", "random", 8, 80, 1.5),
    ("random lr and dropout without effect", "random", 8, 80, 1.3),
    ("blocks x 3 seeds, 5 % stragglers; FLOPs known", "random", 8, 70, 1.2),
])  # fmt: skip
def test_interrupted_sweeps_end_within_what_was_predicted(kind, order, finished, least, upper):
    found = calibration.cell([calibration.simulate(kind, order, finished, seed) for seed in range(30)])
    inside, high, short = found
    assert inside >= least
    assert high <= upper
    assert short <= 10


def test_the_depth_sweep_ends_within_one_percent_of_the_lower_bound():
    """From the first trial that finishes, its durations follow from their relative costs."""
    assert simulate("depth sweep: 20 trials", 4, 0.0, 0) <= 1.01


@pytest.mark.parametrize("slots", [4, 8])
def test_sweeps_with_noise_are_not_slower_than_longest_first(slots):
    first, chosen = (
        statistics.fmean(simulate("depth sweep: 20 trials", slots, 0.03, seed, longest_first=each) for seed in range(8))
        for each in (True, False)
    )
    assert chosen <= first
