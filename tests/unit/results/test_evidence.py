"""What the seeds of a sweep allow to say: in simulated sweeps, whose truth is known, as often as it is stated."""

import numpy as np
import pytest
from trainyard.results.evidence import SURE, weigh

SWEEPS = 250


def simulated(configurations, seeds, *, spread=1.0, are_shared=True, sweeps=SWEEPS):
    """The true means of simulated sweeps, and their runs; noise has the standard deviation 1."""
    rng = np.random.default_rng(7)
    for _ in range(sweeps):
        truth, of_seed = rng.normal(0, spread, configurations), rng.normal(0, 1, 8)
        counts = [seeds] * configurations if are_shared else [2, *rng.integers(1, 7, configurations - 1)]
        runs = [
            {str(seed): mean + are_shared * of_seed[seed] + rng.normal() for seed in range(count)}
            for mean, count in zip(truth, counts, strict=True)
        ]
        yield truth, runs


@pytest.mark.parametrize(
    ("configurations", "seeds", "options"),
    [(20, 2, {}), (20, 3, {}), (20, 5, {}), (3, 3, {}), (2, 2, {}), (20, 3, {"spread": 5.0}),
     (20, 0, {"are_shared": False}), (5, 0, {"are_shared": False})],
)  # fmt: skip
def test_what_is_stated_holds_as_often_as_stated(configurations, seeds, options):
    held = np.zeros(3)
    for truth, runs in simulated(configurations, seeds, **options):
        found = weigh(runs, is_better_higher=True)
        first, second = np.argsort(-np.array(found.expected))[:2]
        assert first == found.leader
        held += [
            truth.argmax() in found.best,
            found.lead_range[0] <= truth[first] - truth[second] <= found.lead_range[1],
            found.value[0] <= truth[first] <= found.value[1],
        ]
    assert (held / SWEEPS >= SURE - 0.07).all(), held / SWEEPS


def test_the_set_has_the_best_of_a_few_that_are_almost_equal():
    """As the leaders of a search are."""
    sweeps = 600
    held = [truth.argmax() in weigh(runs, is_better_higher=True).best
            for truth, runs in simulated(5, 3, spread=0.2, sweeps=sweeps)]  # fmt: skip
    assert sum(held) / sweeps >= SURE - 0.005


def test_no_difference_is_claimed_where_there_is_none():
    found = [weigh(runs, is_better_higher=True) for _, runs in simulated(20, 3, spread=0.0)]
    assert np.mean([len(each.best) for each in found]) > 10
    assert np.mean([each.lead_range[0] > 0 for each in found]) < 0.05


def test_equal_configurations_keep_their_order_and_none_of_them_leads():
    """Also beside others: the noise of the draws is no difference."""
    cases = {"0": 0.999161, "1": 0.984948, "2": 0.997032, "3": 0.998304}
    worse = {case: value - 0.001 * number for number, (case, value) in enumerate(cases.items())}
    found = weigh([worse, cases, cases, worse], is_better_higher=True)
    assert found.leader == 1
    assert found.lead == 0.0
    assert list(np.argsort(-np.array(found.expected), kind="stable")) == [1, 2, 0, 3]


def test_common_seeds_are_compared_with_each_other():
    """A seed shifts all configurations here by more than they differ; without it, nothing could be told."""
    shift = {"0": -50.0, "1": 0.0, "2": 70.0}
    runs = [{seed: number + by + noise for (seed, by), noise in zip(shift.items(), noises, strict=True)}
            for number, noises in [(0, (0.1, 0, -0.1)), (3, (0, -0.1, 0.1)), (9, (0, 0.1, 0))]]  # fmt: skip
    found = weigh(runs, is_better_higher=True)
    assert (found.leader, found.best) == (2, (2,))
    assert 5.5 < found.lead_range[0] < 6 < found.lead_range[1] < 6.5
    assert found.value[1] - found.value[0] > 50, "the mean over all seeds is known as well as three seeds tell"


def test_lower_values_may_be_better():
    runs = [{"0": 1.0, "1": 1.1}, {"0": 5.0, "1": 5.2}, {"0": 9.0, "1": 9.1}]
    low, high = weigh(runs, is_better_higher=False), weigh(runs, is_better_higher=True)
    assert (low.leader, high.leader) == (0, 2)
    assert low.lead > 0 < high.lead
    assert low.value[0] < 1.05 < low.value[1]
    assert high.value[0] < 9.05 < high.value[1]


def test_one_that_failed_by_far_does_not_change_what_is_said_of_the_others():
    rng = np.random.default_rng(3)
    runs = [{str(seed): mean + rng.normal(0, 0.01) for seed in range(3)} for mean in (0.9, 0.93, 0.95, 0.96, 0.97)]
    without, broken = (
        weigh(runs, is_better_higher=True),
        weigh([*runs, dict.fromkeys("012", 0.1)], is_better_higher=True),
    )
    assert without.best == broken.best
    assert broken.expected[5] == pytest.approx(0.1, abs=0.02)
    assert broken.lead == pytest.approx(without.lead, abs=0.005)


def test_seeds_that_change_nothing_leave_nothing_open_but_ties():
    runs = [dict.fromkeys("012", value) for value in (0.5, 0.7, 0.7, 0.6)]
    found = weigh(runs, is_better_higher=True)
    assert (set(found.best), found.lead, found.lead_range) == ({1, 2}, 0, (0, 0))
    assert found.value == (pytest.approx(0.7), pytest.approx(0.7))
    assert weigh(runs[:2], is_better_higher=True).lead_range == (pytest.approx(0.2), pytest.approx(0.2))


@pytest.mark.parametrize("runs", [[], [{"0": 1.0, "1": 2.0}], [{"0": 1.0}, {"0": 2.0}]])
def test_nothing_is_said_of_one_configuration_or_of_one_run_each(runs):
    assert weigh(runs, is_better_higher=True) is None


def test_few_runs_far_above_the_others_do_not_lead():
    """One lucky run of many configurations, beside one that is known to be good."""
    rng = np.random.default_rng(0)
    known = {str(seed): 1.5 + (-1) ** seed for seed in range(6)}
    others = [{"0": mean} for mean in rng.normal(0, 1, 18)]
    found = weigh([known, *others, {"0": 2.4}], is_better_higher=True)
    assert found.leader == 0
    assert found.expected[-1] < 2.4
