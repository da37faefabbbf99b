"""The budget of a sweep: what its jobs spend stays within it."""

import math

import numpy as np
import pytest
from sweep_journals import record_attempt, session_of
from trainyard.checks.config_checks import check_use
from trainyard.config.load import ConfigError, check_config
from trainyard.config.sweep import Budget, Slots
from trainyard.planning.attempts import Session
from trainyard.planning.budget import Spending
from trainyard.planning.job_costs import summarize_plan
from trainyard.planning.journal import SessionStarted
from trainyard.planning.plan import plan_sweep

SLOTS = 4
STEP = 5.0  # seconds


class Simulated:
    """A sweep of 400 trials whose jobs start at random times within an hour.

    A job expects that a trial takes the 95 % quantile of those that have ended, or knows nothing before.
    """

    def __init__(self, seed, *, jobs):
        draw = np.random.default_rng(seed)
        self.durations = (600 * np.exp(draw.uniform(0, 0.8) * draw.standard_normal(400))).tolist()
        self.budget = Budget(gpu_hours=float(draw.uniform(4, 60)))
        self.starts = [0.0, *np.sort(draw.uniform(0, 3600, jobs - 1)).tolist()]
        self.sessions, self.running, self.known = {}, {}, []  # running by (job, slot): (start, end, reserved until)
        self.interrupted = 0

    def spending(self, now):
        ends = {}
        for (job, _), (_, _, until) in self.running.items():
            ends[job] = max(until, now, ends.get(job, 0.0))
        return Spending(self.budget, list(self.sessions.values()), Slots(gpus_per_node=SLOTS), ends)

    def start(self, job, now):
        """Start trials on the free slots of a job."""
        for slot in range(SLOTS):
            spending = self.spending(now)
            spending = Spending(spending.budget, spending.sessions, spending.slots, {job: now, **spending.ends})
            seconds = float(np.quantile(self.known, 0.95)) if self.known else 0.0
            if (job, slot) not in self.running and self.durations and now + seconds <= spending.latest_end(job):
                self.running[job, slot] = (now, now + self.durations.pop(), now + seconds)

    def run(self):
        """Returns the GPU-seconds of the jobs relative to the budget."""
        now, begun = 0.0, 0
        while True:
            if begun < len(self.starts) and self.starts[begun] <= now:
                self.sessions[str(begun)] = Session(SessionStarted(time=now, gpus=SLOTS), str(begun), end=now)
                self.start(str(begun), now)
                begun += 1
            for (job, slot), (start, end, _) in list(self.running.items()):
                if end <= now:
                    del self.running[job, slot]
                    self.known.append(end - start)
                    self.sessions[job].end = now
                    self.start(job, now)
            if not self.running:
                break
            stop = self.spending(now).must_stop_by(now)  # it moves only where a trial or a job starts or ends
            if stop <= now:
                self.interrupted = len(self.running)
                for job, _ in self.running:
                    self.sessions[job].end = now
                break
            nearest = min(stop, *self.starts[begun : begun + 1], *(end for _, end, _ in self.running.values()))
            now = max(now + STEP, STEP * math.ceil(nearest / STEP))
        return self.spending(now).unit_seconds({}) / self.budget.unit_seconds


@pytest.mark.parametrize("jobs", [1, 5])
def test_200_simulated_sweeps_spend_at_most_one_percent_more_than_their_budget(jobs):
    """Durations spread by up to a factor of two, and are unknown at first. A step of the simulation is 5 s."""
    sweeps = [Simulated(seed, jobs=jobs) for seed in range(100)]
    spent = np.array([sweep.run() for sweep in sweeps])
    ended = np.array([len(sweep.known) for sweep in sweeps])
    assert spent.max() < 1.01
    assert np.median(spent) > 0.8, "and it is used"
    assert sum(sweep.interrupted for sweep in sweeps) < 0.05 * ended.sum(), "few trials are interrupted at its end"


def test_a_trial_fits_beside_what_runs_and_idle_gpus_are_charged():
    runs = [Session(SessionStarted(time=100.0, gpus=2, lead_seconds=100.0), name, end=100.0) for name in "ab"]
    spending = Spending(Budget(gpu_hours=1), runs, Slots(gpus_per_node=2), {"a": 600.0, "b": 800.0})
    assert spending.left_unit_seconds == 3600 - 2 * 600 - 2 * 800
    assert spending.latest_end("a") == 1000.0
    assert spending.latest_end("b") == 1200.0
    assert spending.must_stop_by(500.0) == 900.0, "both jobs go on"
    assert Spending(Budget(hours=0.2), runs, Slots(), {"a": 600.0}).latest_end("a") == 720.0, "after the first start"
    spent = Spending(Budget(gpu_hours=0.1), runs, Slots(), {"a": 600.0})
    assert spent.latest_end("a") == -math.inf


def plan(results, **sweep):
    options = {"command": "true {x}", "grid": {"x": list(range(10))}, "slots": {"gpus_per_node": 2}, **sweep}
    return plan_sweep(check_config({"sweeps": {"s": options}}), "s", results)


def test_the_plan_says_how_many_trials_fit_and_requests_no_longer_walltime(tmp_path):
    without = plan(tmp_path)
    with session_of(tmp_path / "sweeps/s") as journal:
        journal.append("session", slots=2, gpus=2, lead_seconds=0.0)
        for name in list(without.state.trials)[:2]:
            record_attempt(journal, name, seconds=600.0)
    found = plan(tmp_path, budget={"gpu_hours": 1})
    assert found.trials_in_budget == 4, "two rounds of 10 minutes in half an hour, and the start-up"
    assert found.walltime_minutes in (29, 30), "half an hour, without what the journal says was spent"
    assert found.requested_hours <= 1
    assert "; budget: 1 of 1 GPU-hours left: about 4 of these trials fit" in summarize_plan(found)
    assert plan(tmp_path).walltime_minutes > 40
    reached = plan(tmp_path, budget={"until": "2026-01-31 08:00"})
    assert reached.forecast.pending == []
    assert "budget reached: 2 of 10 trials ran; raise `budget` to go on" in summarize_plan(reached)
    assert reached.state.space.digest != found.state.space.digest
    assert list(found.state.trials) == list(without.state.trials), "no trial is another one"


def test_a_time_that_has_passed_is_an_error_until_the_sweep_has_begun(tmp_path):
    budget = {"gpu_hours": 1, "until": "2026-01-31 08:00"}
    config = check_config({"sweeps": {"s": {"command": "true {x}", "grid": {"x": [1, 2]}, "budget": budget}}})

    def found():
        return [(each.name, each.message) for each in check_use(config, tmp_path) if each.verdict == "fails"]

    assert found() == [("sweeps.s.budget.until", "2026-01-31 08:00 has passed, and the sweep has not begun")]
    with session_of(tmp_path / "sweeps/s") as journal:
        journal.append("session", slots=1)
    assert found() == [], "the same command writes the tables"


def test_a_budget_must_have_a_time():
    with pytest.raises(ConfigError, match=r"budget\.until: 'tomorrow' is no date and time: write it as 2026-12-01 08"):
        plan(None, budget={"until": "tomorrow"})
    with pytest.raises(ConfigError, match="budget"):
        plan(None, budget={})
