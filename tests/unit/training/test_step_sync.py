"""The flags of steps: a stop request is read soon, whatever a step takes, and in the order of the steps."""

import pytest
import torch
from trainyard.training import step_sync
from trainyard.training.process_group import single_process
from trainyard.training.step_sync import LAG_SECONDS, MAX_LAG, StepFlags


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("step_seconds", [0.001, 0.3, 0.7, 5.0])
def test_the_host_reads_flags_about_a_second_late_at_most(monkeypatch, step_seconds):
    """As on a GPU, where the host runs ahead of the device by some steps."""
    clock = Clock()
    monkeypatch.setattr(step_sync, "time", clock)
    flags, optimizer = StepFlags(single_process()), torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    flags._max_lag = MAX_LAG
    known = []
    for step in range(1, 41):
        flags.start(step, torch.tensor(1.0), stop=step == 30)
        late = flags.stop_seconds
        statuses = flags.finish(optimizer)
        known += statuses
        if any(status.stop for status in statuses):
            break
        clock.now += step_seconds
    lag = step - 30
    assert lag == min(MAX_LAG, int(LAG_SECONDS / step_seconds))
    assert late == pytest.approx((lag + 1) * step_seconds), "the time that a deadline must leave for it"
    known += flags.finish_all()
    assert [status.step for status in known] == list(range(1, step + 1))
    assert [status.step for status in known if status.stop] == [30]


def test_on_a_cpu_a_flag_is_known_at_once():
    flags = StepFlags(single_process())
    for step in (1, 2):
        flags.start(step, torch.tensor(float("nan") if step == 2 else 1.0), stop=step == 1)
        (status,) = flags.finish(torch.optim.SGD([torch.zeros(1, requires_grad=True)]))
        assert (status.step, status.stop, status.bad_rank) == (step, step == 1, 0 if step == 2 else None)
    assert flags.finish_all() == []
