"""Where the next trial of a slot runs."""

from trainyard.packing.failure_policy import FailurePolicy, TrialFailure
from trainyard.packing.slot_pool import Phase, Slot
from trainyard.planning.journal import Location


def slot_on(gpu: str, number: int, *, phase: Phase = Phase.RUNNING) -> Slot:
    return Slot(number, location=Location(node="n", gpu=gpu, slot=number), phase=phase)


def test_a_retry_waits_for_a_slot_that_may_start_on_another_gpu():
    """Two slots restart at once and swap their GPUs: slot 1 is the first that is up, on the GPU of the failure."""
    policy = FailurePolicy(retries=1)
    policy.record_failure(TrialFailure("a", Location("", "n", "0", 0), "Error: no", 1.0))
    swapped, starting = slot_on("0", 1), slot_on("0", 0, phase=Phase.STARTING)
    assert not policy.allows("a", swapped.location, [starting.next_location, swapped.next_location])
    started = slot_on("1", 0)
    assert policy.allows("a", started.location, [started.next_location, swapped.next_location])


def test_a_retry_does_not_wait_for_the_slot_on_which_it_failed():
    policy = FailurePolicy(retries=1)
    policy.record_failure(TrialFailure("a", Location("", "n", "0", 0), "Error: no", 1.0))
    other, starting = slot_on("1", 1), slot_on("0", 0, phase=Phase.STARTING)
    assert policy.allows("a", other.location, [starting.next_location, other.next_location])


def test_a_slot_is_in_the_place_that_other_jobs_read_of_its_trials():
    location = Location("7", "n", "0", 3)
    slot = Slot(3, location=location)
    assert [slot.location, slot.next_location] == [location] * 2
