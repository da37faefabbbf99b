"""Which finished trials did not do the same work, and what explains it."""

import pytest
from trainyard.planning.trial_value import TrialValue, TrialWork
from trainyard.programs.progress import Progress
from trainyard.results.comparability import describe_work, find_incomplete

UNEXPLAINED = ", and no key explains it: their values may not compare"


def printed(number, total=10, **options):
    return TrialWork(number, total, Progress("epoch", number, total, 1, **options))


def test_a_counter_that_ends_one_before_its_total_counts_from_0_unless_another_reached_it():
    assert find_incomplete({"a": printed(9), "b": printed(9)}) == {}
    assert list(find_incomplete({"a": printed(9), "b": printed(10)})) == ["a"]
    assert list(find_incomplete({"a": printed(4), "b": printed(9)})) == ["a"]


def test_a_counter_that_began_at_0_is_compared_with_those_that_began_at_0():
    from_0 = printed(9, begins_at_0=True)
    assert find_incomplete({"a": from_0, "b": printed(10)}) == {}
    assert list(find_incomplete({"a": from_0, "b": printed(10, begins_at_0=True)})) == ["a"]
    assert list(find_incomplete({"a": printed(9), "b": printed(10, begins_at_0=True)})) == ["a"]


@pytest.mark.parametrize(
    ("work", "values", "why"),
    [
        ([TrialWork(5), TrialWork(9)], [{"epochs": 5}, {"epochs": 9}], ": `epochs` is varied"),
        ([TrialWork(5), TrialWork(9)], [{"max_steps": 5}, {"max_steps": 9}], ": `max_steps` is varied"),
        (
            [TrialWork(5, ended_by_patience=True), TrialWork(9)],
            [{"lr": 1}, {"lr": 2}],
            ": 1 of them ended early, without a new best",
        ),
        ([printed(5, stops_early=True), printed(10)], [{"lr": 1}, {"lr": 2}], ": 1 program said to stop early"),
        ([TrialWork(5), TrialWork(9)], [{"lr": 1}, {"lr": 2}], UNEXPLAINED),
        ([TrialWork(5), TrialWork(9)], [{"epochs": 9}, {"epochs": 9}], UNEXPLAINED),
    ],
)  # fmt: skip
def test_different_numbers_of_epochs_are_said_with_what_explains_them(work, values, why):
    low, high = (each.last_epoch for each in work)
    assert describe_work(dict(zip("ab", work, strict=True)), dict(zip("ab", values, strict=True))) == [
        f"the finished trials have different last epochs, {low} (trial a), {high} (trial b){why}"
    ]


def test_trials_with_the_same_number_of_epochs_need_no_words():
    work = {"a": TrialWork(9), "b": TrialWork(9), "without epochs": TrialWork()}
    assert describe_work(work, {name: {"lr": 1} for name in work}) == []


def test_an_error_behind_exit_code_0_is_said():
    work = {"a": TrialWork(9), "b": TrialWork(9, hidden_error="ValueError: 3")}
    assert describe_work(work, {name: {"lr": 1} for name in work}) == [
        "1 of 2 finished trials ended with exit code 0 after an error, as trial b: ValueError: 3; `complete` says when "
        "they are done, or let the program fail"
    ]


def test_metrics_with_different_units_are_said():
    units = [{"a": "ms", "acc": "%"}, {"a": "ms", "acc": ""}, {"a": "ms"}, {"a": "ms", "acc": "%"}]
    work = {name: TrialWork(units=each) for name, each in zip("abcd", units, strict=True)}
    assert describe_work(work, {name: {} for name in work}) == [
        "acc has different units, which are not read: % (trial a), none (trial b): its values do not compare"
    ]


def test_the_last_epoch_of_a_counter_from_0_does_not_look_incomplete():
    work = printed(3, 4, begins_at_0=True)
    assert TrialValue(0.5, work, epoch=3).when == " at its last epoch, 3 of 4 counted from 0"
    assert TrialValue(0.5, printed(4, 4), epoch=4).when == " at its last epoch, 4 of 4"


def test_many_numbers_of_epochs_are_said_as_a_range():
    work = {str(number): TrialWork(number) for number in range(3, 20)}
    (line,) = describe_work(work, {name: {"lr": 1} for name in work})
    assert line.startswith("the finished trials have different last epochs, 3 to 19, and no key")
