"""The process of a slot, between its trials."""

from types import SimpleNamespace

import pytest
from trainyard.config.trial_status import TrialStatus
from trainyard.packing.worker import Worker
from trainyard.training.computation import compilation
from trainyard.utils.errors import Diverged


@pytest.mark.parametrize("error", [None, Diverged("NaN"), ValueError("in the model")])
def test_compiled_code_is_released_after_each_trial_however_it_ends(monkeypatch, error):
    """Also before a trial that does not compile: the memory pools of CUDA graphs would remain."""
    released = []
    monkeypatch.setattr(compilation, "release_compiled_code", lambda: released.append(True))
    worker = Worker()
    worker._setup = SimpleNamespace(is_training=True)

    def train(request, began):
        if error is not None:
            raise error
        return SimpleNamespace(status=TrialStatus.FINISHED)
        yield

    monkeypatch.setattr(worker, "_train", train)
    for compiles in (True, False):
        worker.begin(SimpleNamespace(spec={"compile": compiles}))
    assert len(released) == 1
