"""Whole sweeps by the driver on a simulated cluster whose nodes and GPUs fail."""

from dataclasses import replace

import pytest
from simulated_cluster.clock import Clock
from simulated_cluster.cluster import Conditions
from simulated_cluster.job_array import run_array
from simulated_cluster.sweep import Work, run_sweep
from trainyard.packing.failure_policy import FailurePolicy
from trainyard.packing.trial_loop import SIGNAL_SECONDS

WORK = Work(trials=240, sizes=12, median_seconds=1800.0, max_seconds=9600.0)
CALM = Conditions(nodes=4, gpus_per_node=4, checkpoint_seconds=600.0)
HARD = replace(CALM, failures_per_node_day=4.0, gpu_share=0.6, found_share=0.0)
SEED = 2  # by which a node fails, and two GPUs


@pytest.fixture(scope="module")
def calm():
    return run_sweep(WORK, CALM, seed=SEED)


@pytest.fixture(scope="module")
def hard():
    return run_sweep(WORK, HARD, seed=SEED)


def test_without_failures_nothing_is_lost_but_what_the_ends_of_jobs_interrupt(calm):
    assert (calm.account.node_failures, calm.account.gpu_failures, calm.slots_retired) == (0, 0, 0)
    interrupted = (calm.jobs - 1) * CALM.gpus
    assert 240 <= calm.account.attempts <= 240 + interrupted
    assert 0 <= calm.lost <= interrupted * CALM.checkpoint_seconds
    assert 1 <= calm.seconds / calm.bound < 1.15


def test_all_trials_finish_although_a_node_and_gpus_fail(calm, hard):
    assert (hard.account.node_failures, hard.account.gpu_failures) == (1, 2)
    assert hard.useful == calm.useful, "the same trials"
    again = hard.account.attempts - WORK.trials
    assert calm.lost < hard.lost < again * HARD.checkpoint_seconds
    assert hard.idle > calm.idle


@pytest.mark.slow
def test_a_broken_gpu_that_no_check_finds_is_retired_once_trials_run_longer_elsewhere(hard, monkeypatch):
    assert hard.slots_retired == 2
    monkeypatch.setattr(FailurePolicy, "record_running", lambda *_: None)
    assert hard.account.attempts < run_sweep(WORK, HARD, seed=SEED).account.attempts


def test_no_trial_waits_for_the_check_of_a_gpu_that_hangs():
    """No signal ends a process that waits for such a GPU: its check may never end."""
    work = replace(WORK, trials=24, sizes=4)
    pair = Conditions(nodes=1, gpus_per_node=2, failures_per_node_day=20.0, gpu_share=1.0, checkpoint_seconds=600.0)
    ends, hangs = (run_sweep(work, replace(pair, check_seconds=seconds), seed=0) for seconds in (20.0, 1e9))
    assert hangs.account.gpu_failures > 0
    assert hangs.slots_retired > 0
    assert hangs.seconds < 1.5 * ends.seconds, "without a limit, its jobs last until their walltimes"


@pytest.mark.slow
def test_the_workers_of_a_node_that_fails_are_replaced_at_once_not_one_per_second(monkeypatch):
    sleep, slept = Clock.sleep, []
    monkeypatch.setattr(Clock, "sleep", lambda clock, seconds: (slept.append(seconds), sleep(clock, seconds)))
    failing = run_sweep(WORK, replace(HARD, gpu_share=0.0), seed=SEED)
    assert slept.count(SIGNAL_SECONDS) == failing.account.node_failures > 0


@pytest.mark.slow
def test_the_same_seed_has_the_same_outcome(hard):
    assert run_sweep(WORK, HARD, seed=SEED) == hard


def test_an_array_loses_more_without_checkpoints():
    with_them, without = (run_array(WORK, replace(HARD, checkpoint_seconds=seconds)) for seconds in (600.0, None))
    assert 0 < with_them.lost < without.lost
    assert with_them.account.gpu_failures >= 1
    assert with_them.by_hand >= 1, "what fails on a broken GPU is not requeued"
    assert with_them.idle == pytest.approx(0.0, abs=1e-3)
