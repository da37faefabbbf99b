"""Where the next trial of a slot runs."""

from trainyard.packing.failure_policy import FailurePolicy, SlotLocation, TrialFailure
from trainyard.packing.slot_pool import Phase, Slot
from trainyard.planning.journal import Location


def slot_on(gpu: str, number: int, *, phase: Phase = Phase.RUNNING) -> Slot:
    return Slot(number, location=Location(node="n", gpu=gpu, slot=number), phase=phase)


def test_a_retry_waits_for_a_slot_that_may_start_on_another_gpu():
    """Two slots restart at once and swap their GPUs: slot 1 is the first that is up, on the GPU of the failure."""
    policy = FailurePolicy(retries=1)
    policy.record_failure(TrialFailure("a", SlotLocation("n", "0", 0), "Error: no", 1.0))
    swapped, starting = slot_on("0", 1), slot_on("0", 0, phase=Phase.STARTING)
    assert not policy.allows("a", swapped.place, [starting.next_place, swapped.next_place])
    started = slot_on("1", 0)
    assert policy.allows("a", started.place, [started.next_place, swapped.next_place])


def test_a_retry_does_not_wait_for_the_slot_on_which_it_failed():
    policy = FailurePolicy(retries=1)
    policy.record_failure(TrialFailure("a", SlotLocation("n", "0", 0), "Error: no", 1.0))
    other, starting = slot_on("1", 1), slot_on("0", 0, phase=Phase.STARTING)
    assert policy.allows("a", other.place, [starting.next_place, other.next_place])


def test_a_slot_is_in_the_place_that_other_jobs_read_of_its_trials():
    location = Location("7", "n", "0", 3)
    slot = Slot(3, location=location)
    assert [slot.place, slot.next_place] == [SlotLocation.of(location)] * 2
