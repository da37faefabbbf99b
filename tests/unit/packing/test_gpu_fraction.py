"""How many trials should share a GPU: measured on simulated GPUs, by the times in a journal."""

import json
import re
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import pytest
from sweep_journals import write_session
from trainyard.config.load import check_config
from trainyard.config.sweep import Slots
from trainyard.config.trial_status import TrialStatus
from trainyard.packing import driver, gpu_fraction
from trainyard.packing.gpu_fraction import GpuFractionMeasurement
from trainyard.packing.worker_gpu import GpuUse
from trainyard.planning.job_costs import summarize_plan
from trainyard.planning.journal import Ended, Epoch, GpuFraction, MicroBatchHalved, SessionStarted, Started, encode
from trainyard.planning.plan import plan_sweep, read_state
from trainyard.planning.sweep_state import Task

LAUNCH_BOUND, COMPUTE_BOUND = 3.3, 1.0  # throughput of a GPU at most, in trials that run alone


class Yard:
    """A sweep whose trials run on simulated GPUs. `n` trials on a GPU of a `capacity` run at min(1, capacity / n)."""

    def __init__(self, folder, monkeypatch, *, grid, gpus=1, share="auto", mps="off", **sweep):
        self.slots = {"gpus_per_node": gpus, "gpus_per_trial": share}
        self.sweep = {"dataset": "d", "train": {"epochs": 4}, "grid": grid, **sweep}
        self.config = self.read(mps=mps)
        self.halves_at = 1e9  # trials per GPU at which a micro-batch does not fit
        self.folder, self.gpus, self.now, self.used = folder, gpus, 1000.0, GpuUse(1000, 10000, 1.0)
        self.journal = write_session(folder / "sweeps/s", [])
        self.write(SessionStarted(time=self.now, slots=gpus, gpus=gpus))
        monkeypatch.setattr(gpu_fraction, "time", SimpleNamespace(monotonic=lambda: self.now))

    def read(self, *, mps):
        sweep = {**self.sweep, "slots": {**self.slots, "mps": mps}}
        return check_config({"datasets": {"d": {"source": "digits"}}, "sweeps": {"s": sweep}})

    def write(self, *events):
        with self.journal.open("a") as file:
            file.writelines(json.dumps(encode(each)) + "\n" for each in sorted(events, key=lambda each: each.time))

    @property
    def plan(self):
        return plan_sweep(self.config, "s", self.folder)

    def measure(self, *, capacity, seconds, work=None, epochs_run=lambda trial: 4, earlier=lambda trial: 0.0):
        """The measured share, and how many trials were left; `seconds(trial)` is how long a trial takes alone.

        A trial that resumes has run `earlier(trial)` seconds in another job.
        """
        self.capacity, self.seconds, self.epochs_run, self.earlier = capacity, seconds, epochs_run, earlier
        plan = self.plan
        state = replace(plan.state, flops=work(plan) if work else {})
        self.trials = state.trials
        waiting = deque(Task(name, trial.spec, trial.values, 0) for name, trial in state.trials.items())
        return GpuFractionMeasurement(state, self.journal.stem, self.run).measure(waiting), len(waiting)

    def run(self, slots, tasks):
        """Run tasks as the packer does: a slot that is free takes the next one."""
        running, events = {}, []
        while True:
            for slot in range(slots.count):
                if slot not in running and (task := tasks.next_task()):
                    running[slot] = [
                        task.trial,
                        self.seconds(task) * self.epochs_run(task) / 4,
                        self.now,
                        self.earlier(task),
                    ]
                    where = {"gpus_per_trial": slots.share, "node": "n", "gpu": str(slot % self.gpus), "slot": slot}
                    events.append(Started(time=self.now, trial=task.trial, attempt=1, **where))
                    if slots.share <= 1 / self.halves_at:
                        events.append(
                            MicroBatchHalved(time=self.now, trial=task.trial, attempt=1, micro_batch=8, accumulation=2)
                        )
            if not running:
                self.write(*events)
                return [self.used] if slots.share == 1 and self.used else []
            on_gpu = [slot % self.gpus for slot in running]
            speed = {slot: min(1.0, self.capacity / on_gpu.count(slot % self.gpus)) for slot in running}
            step = min(left / speed[slot] for slot, (_, left, *_) in running.items())
            self.now += step
            for slot, each in list(running.items()):
                each[1] -= step * speed[slot]
                if each[1] < 1e-6:
                    name, _, start, earlier = running.pop(slot)
                    epochs = self.epochs_run(self.trials[name])
                    about = {"time": self.now, "trial": name, "attempt": 1}
                    events += [Epoch(metrics={"epoch": number + 1}, **about) for number in range(epochs)]
                    status = TrialStatus.FINISHED if epochs == 4 else TrialStatus.STOPPED
                    events.append(Ended(status=status, seconds=self.now - start + earlier, metrics={}, **about))


