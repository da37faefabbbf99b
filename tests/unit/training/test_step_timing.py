"""Times of steps and of waiting for data."""

import time

import torch
from trainyard.training.step_timing import StepRate, StepTimer, StepTimes


def test_steps_and_the_wait_for_data_are_measured():
    def slow_items():
        for item in range(3):
            time.sleep(0.02)
            yield item

    timer = StepTimer(torch.device("cpu"))
    time.sleep(0.04)
    timer.begin()
    for _ in timer.waiting(slow_items()):
        time.sleep(0.03)
        timer.mark()
    times = timer.times()
    assert len(times.steps_ms) == 3
    assert times.percentiles_ms()[0] >= 50
    assert 0.06 <= times.waited_seconds < times.seconds
    assert times.start_seconds >= 0.04
    assert times.seconds >= times.start_seconds + sum(times.steps_ms) / 1000 - 1e-9


def test_the_step_times_of_several_runs_are_added():
    both = StepTimes(1.0, 0.5, [10.0], 0.1) + StepTimes(2.0, 0.25, [30.0], 0.3)
    assert both == StepTimes(3.0, 0.75, [10.0, 30.0], 0.4)
    assert both.percentiles_ms()[0] == 20


def test_the_step_rate_is_reported_at_intervals():
    assert StepRate(100, every_seconds=3600).poll(105) is None
    pace = StepRate(100, every_seconds=0.05)
    time.sleep(0.06)
    assert 0 < pace.poll(110) <= 10 / 0.06
    time.sleep(0.06)
    assert 0 < pace.poll(113) <= 3 / 0.06, "since the last time"
