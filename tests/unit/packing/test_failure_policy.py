"""Whether a failure comes from its trial, from its GPU, or affects all trials."""

import errno
import itertools
import os
from dataclasses import replace

import pytest
from sweep_journals import attempts_in, read_journal, session_of
from trainyard.config.load import check_config
from trainyard.packing.failure_policy import (
    QUICK_SECONDS,
    SAME_ERRORS,
    FailurePolicy,
    TrialFailure,
)
from trainyard.planning.attempts import Fold
from trainyard.planning.history import History
from trainyard.planning.journal import Ended, Location
from trainyard.results.error_patterns import error_pattern

HERE, BESIDE = Location("", "n1", "0", 0), Location("", "n1", "1", 1)
THERE = Location("", "n2", "0", 2)
ALL = [HERE, BESIDE, THERE]


def failure(trial, place=HERE, error="ValueError: no such key", seconds=1.0, exit_code=None):
    return TrialFailure(trial, place, error, seconds, exit_code)


def test_a_trial_is_retried_as_often_as_configured():
    policy = FailurePolicy(retries=2)
    assert [policy.record_failure(failure("a", error=f"{number}")) for number in range(3)] == [True, True, False]
    assert policy.record_failure(failure("b"))


def test_failures_at_once_on_a_checkpoint_use_up_no_retry_for_two_checkpoints():
    damaged = replace(failure("a", error="exit code 1: FileNotFoundError: state.json"), resumed=True)
    policy = FailurePolicy(retries=0)
    assert [policy.record_failure(damaged) for _ in range(3)] == [True, True, False]
    for other in (
        {"seconds": 2 * QUICK_SECONDS},
        {"error": "exit code 137 (SIGKILL): no output"},
        {"error": "exit code 1: torch.OutOfMemoryError: CUDA out of memory."},
        {"resumed": False},
    ):
        assert not FailurePolicy(retries=0).record_failure(replace(damaged, **other)), other


def test_a_repeated_usage_error_is_not_tried_again():
    usage = {"error": "exit code 2: train.py: error: unrecognized arguments: --lrr", "exit_code": 2}
    policy = FailurePolicy(retries=5)
    assert [policy.record_failure(failure("a", **usage)) for _ in range(2)] == [True, False]
    assert [policy.record_failure(failure("b", **usage, seconds=2 * QUICK_SECONDS)) for _ in range(3)] == [True] * 3, (
        "not quick"
    )
    assert [policy.record_failure(failure("c", **usage | {"exit_code": 1})) for _ in range(3)] == [True] * 3
    others = itertools.count()
    assert [
        policy.record_failure(failure("d", error=f"exit code 2: {next(others)}", exit_code=2)) for _ in range(3)
    ] == [True] * 3


def suitable(policy, trial, places):
    return [place for place in places if policy.allows(trial, place, places)]


def test_a_trial_is_tried_again_on_another_node_gpu_or_slot_if_there_is_one():
    policy = FailurePolicy(retries=9)
    assert suitable(policy, "a", ALL) == ALL
    policy.record_failure(failure("a", HERE))
    assert suitable(policy, "a", ALL) == [THERE], "another node"
    assert suitable(policy, "a", [HERE, BESIDE]) == [BESIDE], "another GPU"
    shared = Location("", "n1", "0", 3)
    assert suitable(policy, "a", [HERE, shared]) == [shared], "another slot"
    assert suitable(policy, "a", [HERE]) == [HERE], "there is no other place"
    policy.record_failure(failure("a", THERE))
    assert suitable(policy, "a", ALL) == [BESIDE]
    policy.record_failure(failure("a", BESIDE))
    assert suitable(policy, "a", ALL) == [THERE], "it failed everywhere, but only once on this node"
    assert suitable(policy, "b", ALL) == ALL


def test_the_places_of_a_large_cluster_are_looked_at_only_up_to_the_first_better_one():
    policy, places = FailurePolicy(retries=9), [Location("", f"n{number}", "0", number) for number in range(512)]
    policy.record_failure(failure("a", places[0]))
    left = iter(places)
    assert not policy.allows("a", places[0], left)
    assert next(left) == places[2]
    assert policy.allows("a", places[3], left)
    assert next(left) == places[3], "it has not failed there, so no place is better"


