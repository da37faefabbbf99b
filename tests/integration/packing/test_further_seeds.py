"""Further seeds of the best configurations: drawn once all others have ended, run once, in any of the jobs."""

import pytest
from claim_model import ended_by_log
from slurm_cluster.waiting import wait_until
from trainyard.config.load import read_config
from trainyard.planning.attempts import Fold
from trainyard.planning.plan import plan_sweep
from trainyard.results.ranking import rank_sweep

SWEEP = {
    "command": "echo {n} {seed} >> ran.txt; "
    "if [ {n} = 0 ]; then echo loss=nan; else echo loss={n}.{seed}; fi; sleep 0.3",
    "args": {"seed": 1},
    "grid": {"n": list(range(8))},
    "metrics": {"pattern": r"loss=(?P<loss>\S+)"},
    "metric": "loss",
    "repeats": 3,
    "repeat_best": 2,
}
FIRST = [f"{n} 1" for n in range(8)]
BEST = ["1 2", "1 3", "2 2", "2 3"]


def plan_of(drivers):
    config = read_config(drivers.project.folder / "config.yaml")
    return plan_sweep(config, "s", drivers.project.results)


def ran(drivers):
    return (drivers.project.folder / "ran.txt").read_text().splitlines()


@pytest.fixture
def swept(drivers):
    drivers.write(**SWEEP)
    return drivers


def test_the_best_run_with_the_other_seeds_once_all_have_ended(swept):
    plan = plan_of(swept)
    assert len(plan.state.unfinished) == 8 + 4, "the plan counts them"
    swept.end(swept.start(0))
    assert sorted(ran(swept)[:8]) == FIRST
    assert sorted(ran(swept)[8:]) == BEST, "the same new seeds for all; what has diverged is not among the best"
    state = plan_of(swept).state
    assert not state.unfinished
    assert len(state.trials) == 12
    best = rank_sweep(state).configurations[0]
    assert (best.values, best.n) == ({"n": 1}, 3)
    assert (swept.folder / "jobs/complete").exists()


def test_when_one_of_two_jobs_is_killed_the_other_runs_each_of_them_once_more_at_most(swept):
    swept.write(**SWEEP | {"command": SWEEP["command"].replace("sleep 0.3", "sleep 1"), "repeats": 5})
    first, second = swept.start(0), swept.start(1)
    wait_until(lambda: len(Fold(swept.folder).update().claims.draws) == 8, what="the draws of further seeds")
    wait_until(lambda: len(ran(swept)) >= 10, what="the first of them to run")
    second.kill()
    swept.end(first)
    fold = Fold(swept.folder).update()
    assert len(fold.claims.draws) == 8, "once"
    assert {len(fold.run_of(name).attempts) > 0 for name in swept.sessions()} == {True}
    assert sorted(ended_by_log(swept.folder).values()) == [1] * 16, "also the one that diverges"
    assert not plan_of(swept).state.unfinished
    assert len(ran(swept)) <= 17


def test_both_jobs_run_them(swept):
    """The one that has nothing to run waits for the last trial of the other one: one trial for all others, and the
    first with a further seed for the second one. They take more than a second: a job claims one at a time then, and
    none waits for another that the same job is to run.
    """
    waits = "until [ $(wc -l < ran.txt) -ge $(( {seed} > 1 ? 10 : {n} == 3 ? 8 : 0 )) ]; do sleep 0.05; done; sleep 1.2"
    swept.write(**SWEEP | {"command": SWEEP["command"].replace("sleep 0.3", waits), "repeats": 4})
    swept.end(swept.start(0), swept.start(1))
    fold = Fold(swept.folder).update()
    further = plan_of(swept).state.space.further
    assert all(any(trial in further for trial, _ in run.attempts) for run in fold.sessions)
    assert sorted(ended_by_log(swept.folder).values()) == [1] * 14, "also the one that diverges"


def test_a_finished_sweep_runs_only_what_is_new(swept):
    given = {key: value for key, value in SWEEP.items() if key not in ("repeats", "repeat_best")}
    swept.write(**given)
    swept.end(swept.start(0))
    before = plan_of(swept).state.space.digest
    swept.write(**SWEEP)
    assert len(plan_of(swept).state.unfinished) == 4
    assert plan_of(swept).state.space.digest != before, "Snakemake runs the rule again"
    swept.end(swept.start(0))
    assert sorted(ran(swept)[8:]) == BEST
    drawn = plan_of(swept).state.space.digest
    swept.write(**SWEEP | {"repeats": 4})
    swept.end(swept.start(0))
    assert sorted(ran(swept)[12:]) == ["1 4", "2 4"]
    swept.write(**SWEEP)
    state = plan_of(swept).state
    assert (state.unfinished, state.space.digest) == ([], drawn), "of fewer seeds, nothing is new"
    assert len(state.trials) == 14


def test_a_search_is_judged_by_fresh_seeds(swept):
    """Its first value of each configuration has a fortune that the others have not."""
    values = {"n": {"low": 1, "high": 50, "integer": True}}
    luck = "echo {n} {seed} >> ran.txt; echo loss=$(( {n} + ({seed} == 1 ? 0 : 100) ))"
    swept.write(**SWEEP | {"grid": {}, "search": {"trials": 8, "values": values}, "command": luck})
    assert len(plan_of(swept).state.unfinished) == 12
    swept.end(swept.start(0), swept.start(1))
    ranking = rank_sweep(plan_of(swept).state)
    assert [each.n for each in ranking.configurations[:3]] == [2, 2, 1]
    best = ranking.configurations[0]
    assert best.mean == best.values["n"] + 100
    assert len(ranking.evidence.expected) == 2, "the others are not compared with these"


def test_leaders_without_a_result_are_an_error_that_says_so(swept):
    swept.write(**SWEEP | {"grid": {"n": [0]}})
    driver = swept.start(0)
    assert driver.wait(timeout=100)
    assert "repeat_best has no configuration to repeat: no trial has finished with loss" in swept.output(driver)


def test_where_no_configuration_meets_the_constraints_the_sweep_ends_without_them(swept):
    never = SWEEP | {"constraints": {"loss": {"max": 0}}}
    swept.write(**never)
    driver = swept.start(0)
    swept.end(driver)
    assert "repeat_best has no configuration to repeat: no configuration meets the constraints" in swept.output(driver)
    state = plan_of(swept).state
    assert (state.unfinished, len(state.trials)) == ([], 8)
    swept.write(**never | {"grid": {"n": list(range(9))}})
    assert len(plan_of(swept).state.unfinished) == 1 + 4, "another configuration may meet them"
    swept.write(**never | {"constraints": {"loss": {"max": 9}}})
    swept.end(swept.start(0))
    assert sorted(ran(swept)[8:]) == BEST


def test_early_stopping_leaves_them_alone(swept):
    """Each report of a larger seed is worse than any before, at which the rule would stop a trial."""
    rows = "for e in 1 2 3; do echo epoch=$e loss=$(( {n} + 100 * {seed} )); sleep 0.5; done"
    metrics = {"pattern": r"epoch=(?P<epoch>\d+) loss=(?P<loss>\S+)"}
    stop = {"method": "asha", "grace_period": 1, "reduction_factor": 2}
    swept.write(**SWEEP | {"command": f"{rows}; echo {{n}} {{seed}} >> ran.txt", "metrics": metrics, "stop": stop})
    swept.end(swept.start(0))
    state = plan_of(swept).state
    assert any(state.record(name).status == "stopped" for name in state.trials)
    assert {state.record(name).status for name in state.space.further} == {"finished"}
