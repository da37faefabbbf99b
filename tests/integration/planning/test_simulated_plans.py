"""Whole sweeps, simulated: how honest predictions are, and how long the order of trials lets a sweep take.

These are benchmarks/calibration.py and benchmarks/order.py in small.
"""

import calibration
import pytest
from order import simulate


@pytest.mark.parametrize(("kind", "order", "finished", "least", "upper"), [
    ("blocks; FLOPs known", "first wave, longest first", 4, 85, 2),
    ("blocks x epochs; FLOPs known", "first wave, longest first", 8, 80, 2),
    ("blocks x 3 seeds, 5 % stragglers; FLOPs known", "random", 8, 85, 1.5),
    ("square of a key", "first wave, config order", 2, 85, 2.5),
    ("square of width x lr, 5 % noise", "first wave, longest first", 4, 80, 3),
    ("3 models x 3 batch sizes x 4 lr, 10 % noise", "first wave, config order", 12, 75, 1.6),
    ("60 lr without effect, 5 % noise", "first wave, config order", 8, 70, 1.6),
    ("lr and dropout sampled, without effect", "random", 8, 75, 1.6),
    ("4 lr x 15 seeds, 10 % stragglers x3, 5 % noise", "random", 8, 70, 1.4),
    ("100 subjects x 3 seeds", "random", 8, 80, 1.8),
    ("100 subjects, log-normal, 5 % noise", "first wave, config order", 8, 80, 2.5),
])  # fmt: skip
def test_interrupted_sweeps_end_within_what_was_predicted(kind, order, finished, least, upper):
    found = calibration.cell([calibration.simulate(kind, order, finished, seed) for seed in range(30)])
    inside, high, short = found
    assert inside >= least
    assert high <= upper
    assert short <= 10


def test_the_depth_sweep_ends_within_three_percent_of_the_lower_bound():
    """From the first trial that finishes, its durations follow from their relative costs."""
    assert simulate("depth sweep: 20 trials", 4, 0.0, 0) <= 1.03