@pytest.mark.parametrize("failed", [[], [HERE], [HERE, HERE, THERE], [BESIDE, HERE, THERE]])
def test_a_trial_is_always_allowed_somewhere(failed):
    policy = FailurePolicy(retries=9)
    for place in failed:
        policy.record_failure(failure("a", place))
    for count in (1, 2, 3):
        for places in itertools.combinations(ALL, count):
            assert suitable(policy, "a", places)


def test_a_gpu_is_likely_broken_if_trials_run_much_longer_elsewhere_than_they_ran_there():
    policy = FailurePolicy(retries=1)
    for trial in "abcd":
        policy.record_failure(failure(trial, HERE, seconds=100.0))
    for trial in "abc":
        policy.record_running(trial, THERE, 199.0)
        policy.record_running(trial, HERE, 1e6)
    assert not policy.is_likely_broken(HERE)
    for trial in "abc":
        policy.record_running(trial, THERE, 201.0)
    assert policy.is_likely_broken(HERE)
    assert not policy.is_likely_broken(THERE)
    policy.record_failure(failure("a", THERE, seconds=300.0))
    assert not policy.is_likely_broken(HERE), "the cause seems to be the trial"


def test_a_gpu_is_likely_broken_if_different_trials_that_failed_there_finish_elsewhere():
    policy = FailurePolicy(retries=1)
    for number in range(3):
        assert not policy.is_suspect(HERE)
        assert not policy.suspect_trials
        policy.record_failure(failure(f"t{number}"))
        policy.record_success(f"other{number}", BESIDE)
    assert policy.is_suspect(HERE), "so it is checked"
    assert not policy.is_likely_broken(HERE), "others have succeeded, but not these"
    for number in range(3):
        assert not policy.is_likely_broken(HERE)
        assert f"t{number}" in policy.suspect_trials
        policy.record_success(f"t{number}", BESIDE)
    assert policy.is_likely_broken(HERE)
    assert not policy.is_likely_broken(BESIDE)
    policy.record_success("x", Location("", "n1", "0", 9))
    assert not policy.is_suspect(HERE), "a trial succeeded on another slot of the same GPU"


def test_trials_that_fail_on_two_gpus_blame_neither():
    policy = FailurePolicy(retries=1)
    for number in range(9):
        policy.record_failure(failure(f"t{number}", HERE))
        policy.record_failure(failure(f"t{number}", BESIDE))
        policy.record_success(f"other{number}", THERE)
        assert not any(policy.is_suspect(place) or policy.is_likely_broken(place) for place in ALL)


def test_without_retries_a_gpu_is_checked_after_every_third_failure_in_a_row():
    policy, suspected = FailurePolicy(retries=0), []
    for number in range(9):
        policy.record_failure(failure(f"t{number}"))
        policy.record_success(f"other{number}", THERE)
        suspected.append(policy.is_suspect(HERE))
    assert suspected == [False, False, True] * 3
    assert not policy.is_likely_broken(HERE)


def test_jobs_on_one_node_see_different_gpus_under_the_same_number():
    """Where Slurm constrains devices, each job has GPU 0."""
    broken, *good = places = [Location(job, "n1", "0", int(job)) for job in "789"]
    policy = FailurePolicy(retries=1)
    for number in range(3):
        policy.record_failure(failure(f"t{number}", broken))
        for place in good:
            policy.record_success(f"{place} {number}", place)
    assert [policy.is_suspect(place) for place in places] == [True, False, False]
    ends = [(place, place is not broken) for place in places] * 9
    assert [unretried(*ends).avoids(place, places) for place in places] == [True, False, False]


@pytest.mark.parametrize("where", [("local", "n1", "0"), ("7", "n1", "")], ids=["without Slurm", "without GPUs"])
def test_jobs_or_sessions_that_share_a_device_have_the_same(where):
    job, node, gpu = where
    jobs = [job, job if gpu else "8"]
    first, second = (Location(each, node, gpu, slot) for slot, each in enumerate(jobs))
    assert first.gpu_key == second.gpu_key


def unretried(*ends, retries=0):
    """A policy after trials that ended in these places: (place, whether it succeeded)."""
    policy = FailurePolicy(retries=retries)
    for number, (place, succeeded) in enumerate(ends):
        if succeeded:
            policy.record_success(f"t{number}", place)
        else:
            policy.record_failure(failure(f"t{number}", place))
    return policy


