"""How many GPUs to ask for: for a sweep of 20 ResNets with published durations, and by each rule."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainyard.config.sweep import Slots
from trainyard.planning.slot_options import CHEAP_TOLERANCE, FAST_TOLERANCE, choose_option, list_options, useful_jobs

DEPTH = [0.2125 * blocks for blocks in range(80, 0, -4)]  # longest first
durations = st.lists(st.floats(0.1, 100), min_size=1, max_size=30).map(lambda seconds: sorted(seconds, reverse=True))


def upto(gpus, *, jobs=1, share=1.0):
    return Slots(jobs=jobs, gpus_per_node=gpus, gpus_per_trial=share)


def test_the_depth_sweep_on_one_to_twenty_gpus():
    """As worked out by hand: ten end in 17.85 s, and twenty cost twenty times the longest trial."""
    found = {option.slots.gpus: option for option in list_options(DEPTH, upto(20), startup=0)}
    assert sorted(found) == list(range(1, 21))
    assert found[10].seconds == pytest.approx(17.85)
    assert found[20].unit_seconds == pytest.approx(340)


@pytest.mark.parametrize(
    ("goal", "startup", "deadline", "gpus"),
    [
        ("fastest", 0, None, 10),  # 17.85 s is within 5 % of 17 s, the longest trial, and costs least of those
        ("cheapest", 0, None, 10),  # none idle, as on one GPU, and the fastest of those
        ("cheapest", 10, None, 1),  # each further GPU costs ten seconds more
        ("deadline", 10, 100, 2),  # 10 + 89.25 s
        ("deadline", 10, 40, 7),  # 10 + 28.05 s
        ("deadline", 0, 40, 10),  # as cheap as five, and faster
        ("deadline", 0, 1, 10),  # cannot be: as fast as it goes
    ],
)
def test_what_each_goal_takes_of_the_depth_sweep(goal, startup, deadline, gpus):
    assert choose_option(list_options(DEPTH, upto(20), startup=startup), goal, deadline=deadline).slots.gpus == gpus


def test_what_may_take_longer_than_expected_needs_more_for_a_deadline():
    found = list_options(DEPTH, upto(20), startup=10)
    assert choose_option(found, "deadline", deadline=60).slots.gpus == 4
    slower = choose_option(found, "deadline", deadline=60, max_seconds=lambda option: 1.25 * option.seconds)
    assert slower.slots.gpus == 5


def test_a_goal_compares_whole_slots_of_two_gpus_each():
    on_one = {option.slots.gpus: option for option in list_options(DEPTH, upto(4), startup=10)}
    on_two = {option.slots.gpus: option for option in list_options(DEPTH, upto(9, share=2), startup=10)}
    assert {gpus: option.slots.count for gpus, option in on_two.items()} == {2: 1, 4: 2, 6: 3, 8: 4}
    assert all(on_two[2 * gpus].seconds == pytest.approx(on_one[gpus].seconds) for gpus in on_one)
    assert all(on_two[2 * gpus].unit_seconds == pytest.approx(2 * on_one[gpus].unit_seconds) for gpus in on_one)


def test_more_slots_than_trials_are_of_no_use():
    assert [option.slots.gpus for option in list_options([3, 2, 1], upto(8), startup=0)] == [1, 2, 3]
    assert [option.slots.count for option in list_options([1] * 5, upto(8, share=0.25), startup=0)] == [4, 8]


@pytest.mark.parametrize(
    ("jobs", "gpus", "trials", "useful"), [(8, 1, 20, 8), (8, 1, 3, 3), (8, 2, 3, 2), (8, 2, 0, 1), (1, 1, 20, 1)]
)
def test_no_more_jobs_are_requested_than_find_a_trial(jobs, gpus, trials, useful):
    assert useful_jobs(Slots(jobs=jobs, gpus_per_node=gpus), trials) == useful


def test_options_of_several_jobs_count_all_of_them():
    """Ten jobs of one GPU are as fast as one job of ten."""
    several = list_options(DEPTH, upto(1, jobs=10), startup=0)
    alone = next(option for option in list_options(DEPTH, upto(20), startup=0) if option.slots.gpus == 10)
    assert [each.slots.jobs for each in several] == list(range(1, 11))
    assert (several[-1].seconds, several[-1].unit_seconds) == (alone.seconds, alone.unit_seconds)


def test_jobs_are_added_only_where_one_has_too_few_gpus():
    found = list_options([1] * 99, upto(4, jobs=3), startup=0)
    sizes = [(option.slots.jobs, option.slots.gpus_per_node) for option in found]
    assert sizes == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 3), (3, 4)]


def test_a_trial_of_two_gpus_gets_them_on_one_node():
    found = list_options([1] * 99, upto(4, jobs=2, share=2), startup=0)
    sizes = [(each.slots.jobs, each.slots.gpus_per_node, each.slot_count) for each in found]
    assert sizes == [(1, 2, 1), (1, 4, 2), (2, 4, 4)]


def test_of_trials_on_several_nodes_only_the_number_of_jobs_is_chosen():
    found = list_options([1] * 99, Slots(jobs=3, nodes_per_trial=2, gpus_per_node=4), startup=0)
    assert [(each.slots.jobs, each.slot_count, each.gpus) for each in found] == [(1, 1, 8), (2, 2, 16), (3, 3, 24)]
    assert [each.unit_seconds for each in found] == [99 * 8, 50 * 16, 33 * 24]


def test_without_gpus_the_slots_on_cpus_are_chosen_and_cost_cpu_seconds():
    limit = Slots(jobs=2, cpus=12, cpus_per_trial=4)
    found = list_options([10] * 99, limit, startup=5)
    assert [(each.slots.jobs, each.slots.count) for each in found] == [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3)]
    assert [each.slots.units for each in found] == [4, 8, 12, 8, 12]
    assert found[0].unit_seconds == 4 * (990 + 5)
    assert found[0].seconds == 990 + 5


@given(durations, st.integers(1, 16), st.floats(0, 50))
def test_each_goal_keeps_its_word(seconds, gpus, startup):
    found = list_options(seconds, upto(gpus), startup=startup)
    assert all(later.seconds <= earlier.seconds + 1e-9 for earlier, later in pairwise(found))
    fast, cheap = choose_option(found, "fastest"), choose_option(found, "cheapest")
    assert fast.seconds <= min(option.seconds for option in found) * (1 + FAST_TOLERANCE) + 1e-6
    assert cheap.unit_seconds <= min(option.unit_seconds for option in found) * (1 + CHEAP_TOLERANCE) + 1e-6
    assert not any(o.unit_seconds < fast.unit_seconds - 1e-6 and o.seconds < fast.seconds - 1e-6 for o in found)
    limit = math.fsum(seconds) + startup
    assert choose_option(found, "deadline", deadline=limit).seconds <= limit + 1e-6
