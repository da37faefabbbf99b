"""Users' code is imported, and trainings are tried, before anything is submitted."""

import re

import pytest
import torch
from torchvision import models as vision
from trainyard.cli.workflow import Workflow
from trainyard.config.datasets import Digits
from trainyard.data.staging import stage
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


LOSSES = """
from torch.nn.functional import cross_entropy

def per_image(outputs, targets):
    return cross_entropy(outputs, targets, reduction="none")

def of_classes(outputs, targets):
    return -outputs.log_softmax(1)[range(len(targets)), targets].mean()

class NoValue:
    def sums(self, outputs, targets):
        return outputs.new_zeros(1)

    def value(self, sums):
        return None

class Ratio:
    def sums(self, outputs, targets):
        return outputs.new_zeros(2)

    def value(self, sums):
        return sums[0].item() / sums[1].item()
"""


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """A function that tries the trainings of a sweep with these options, on a dataset that is staged or not."""
    (tmp_path / "tried_code.py").write_text(LOSSES)
    weights = vision.shufflenet_v2_x0_5(num_classes=3)
    torch.save(weights.state_dict(), tmp_path / "fits.pt")
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "other.pt")
    monkeypatch.chdir(tmp_path)

    def check(train, grid=None, *, staged=True):
        sweep = {"dataset": "d", "train": {"model": "shufflenet_v2_x0_5", **train}, "grid": grid or {"lr": [0.1, 0.2]}}
        raw = {"datasets": {"d": {"source": "digits"}}, "sweeps": {"s": sweep}}
        if staged:
            stage(Digits(source="digits"), tmp_path / "results/data/d")
        Workflow(raw, results=tmp_path / "results").check_user_code()

    return check


@pytest.mark.parametrize("staged", [True, False])
def test_wrong_weights_and_patterns_are_found_before_anything_is_submitted(tried, staged):
    grid = {"pretrained": ["fits.pt", "other.pt"], "freeze": [["conv1"], ["convl"]], "lr": [0.1, 0.2]}
    with pytest.raises(UserError) as error:
        tried({}, grid, staged=staged)
    lines = str(error.value).splitlines()
    assert lines[0] == "some trainings would fail:"
    assert [line.partition(": ")[0].strip() for line in lines[1:]] == [f"sweeps.s.train ({n} of 4)" for n in (2, 3, 4)]
    assert "freeze: 'convl' matches no parameter" in lines[1]
    assert "other.pt: has none of the names" in lines[2]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"loss": "tried_code:per_image"}, "it returns the shape (2,)"),
        ({"loss": "tried_code:of_classes", "augment": {"mixup": 0.2}}, "loss 'tried_code:of_classes'"),
        ({"metrics": ["tried_code:NoValue"]}, "metric 'tried_code:NoValue': TypeError"),
    ],
)
def test_own_losses_and_metrics_are_tried_before_anything_is_submitted(tried, train, message):
    with pytest.raises(UserError, match=re.escape(message)):
        tried(train)


def test_trainings_that_work_pass(tried):
    tried({"pretrained": "fits.pt", "freeze": ["conv1"], "loss": "tried_code:of_classes"})
    tried({"metrics": ["tried_code:Ratio", "top5_accuracy"]})