def test_without_retries_a_gpu_gets_no_trial_while_those_of_others_succeed():
    good = [(BESIDE, True)] * 10
    avoided = [unretried(*good, *[(HERE, False)] * count).avoids(HERE, ALL) for count in range(6)]
    assert avoided == [False, False, False, False, True, True], "1/12 of the others may fail: 4 in a row are improbable"
    policy = unretried(*good, *[(HERE, False)] * 5)
    assert not policy.avoids(BESIDE, ALL)
    assert not policy.avoids(HERE, [HERE]), "there is no other GPU"
    assert not policy.avoids(HERE, [HERE, Location("", "n1", "0", 3)]), "a slot on the same GPU is no better"
    policy.record_success("x", HERE)
    assert not policy.avoids(HERE, ALL)
    assert not unretried(*good, *[(HERE, False)] * 5, retries=1).avoids(HERE, ALL), "retries tell more"


def test_without_retries_a_gpu_gets_trials_if_they_fail_elsewhere_too():
    assert not unretried(*[(HERE, False)] * 13).avoids(HERE, ALL), "no other trial has ended yet"
    assert unretried(*[(HERE, False)] * 14).avoids(HERE, ALL), "but it must not take all of them"
    half = [(BESIDE, True), (BESIDE, False)] * 10
    assert not unretried(*half, *[(HERE, False)] * 6).avoids(HERE, ALL)
    good = [(BESIDE, True)] * 10
    others = [(BESIDE, False), (THERE, False)] * 3
    assert not unretried(*good, *[(HERE, False)] * 5, *others).avoids(HERE, ALL), "the last trials failed on all GPUs"
    assert unretried(*good, *[(HERE, False)] * 9, *others[::2], (THERE, True)).avoids(HERE, ALL), "two are broken"


def test_without_retries_trials_that_run_much_longer_elsewhere_count_as_successes():
    policy = unretried(*[(HERE, False)] * 6)
    for number in range(3):
        assert not policy.avoids(HERE, ALL)
        policy.record_running(f"r{number}", BESIDE, QUICK_SECONDS)
        assert not policy.avoids(HERE, ALL)
        policy.record_running(f"r{number}", BESIDE, 2 * QUICK_SECONDS)
    assert policy.avoids(HERE, ALL)
    for number in range(3):
        policy.record_failure(failure(f"r{number}", BESIDE))
    assert not policy.avoids(HERE, [HERE, BESIDE]), "they failed in the end"


def test_one_trial_that_fails_repeatedly_does_not_blame_its_gpu():
    policy = FailurePolicy(retries=9)
    for _ in range(9):
        policy.record_failure(failure("a"))
        policy.record_success("b", THERE)
    assert not policy.is_likely_broken(HERE)


def all_fail(*places, live=(HERE, BESIDE), running=(), has_succeeded=False, ignores=False, **fields):
    fields = {"error": "exit code 2: t.py: error: unrecognized arguments: --lrr", "exit_code": 2} | fields
    policy = FailurePolicy(retries=1, has_succeeded=has_succeeded, ignores_common_failures=ignores)
    for number, place in enumerate(places):
        policy.record_failure(failure(f"t{number}", place, **fields))
    return policy.common_failure(list(live), running) is not None


def test_a_common_failure_of_the_first_trials_affects_all():
    assert all_fail(HERE, BESIDE, HERE)
    assert not all_fail(HERE, BESIDE), "too few"
    assert all_fail(HERE, HERE, HERE, live=[HERE]), "there is only one GPU"
    assert not all_fail(HERE, HERE, HERE), "it may be the GPU"
    assert not all_fail(HERE, BESIDE, HERE, live=ALL), "it may be the node"
    assert all_fail(HERE, THERE, HERE, live=ALL)
    assert not all_fail(HERE, BESIDE, HERE, has_succeeded=True)
    assert not all_fail(HERE, BESIDE, HERE, ignores=True)
    assert not all_fail(HERE, BESIDE, HERE, seconds=2 * QUICK_SECONDS)
    assert not all_fail(HERE, BESIDE, HERE, error="RuntimeError: CUDA out of memory"), "the next may be smaller"
    assert not all_fail(HERE, BESIDE, HERE, error="exit code -9: killed by SIGKILL: ...", exit_code=-9)
    assert all_fail(HERE, BESIDE, HERE, running=[1.0])
    assert not all_fail(HERE, BESIDE, HERE, running=[2 * QUICK_SECONDS]), "another trial has run longer"


