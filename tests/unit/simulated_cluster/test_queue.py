"""EASY backfill, as it was promised: for random jobs, and for some that can be followed by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_cluster.clock import BEGIN, Clock
from simulated_cluster.queue import Job, Queue
from simulated_cluster.trace import Arrival, generate_trace, submit_trace

GPUS = 8
ARRIVAL = st.builds(
    lambda after, gpus, seconds, slack: Arrival(after, gpus, seconds, seconds + slack),
    st.integers(0, 200),
    st.integers(1, GPUS),
    st.integers(1, 100),
    st.integers(0, 100),
)


def run(arrivals: list[Arrival]) -> tuple[Clock, Queue, list[Job]]:
    clock = Clock()
    queue = Queue(clock, GPUS)
    jobs = submit_trace(queue, arrivals)
    return clock, queue, jobs


def times(job: Job) -> tuple[float, float]:
    return job.began - BEGIN, job.ended - BEGIN


def test_a_small_job_starts_before_the_first_if_it_ends_before_its_reservation():
    long, wide = Arrival(0, 6, 100, 100), Arrival(1, 8, 10, 10)
    clock, _, jobs = run([long, wide, Arrival(2, 2, 98, 98), Arrival(3, 2, 9, 99)])
    clock.run_until(math.inf, lambda: len(jobs) == 4 and all(job.ended < math.inf for job in jobs))
    assert [times(job) for job in jobs] == [(0, 100), (100, 110), (2, 100), (110, 119)]


def test_a_small_job_starts_before_the_first_on_gpus_that_this_leaves():
    small, too_many = Arrival(2, 2, 500, 500), Arrival(2, 1, 500, 500)
    clock, _, jobs = run([Arrival(0, 5, 100, 100), Arrival(1, 6, 10, 10), small, too_many])
    clock.run_until(BEGIN + 1000)
    assert [job.began - BEGIN for job in jobs] == [0, 100, 2, 110]


def test_a_job_that_ends_early_lets_the_first_start_early_and_one_over_its_walltime_is_ended():
    clock, _, jobs = run([Arrival(0, 8, 10, 100), Arrival(1, 8, math.inf, 50), Arrival(2, 8, 1, 1)])
    clock.run_until(BEGIN + 1000)
    assert [times(job) for job in jobs] == [(0, 10), (10, 60), (60, 61)]


def test_a_job_that_is_cancelled_in_the_queue_never_starts():
    clock, queue, jobs = run([Arrival(0, 8, 10, 10), Arrival(0, 8, 10, 10), Arrival(0, 1, 10, 10)])
    clock.at(BEGIN + 1, lambda: queue.cancel(jobs[1]))
    clock.run_until(BEGIN + 1000)
    assert jobs[1].began == math.inf
    assert times(jobs[2]) == (10, 20)


@settings(max_examples=200, deadline=None)
@given(st.lists(ARRIVAL, min_size=1, max_size=40))
def test_no_gpu_is_used_twice_no_reservation_is_delayed_and_no_gpu_is_idle_for_nothing(arrivals):
    clock, queue, jobs = run(arrivals)
    promised: dict[Job, float] = {}

    def check() -> bool:
        used = [gpu for job in queue.running for gpu in job.places]
        assert sorted([*used, *queue.free]) == list(range(GPUS))
        if queue.is_due:  # jobs that can start now are about to
            return False
        if queue.waiting:
            first = queue.waiting[0]
            assert first.gpus > len(queue.free), "the first job waits although its GPUs are free"
            assert clock.now < first.reserved <= promised.get(first, math.inf)
            promised[first] = first.reserved
            for job in queue.waiting[1:]:
                fits, ends = job.gpus <= len(queue.free), clock.now + job.walltime <= first.reserved
                assert not (fits and ends), "a job waits that would delay nobody"
        return len(jobs) == len(arrivals) and all(job.ended < math.inf for job in jobs)

    clock.run_until(BEGIN + 1e6, check)
    in_order = sorted(arrivals, key=lambda each: each.time)
    assert [job.ended - job.began for job in jobs] == [each.seconds for each in in_order]
    assert all(job.began <= promised[job] for job in promised)


@pytest.mark.parametrize("load", [0.5, 0.9])
def test_a_trace_has_its_load_and_is_the_same_for_the_same_seed(load):
    trace = generate_trace(64, load, jobs=2000, seed=1)
    work = sum(each.gpus * each.seconds for each in trace)
    assert work / (64 * trace[-1].time) == pytest.approx(load, rel=0.01)
    assert trace == generate_trace(64, load, jobs=2000, seed=1) != generate_trace(64, load, jobs=2000, seed=2)
    assert all(each.seconds <= each.walltime for each in trace)
