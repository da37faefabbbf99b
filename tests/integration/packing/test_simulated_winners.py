"""Simulated sweeps: which winner is named, and whether what is said of it is true. benchmarks/winner.py in small."""

import statistics

import winner


def test_three_runs_of_five_leaders_tell_more_than_two_of_all():
    single, few, all_twice = (
        winner.simulate(case, 200) for case in ("one run each", "repeats: 4, repeat_best: 5", "repeats: 2")
    )
    assert few[0].runs < all_twice[0].runs
    regrets = [statistics.fmean(each.regret for each in found) for found in (few, all_twice, single)]
    assert regrets == sorted(regrets)
