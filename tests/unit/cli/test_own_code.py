"""The import paths of users' code are checked before anything is submitted."""

import pytest
from trainyard.cli.workflow import Workflow
from trainyard.utils.errors import UserError


def test_every_model_loss_and_metric_of_a_config_is_imported(tmp_path):
    train = {"loss": "no_losses:a", "metrics": ["no_metrics:b"]}
    studies = {
        "sweeps": {
            "grid": {"dataset": "d", "train": train, "grid": {"model": ["no_model:c", "no_model:d", "cnn"]}},
            "search": {"dataset": "d", "search": {"trials": 1, "values": {"model": ["no_drawn:e"]}}},
        },
        "scaling": {"s": {"dataset": "d", "scales": ["1x1"], "train": {"loss": "no_scale:f"}}},
    }
    raw = {"datasets": {"d": {"source": "digits"}}, **studies}
    with pytest.raises(UserError) as error:
        Workflow(raw, results=tmp_path).check_user_code()
    paths = ("no_losses:a", "no_metrics:b", "no_model:c", "no_model:d", "no_drawn:e", "no_scale:f")
    assert all(f"{path!r} cannot be imported" in str(error.value) for path in paths)
