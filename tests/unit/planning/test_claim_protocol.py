"""No result counts twice, and what counts keeps counting, whatever jobs see of each other, whoever gives up whom.

And no job starts a trial in spite of a request of a user that it has read.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from claim_model import ViolationError, memory_folder, model, run_schedule

SCHEDULES = 100
FEW = 120  # in which a missing rule must show; one in ten or more breaks a promise then


@pytest.fixture
def folder():
    with TemporaryDirectory(dir=memory_folder()) as name:
        yield Path(name)


def run_all(folder, seeds):
    """Run schedules; returns how many entries and sessions that were given up they had."""
    with model():
        schedules = [run_schedule(seed, folder) for seed in seeds]
    return sum(each.entries for each in schedules), sum(each.given_up for each in schedules)


def test_each_trial_ends_once_in_any_schedule(folder):
    entries, given_up = run_all(folder, range(SCHEDULES))
    assert entries > 5 * SCHEDULES, "the schedules have claims"
    assert given_up > SCHEDULES, "and sessions that are given up"


@pytest.mark.slow
def test_each_trial_ends_once_in_any_of_many_schedules(folder):
    run_all(folder, range(SCHEDULES, 30 * SCHEDULES))


@pytest.mark.parametrize(("rule", "broken"), [("attempts", "double"), ("requests", "cancelled")])
def test_without_one_of_its_rules_the_protocol_breaks(folder, rule, broken):
    """The end of the attempt for which a trial was taken last counts; requests that were read hold."""
    with model(without=rule):
        found = []
        for seed in range(FEW):
            try:
                run_schedule(seed, folder)
            except ViolationError as error:
                found.append(str(error))
            if any(broken in each for each in found):
                return
    pytest.fail(f"nothing is {broken} in {FEW} schedules: {found}")
