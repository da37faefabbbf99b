"""The flags of steps: a stop request is read soon, whatever a step takes, and in the order of the steps."""

import pytest
import torch
from loops import GPU_ON_PAPER
from trainyard.training.process_group import Group, single_process
from trainyard.training.step_sync import LAG_SECONDS, MAX_LAG, StepFlags

HOST_SECONDS = 0.0002  # to launch the kernels of a step


class SimulatedGpu:
    """A device that takes its time, and the clock of a host that runs ahead of it."""

    def __init__(self, monkeypatch):
        self.now = self.busy_until = 0.0
        monkeypatch.setattr(torch.cuda, "Event", self.event)

    def event(self, *, enable_timing, blocking):
        assert blocking, "the host does not spin while it waits"
        return Event(self)

    def launch(self, seconds):
        self.busy_until = max(self.busy_until, self.now) + seconds

    def synchronize(self):
        self.now = max(self.now, self.busy_until)


class Event:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self):
        self.reached_at = max(self.gpu.busy_until, self.gpu.now)

    def synchronize(self):
        self.gpu.now = max(self.gpu.now, self.reached_at)

    def elapsed_time(self, later):
        return 1000 * (later.reached_at - self.reached_at)


class Training:
    """The steps of a trainer, as far as they concern the flags; forward, backward and update are a third each."""

    def __init__(self, gpu, step_seconds):
        self.gpu, self.step_seconds, self.steps = gpu, step_seconds, 0
        self.flags = StepFlags(Group(rank=0, local_rank=0, world_size=1, device=GPU_ON_PAPER))
        self.flags.begin()
        self.optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])

    def step(self, *, deadline=float("inf"), stop=False):
        """Take a step; returns the statuses that became known."""
        self.steps += 1
        self.gpu.now += HOST_SECONDS
        self.gpu.launch(self.step_seconds / 3)
        late = self.gpu.now + self.flags.stop_seconds > deadline
        self.flags.start(self.steps, torch.tensor(1.0), stop=stop or late)
        self.gpu.launch(self.step_seconds / 3)
        known = self.flags.finish(self.optimizer)
        self.gpu.launch(self.step_seconds / 3)
        return known


@pytest.fixture
def gpu(monkeypatch):
    return SimulatedGpu(monkeypatch)


@pytest.mark.parametrize("step_seconds", [0.001, 0.3, 0.7, 5.0, 60.0])
@pytest.mark.parametrize("last_step", [2.4, 3.2, 5.5, 9.9, 40.3])
def test_a_training_stops_before_its_deadline_but_not_long_before(gpu, step_seconds, last_step):
    """Also in its first steps, when the host has launched many before the GPU has taken one."""
    training = Training(gpu, step_seconds)
    deadline = last_step * step_seconds
    while not any(status.stop for status in training.step(deadline=deadline)):
        pass
    gpu.synchronize()  # as the checkpoint does
    assert gpu.now <= deadline + 1e-9
    assert gpu.now >= deadline - 2 * LAG_SECONDS - 4 * step_seconds - 30 * HOST_SECONDS


@pytest.mark.parametrize("step_seconds", [0.001, 0.3, 0.7, 5.0])
def test_the_host_is_ahead_of_the_gpu_by_a_second_at_most(gpu, step_seconds):
    training, known = Training(gpu, step_seconds), []
    for _ in range(40):
        known += training.step(stop=training.steps == 29)
        assert gpu.busy_until - gpu.now <= LAG_SECONDS + step_seconds
        if any(status.stop for status in known):
            break
    assert training.steps - 30 == min(MAX_LAG, int(LAG_SECONDS / step_seconds))
    known += training.flags.finish_all()
    assert [status.step for status in known] == list(range(1, training.steps + 1))
    assert [status.step for status in known if status.stop] == [30]


def test_short_steps_keep_the_gpu_busy(gpu):
    training = Training(gpu, 0.001)
    for _ in range(100):
        training.step()
    gpu.synchronize()
    assert gpu.now == pytest.approx(100 * 0.001, rel=0.05)


def test_a_validation_is_not_a_long_step(gpu):
    training = Training(gpu, 0.1)
    for _ in range(3):
        for _ in range(20):
            training.step()
        training.flags.finish_all()
        before = training.flags.stop_seconds
        gpu.launch(60)
        training.flags.begin()
    training.step()
    assert training.flags.stop_seconds == pytest.approx(before, rel=0.1)


def test_on_a_cpu_a_flag_is_known_at_once():
    flags = StepFlags(single_process())
    flags.begin()
    for step in (1, 2):
        flags.start(step, torch.tensor(float("nan") if step == 2 else 1.0), stop=step == 1)
        (status,) = flags.finish(torch.optim.SGD([torch.zeros(1, requires_grad=True)]))
        assert (status.step, status.stop, status.bad_rank) == (step, step == 1, 0 if step == 2 else None)
    assert flags.finish_all() == []