@pytest.fixture
def yard(tmp_path, monkeypatch):
    return lambda count=100, **options: Yard(tmp_path, monkeypatch, **{"grid": {"seed": list(range(count))}, **options})


def trials_per_gpu(share):
    return round(1 / share.gpus_per_trial)


def rounded(why):
    return re.sub(r"\d\.\d\d", lambda number: f"{float(number[0]):.1f}", why)


@pytest.mark.parametrize("seconds", [4, 25, 4000])
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize(("capacity", "best"), [
    (COMPUTE_BOUND, 1),  # two at a time take twice as long, although each alone may have been "busy" or not
    (1.05, 1),  # a gain within the noise
    (1.5, 2),
    (2.1, 2),  # four end hardly more per hour than two
    (LAUNCH_BOUND, 4),
    (100, 4),
])  # fmt: skip
def test_the_number_that_ends_most_trials_per_hour_is_kept(yard, seconds, gpus, capacity, best):
    share, left = yard(500, gpus=gpus).measure(capacity=capacity, seconds=lambda trial: seconds)
    assert trials_per_gpu(share) == best
    assert share.slots == gpus * best
    if best > 1:
        assert share.throughput[str(best)] == pytest.approx(min(capacity, best), rel=0.05)
    assert left >= 500 - 16 * gpus * (60 / seconds + 1), "a minute with each number, or a trial on each slot"


@pytest.mark.parametrize(("peak", "best", "why"), [
    (1000, 4, "4 trials share a GPU (trials per hour, relative to one at a time: 2.0 with 2, 4.0 with 4; the largest "
              "used 1000 of 10000 MiB)"),
    (4000, 2, "2 trials share a GPU (trials per hour, relative to one at a time: 2.0 with 2; the largest used 4000 of "
              "10000 MiB)"),
    (9500, 1, "each trial has a GPU of its own (the largest used 9500 of 10000 MiB)"),
    (None, 1, "each trial has a GPU of its own (NVML did not report their memory use)"),
])  # fmt: skip
def test_memory_limits_the_number_and_the_reason_is_said(yard, peak, best, why):
    own = yard()
    own.used = GpuUse(peak, 10000, 0.98) if peak else None
    share, _ = own.measure(capacity=100, seconds=lambda trial: 20)
    assert (trials_per_gpu(share), rounded(share.why)) == (best, why)


@pytest.mark.parametrize(("halves_at", "best"), [(2, 1), (4, 2)])
def test_no_number_is_kept_with_which_a_micro_batch_was_halved(yard, halves_at, best):
    """The largest trial may not be among those that ran alone."""
    own = yard()
    own.halves_at = halves_at
    share, _ = own.measure(capacity=100, seconds=lambda trial: 20)
    assert trials_per_gpu(share) == best
    assert share.why.endswith(f"; with {halves_at}, a micro-batch did not fit)")


@pytest.mark.parametrize("stall", [8.0, 13.0, 30.0])
@pytest.mark.parametrize("stalled", range(8))
@pytest.mark.parametrize(("capacity", "best"), [(COMPUTE_BOUND, 1), (LAUNCH_BOUND, 4)])
def test_a_trial_that_stalls_for_some_seconds_does_not_decide(yard, stalled, stall, capacity, best):
    """Trials 0 to 2 run alone, 3 to 8 two at a time."""
    share, _ = yard().measure(capacity=capacity, seconds=lambda trial: 22.0 + stall * (trial.values["seed"] == stalled))
    assert trials_per_gpu(share) == best