@pytest.mark.parametrize(
    ("error", "exit_code", "is_of_all"),
    [
        ("exit code 127: sh: 1: trian: not found", 127, True),
        ("exit code 1: ModuleNotFoundError: No module named 'trian'", 1, True),
        ("SyntaxError: invalid syntax (mine.py, line 3)", None, True),
        ("exit code 1: AssertionError: embed_dim must be divisible by num_heads", 1, False),
        ("ValueError: too many heads", None, False),
    ],
)
def test_only_errors_that_do_not_depend_on_values_affect_all(error, exit_code, is_of_all):
    assert all_fail(HERE, BESIDE, HERE, error=error, exit_code=exit_code) == is_of_all


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EIO])
def test_an_error_of_the_file_system_may_have_gone_at_the_next_trial(number):
    error = f"exit code 1: OSError: [Errno {number}] {os.strerror(number)}: 'last.pt'"
    places = [HERE, BESIDE] * SAME_ERRORS
    assert all_fail(*places, error="exit code 1: OSError: other", exit_code=1)
    assert not all_fail(*places, error=error, exit_code=1)


def test_a_usage_error_that_names_a_value_affects_all_only_if_it_occurs_with_several_values():
    policy, values = FailurePolicy(retries=0), ["adamw", "adamw", "adamw", "sgdd"]
    for number, (value, place) in enumerate(zip(values, [HERE, BESIDE, HERE, BESIDE], strict=True)):
        assert policy.common_failure([HERE, BESIDE], []) is None
        error = f"exit code 2: error: invalid choice: '{value}'"
        policy.record_failure(TrialFailure(f"t{number}", place, error, 1.0, 2, values={"opt": value, "seed": number}))
    assert policy.common_failure([HERE, BESIDE], [])


def test_the_number_of_a_system_error_is_no_value_of_a_trial():
    policy = FailurePolicy(retries=0)
    for number, place in enumerate([HERE, BESIDE, HERE], start=1):
        assert policy.common_failure([HERE, BESIDE], []) is None
        error = "exit code 1: FileNotFoundError: [Errno 2] No such file or directory: 'bse.yaml'"
        policy.record_failure(TrialFailure(f"t{number}", place, error, 1.0, 1, values={"seed": number}))
    assert policy.common_failure([HERE, BESIDE], [])


@pytest.mark.parametrize("place", ["/home/a (b)/mine.py", "/home/64/mine.py"])
def test_the_place_of_an_error_in_own_code_is_no_value_of_a_trial(place):
    line = f" ({place}, line 64)"
    kinds = {error_pattern(f"ValueError: {w} (of 3) is wide{line}", "t1", {"width": w}) for w in (32, 64)}
    assert kinds == {f"ValueError: {{width}} (of 3) is wide{line}"}


def values_that_fail(*, width, lr, error="exit code 1: bse.yaml does not exist", exit_code=1):
    """Whether ten trials, with these values in turn, affect all others."""
    policy = FailurePolicy(retries=1)
    turns = zip(range(SAME_ERRORS), itertools.cycle([HERE, BESIDE]), itertools.cycle(width), itertools.cycle(lr))
    for number, place, *values in turns:
        assert policy.common_failure([HERE, BESIDE], []) is None, "too few"
        of_trial = dict(zip(["width", "lr"], values, strict=True))
        policy.record_failure(TrialFailure(f"t{number}", place, error, 1.0, exit_code, of_trial))
    return policy.common_failure([HERE, BESIDE], []) is not None


def test_the_same_error_of_many_trials_affects_all_if_it_occurs_with_several_values_of_each_key():
    assert values_that_fail(width=[64, 96], lr=[0.1, 0.2, 0.3])
    assert values_that_fail(width=[64, 96], lr=[0.1, 0.2, 0.3], error="KeyError: 'depth'", exit_code=None)
    assert not values_that_fail(width=[64], lr=[0.1, 0.2, 0.3]), "other widths may succeed"
    assert not values_that_fail(width=[64, 96], lr=[0.1, 0.2], error="exit code 1: too wide: 96"), "other errors"
    assert not values_that_fail(width=[64, 96], lr=[0.1, 0.2], error="exit code 139: dumped", exit_code=139)
    assert values_that_fail(width=[64, 96], lr=[0.1, 0.2], error="exit code 255: no config", exit_code=255), "exit(-1)"


