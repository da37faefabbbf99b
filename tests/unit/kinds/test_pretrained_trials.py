"""A trial that starts from a file of weights, on a worker."""

import pickle

import pytest
from trainyard.config.sweep import TrainSweep
from trainyard.config.trials import expand
from trainyard.config.weights import WeightsError
from trainyard.kinds.train import check_weights


def test_a_file_that_changes_while_the_sweep_runs_is_an_error(tmp_path):
    """Otherwise its results would count as those of the first file."""
    weights = tmp_path / "weights.pt"
    weights.write_text("PK weights")
    train = {"pretrained": str(weights), "model_args": {"blocks": 2}, "lr": 1e-5, "freeze": ["conv1"]}
    (trial,) = expand(
        TrainSweep.model_validate({"dataset": "digits", "train": train, "trials": [{"epochs": 3}]})
    ).trials
    sent = pickle.loads(pickle.dumps(trial.spec))
    check_weights(sent, trial.identity("data"), "data")
    weights.write_text("PK other weights")
    with pytest.raises(WeightsError, match=r"weights.pt: has changed since the sweep began: run the sweep again"):
        check_weights(sent, trial.identity("data"), "data")