COSTS = {  # name: (seconds alone by the number of blocks, FLOPs, `cost`)
    "FLOPs are known": (lambda blocks: 0.5 * blocks, lambda blocks: 1e9 * blocks, None),
    "`cost` is known": (lambda blocks: 0.5 * blocks, None, "model_args.blocks"),
    "costs are learned": (lambda blocks: 0.5 * blocks, None, None),
    "FLOPs mislead": (lambda blocks: 20.0, lambda blocks: 1e9 * blocks**2, None),
}


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize(("capacity", "best"), [(COMPUTE_BOUND, 1), (LAUNCH_BOUND, 4)])
@pytest.mark.parametrize("costs", COSTS)
def test_trials_of_different_cost_are_compared_by_it(yard, costs, capacity, best, gpus):
    seconds, flops, cost = COSTS[costs]
    own = yard(grid={"model_args.blocks": list(range(100, 0, -1))}, gpus=gpus, **({"cost": cost} if cost else {}))
    share, _ = own.measure(
        capacity=capacity,
        seconds=lambda trial: seconds(trial.values["model_args.blocks"]),
        work=flops
        and (lambda plan: {name: flops(each.values["model_args.blocks"]) for name, each in plan.state.trials.items()}),
    )
    assert trials_per_gpu(share) == best


def test_a_trial_whose_neighbor_ends_early_does_not_count_as_shared(yard):
    """Otherwise long trials that run alone most of the time would let two at a time seem twice as good."""
    own = yard(grid={"model_args.blocks": [100, 99, 1, 98, 1, 97, 1, 96, 1, 95, 1]})
    share, _ = own.measure(
        capacity=COMPUTE_BOUND,
        seconds=lambda trial: trial.values["model_args.blocks"] * 100.0,
        work=lambda plan: {name: each.values["model_args.blocks"] for name, each in plan.state.trials.items()},
    )
    assert trials_per_gpu(share) == 1


@pytest.mark.parametrize(("capacity", "best"), [(COMPUTE_BOUND, 1), (LAUNCH_BOUND, 4)])
def test_trials_that_are_stopped_early_are_compared_by_their_epochs(yard, capacity, best):
    share, _ = yard(stop={"method": "asha"}, metric="val_loss").measure(
        capacity=capacity, seconds=lambda trial: 20, epochs_run=lambda trial: 4 if trial.values["seed"] < 2 else 1
    )
    assert trials_per_gpu(share) == best


@pytest.mark.parametrize("resumed", [range(2), range(2, 5)])
@pytest.mark.parametrize(("capacity", "best"), [(COMPUTE_BOUND, 1), (LAUNCH_BOUND, 4)])
def test_a_trial_that_resumes_does_not_count(yard, resumed, capacity, best):
    """Its seconds are of two jobs. Trials 0 to 2 run alone, 3 to 8 two at a time."""
    share, _ = yard().measure(
        capacity=capacity, seconds=lambda trial: 22, earlier=lambda trial: 60.0 * (trial.values["seed"] in resumed)
    )
    assert trials_per_gpu(share) == best


@pytest.mark.parametrize(("count", "left", "why"), [
    (3, 1, None),  # nothing was compared
    (9, 3, "2 trials share a GPU (trials per hour, relative to one at a time: 2.0 with 2; the largest used 1000 of "
           "10000 MiB; too few were left to try 4)"),
])  # fmt: skip
def test_with_few_trials_what_is_known_counts(yard, count, left, why):
    share, found = yard(count).measure(capacity=100, seconds=lambda trial: 30 if count == 3 else 31)
    assert (share and rounded(share.why), found) == (why, left)