def test_a_key_with_the_same_value_in_all_trials_explains_no_failure():
    policy, places = FailurePolicy(retries=0, constant_keys=frozenset({"data"})), [HERE, BESIDE]
    for number in range(SAME_ERRORS):
        assert policy.common_failure(places, []) is None, "too few"
        values = {"data": "images", "lr": number}
        error = "exit code 1: KeyError: 'depth'"
        policy.record_failure(TrialFailure(f"t{number}", places[number % 2], error, 1.0, 1, values))
    assert policy.common_failure(places, [])


def test_different_errors_do_not_affect_all_and_names_of_trials_are_ignored():
    policy = FailurePolicy(retries=0)
    for error, exit_code, key in (
        ("exit code 2: {n}", 2, ""),
        ("No such file: trials/t{n}/in.csv --lr {n}", None, ""),
        ("No such file: {n}.csv", None, "subject"),  # other subjects may have their files
    ):
        for number, place in enumerate([HERE, BESIDE, HERE]):
            values = {key: number} if key else {}
            policy.record_failure(TrialFailure(f"t{number}", place, error.format(n=number), 1.0, exit_code, values))
        assert policy.common_failure([HERE, BESIDE], []) is None, error
    for number, place in enumerate([HERE, BESIDE, HERE]):
        error = f"exit code 2: in trials/t{number}: no such option: --lrr {number}"
        policy.record_failure(TrialFailure(f"t{number}", place, error, 1.0, 2, values={"lr": number}))
    assert policy.common_failure([HERE, BESIDE], []).error.startswith("exit code 2: in trials")
    policy.record_success("b", HERE)
    assert policy.common_failure([HERE, BESIDE], []) is None


@pytest.mark.parametrize("is_own", [True, False])
def test_the_success_of_a_trial_that_the_config_has_gained_counts(tmp_path, is_own):
    old, new = (
        check_config({"sweeps": {"s": {"command": "true {x}", "grid": {"x": values}}}}).sweeps["s"]
        for values in ([1, 2], [1, 2, 3])
    )
    history = History("s", old, "no dataset", tmp_path, Fold(tmp_path))
    policy = FailurePolicy.of_sweep(history)
    (added,) = history.grow(new)
    usage = {"error": "exit code 2: train.py: error: unrecognized arguments", "exit_code": 2}
    for name in "abc":
        policy.record_failure(failure(name, **usage))
    assert policy.common_failure([HERE], [])
    with session_of(tmp_path) as journal:
        journal.append("started", trial=added, attempt=1, generation=0)
        journal.append("finished", trial=added, attempt=1, metrics={}, seconds=1.0)
    (end,) = [event for event in read_journal(tmp_path) if isinstance(event, Ended)]
    policy.on_event(end, attempts_in(tmp_path)[0], is_own=is_own)
    assert not policy.common_failure([HERE], [])


def test_a_trial_that_has_diverged_counts_for_neither_the_sweep_nor_its_gpu(tmp_path):
    sweep = check_config({"sweeps": {"s": {"command": "true {x}", "grid": {"x": [1, 2]}}}}).sweeps["s"]
    history = History("s", sweep, "no dataset", tmp_path, Fold(tmp_path))
    policy = FailurePolicy.of_sweep(history)
    usage = {"error": "exit code 2: train.py: error: unrecognized arguments", "exit_code": 2}
    for name in "abc":
        policy.record_failure(failure(name, **usage))
    name = next(iter(history.trials))
    with session_of(tmp_path) as journal:
        journal.append("started", trial=name, attempt=1, generation=0, node=HERE.node, gpu=HERE.gpu, slot=HERE.slot)
        journal.append("diverged", trial=name, attempt=1, error="loss is NaN", seconds=1.0)
    (end,) = [event for event in read_journal(tmp_path) if isinstance(event, Ended)]
    policy.on_event(end, attempts_in(tmp_path)[0], is_own=True)
    assert policy.common_failure([HERE], [])
    assert policy.failures_in_a_row(HERE) == 3
