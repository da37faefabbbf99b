"""Sweeps by the driver in the queue of a simulated, busy cluster."""

import os
from dataclasses import replace

import pytest
from simulated_cluster.cluster import Conditions
from simulated_cluster.queued_sweep import Shape, Site, run_array, run_jobs
from simulated_cluster.sweep import Work
from simulated_cluster.trace import Arrival, generate_trace

WORK = Work(trials=24, sizes=4, median_seconds=1800.0, max_seconds=5400.0)
CONDITIONS = Conditions(checkpoint_seconds=600.0)
BUSY = Site(16, generate_trace(16, 0.9, jobs=1500, seed=0))
EMPTY = Site(16, [])
LONG = 24 * 60.0


@pytest.fixture(scope="module")
def several():
    before = dict(os.environ)
    outcome = run_jobs(WORK, Shape(4, 1, LONG), BUSY, CONDITIONS, seed=0)
    assert dict(os.environ) == before, "the drivers are threads of this process"
    return outcome


def test_several_jobs_run_each_trial_once_and_the_same_way_each_time(several):
    assert several.jobs == 4
    assert several == run_jobs(WORK, Shape(4, 1, LONG), BUSY, CONDITIONS, seed=0)


def test_several_jobs_start_before_one_that_waits_for_all_gpus(several):
    one = run_jobs(WORK, Shape(1, 4, LONG), BUSY, CONDITIONS, seed=0)
    assert one.jobs == 1
    assert several.first < one.first


def test_jobs_that_are_still_in_the_queue_at_the_end_never_run():
    taken = [Arrival(0, 15, 30 * 86_400.0, 30 * 86_400.0)]  # one GPU is free
    assert run_jobs(WORK, Shape(8, 1, LONG), Site(16, taken), CONDITIONS, seed=0).jobs < 8


def test_work_left_at_a_short_walltime_continues_in_other_jobs():
    outcome = run_jobs(WORK, Shape(2, 1, 60.0), EMPTY, CONDITIONS, seed=0)
    assert outcome.jobs > 4
    assert 0 < outcome.idle < 0.5 * outcome.gpu_seconds


def test_an_array_runs_at_most_so_many_tasks_and_loses_only_their_starts():
    all_at_once, four = (run_array(WORK, at_most, EMPTY, CONDITIONS, seed=0) for at_most in (20, 4))
    assert all_at_once.jobs == four.jobs == 20
    assert all_at_once.first == four.first == 0
    assert all_at_once.last < four.last / 2
    assert four.idle == pytest.approx(20 * CONDITIONS.program_seconds)
    slower = run_array(WORK, 4, EMPTY, replace(CONDITIONS, program_seconds=600.0), seed=0)
    assert slower.last > four.last