def test_the_plan_uses_the_measured_share_and_says_why(yard):
    own = yard()
    share, left = own.measure(capacity=1.6, seconds=lambda trial: 20)
    assert "1 slot of 1 (for now) GPU" in summarize_plan(own.plan)
    own.write(replace(share, time=own.now))
    plan = own.plan
    assert "requests 2 slots of 0.5 GPU and 1 CPU" in summarize_plan(plan)
    assert summarize_plan(plan).endswith(share.why)
    assert plan.request.predicted_seconds == pytest.approx(20 * left / 1.6, rel=0.1), (
        "what ran with another share is converted"
    )
    assert len(plan.state.unfinished) == left, "no result changes"


@pytest.mark.parametrize(("configured", "limit"), [("auto", 0.25), (1, 1.0), (0.5, 0.5)])
def test_the_memory_of_a_trial_is_limited_to_its_present_share(yard, configured, limit):
    own = yard(share=configured)
    own.write(GpuFraction(time=own.now, gpus_per_trial=0.25, slots=4, uses=[]))
    plan = driver._fix_slots(own.plan)
    assert driver._worker_setup(plan, own.folder, own.config.data).gpu_share == limit


def test_with_mps_the_share_is_measured_again(yard):
    """It lets more trials share a GPU. `off` is false in YAML."""
    own = yard(mps=False)
    share, _ = own.measure(capacity=LAUNCH_BOUND, seconds=lambda trial: 20)
    own.write(replace(share, time=own.now))
    assert not own.plan.state.is_gpu_fraction_open
    own.config = own.read(mps="auto")
    assert own.plan.state.is_gpu_fraction_open
    share, _ = own.measure(capacity=LAUNCH_BOUND, seconds=lambda trial: 20)
    own.write(replace(share, time=own.now))
    assert not own.plan.state.is_gpu_fraction_open


def test_on_another_gpu_model_the_share_is_measured_again(yard):
    own = yard()
    share, _ = own.measure(capacity=1.6, seconds=lambda trial: 20)
    own.write(replace(share, time=own.now, gpu_model="a100"))
    own.write(replace(share, time=own.now - 1, gpu_model="h100", gpus_per_trial=0.25))

    def on(*models):
        return read_state(own.config.sweeps["s"], "s", own.folder, gpu_models=models)

    assert [on(model).gpus_per_trial for model in ("a100", "h100", "v100")] == [0.5, 0.25, 1.0]
    assert on("v100").is_gpu_fraction_open
    assert on("h100", "a100").gpus_per_trial == on().gpus_per_trial == 0.5, "the last that may hold"


@pytest.mark.parametrize(("slots", "expected"), [({"mps": "auto"}, False), ({"gpus_per_trial": "auto"}, False),
    ({"mps": "auto", "gpus_per_trial": "auto"}, True), ({"mps": "auto", "gpus_per_trial": 0.5}, True)])  # fmt: skip
def test_mps_is_used_where_trials_share_a_gpu(slots, expected):
    assert Slots(**slots).uses_mps == expected


def test_what_is_left_is_predicted_for_the_measured_share(yard):
    """Alone, a trial takes 60 s; two take 80 s on one GPU, and four 160 s."""
    own = yard(40)
    own.capacity, own.seconds, own.epochs_run, own.earlier = 1.5, lambda _: 60.0, lambda _: 4, lambda _: 0.0
    plan, used, predicted = own.plan, [], []
    own.trials = plan.state.trials

    def create(*, slots, setup, source, predict=None, measures_gpu=False):
        def run(tasks):
            if source:
                used[:] = own.run(slots, source)
            else:
                name = tasks[-1].trial
                found = predict([name], {})
                predicted.append((slots.share, *found.seconds, *found.lower_bounds()))

        return SimpleNamespace(run=run, gpu_uses=used)

    journal = SimpleNamespace(session=own.journal.stem, record=lambda event: None)
    order = SimpleNamespace(state_now=lambda: own.plan.state)
    setup = driver._worker_setup(plan, own.folder, own.config.data)
    tasks = [Task(name, trial.spec, trial.values, 0) for name, trial in own.trials.items()]
    driver._measure_and_run(plan, tasks, journal, order, create=create, setup=setup)
    assert predicted == [(0.5, pytest.approx(80, rel=0.05), pytest.approx(80, rel=0.05))]
