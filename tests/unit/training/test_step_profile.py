"""The profile of some steps of a training, recorded by torch."""

import gzip
import json

import pytest
import torch
from loops import GPU_ON_PAPER, SPEC, changed, numbers, start, train
from trainyard.training.step_profile import ALLOCATIONS, TRACE, StepProfiler


def record(spec, data, folder, first, last):
    training = start(spec, data, profiler=StepProfiler([first, last], folder))
    return [numbers(row) for row in training.epochs()]


def steps(folder):
    """The steps of a trace, and the names of all that it has."""
    events = json.loads(gzip.decompress((folder / TRACE).read_bytes()))["traceEvents"]
    names = {each.get("name", "") for each in events}
    return sorted(int(name.partition("#")[2]) for name in names if name.startswith("ProfilerStep#")), names


@pytest.mark.parametrize(("first", "last"), [(1, 1), (2, 3), (3, 6)])
def test_the_trace_has_the_steps_and_what_torch_computes_in_them(data, tmp_path, first, last):
    """Of four steps per epoch; torch counts from 0."""
    spec = changed(SPEC, epochs=2)
    assert record(spec, data, tmp_path, first, last) == train(spec, data)[0], "it changes nothing"
    found, names = steps(tmp_path)
    assert found == list(range(first - 1, last))
    assert {"aten::convolution_backward", "Optimizer.step#SGD.step"} <= names
    assert [each.name for each in tmp_path.iterdir()] == [TRACE]


def test_a_training_that_ends_earlier_leaves_the_steps_that_it_took(data, tmp_path):
    record(changed(SPEC, epochs=1), data, tmp_path, 3, 99)
    found, _ = steps(tmp_path)
    assert found[:2] == [2, 3]


def test_a_training_that_is_stopped_early_leaves_its_steps(data, tmp_path):
    training = start(SPEC, data, profiler=StepProfiler([2, 99], tmp_path))
    epochs = training.epochs()
    next(epochs)
    epochs.close()
    assert steps(tmp_path)[0][:3] == [1, 2, 3]


def test_the_history_of_the_memory_ends_with_the_training(tmp_path, monkeypatch):
    """Also if it ends before the first step, and by an error: the next trial of the worker would be slower."""
    calls = []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **options: calls.append(options))
    profiler = StepProfiler([50, 60], tmp_path)
    with pytest.raises(KeyboardInterrupt), profiler.record(GPU_ON_PAPER):
        raise KeyboardInterrupt
    assert calls == [{"max_entries": ALLOCATIONS}, {"enabled": None}]


def test_a_training_that_ends_before_the_first_step_leaves_none_and_says_so(data, tmp_path, caplog):
    record(changed(SPEC, epochs=1), data, tmp_path, 50, 60)
    assert not list(tmp_path.iterdir())
    assert "no profile: the training ended after step 4, before step 50" in caplog.text
