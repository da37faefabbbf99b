"""Users' code is imported, and trainings are tried, before anything is submitted."""

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
        Workflow(raw, results=tmp_path).check(dry_run=False)
    paths = ("no_losses:a", "no_metrics:b", "no_model:c", "no_model:d", "no_drawn:e", "no_scale:f")
    assert all(f"{path!r} cannot be imported" in str(error.value) for path in paths)


LOSSES = """
import torch
from torch.nn.functional import cross_entropy
from torchmetrics import Metric

def per_image(outputs, targets):
    return cross_entropy(outputs, targets, reduction="none")

def of_classes(outputs, targets):
    return -outputs.log_softmax(1)[range(len(targets)), targets].mean()

class NoValue(Metric):
    def update(self, outputs, targets):
        pass

    def compute(self):
        return None

class Ratio(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("hits", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, outputs, targets):
        self.hits += (outputs.argmax(1) == targets).sum()

    def compute(self):
        return self.hits / (self.hits + 1)
"""


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """A function that tries the trainings of some sweeps, on a dataset that is staged or not; returns the mistakes."""
    (tmp_path / "tried_code.py").write_text(LOSSES)
    weights = vision.shufflenet_v2_x0_5(num_classes=3)
    torch.save(weights.state_dict(), tmp_path / "fits.pt")
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "other.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def check(sweeps, *, staged):
        base = {"dataset": "d", "grid": {"lr": [0.1, 0.2]}}
        raw = {
            "datasets": {"d": {"source": "digits"}},
            "sweeps": {name: base | sweep for name, sweep in sweeps.items()},
            "scaling": {"ranks": {"dataset": "d", "scales": ["1x1"], "ddp": {"find_unused": True}}},
        }
        if staged:
            stage(Digits(source="digits"), tmp_path / "results/data/d")
        with pytest.raises(UserError) as error:
            Workflow(raw, results=tmp_path / "results").check(dry_run=False)
        return str(error.value).splitlines()

    return check


@pytest.mark.parametrize("staged", [True, False])
def test_wrong_weights_patterns_losses_and_metrics_are_found_before_anything_is_submitted(tried, staged):
    """And what works is not named."""
    model = {"model": "shufflenet_v2_x0_5"}
    varied = {"pretrained": ["fits.pt", "other.pt"], "freeze": [["conv1"], ["convl"]], "lr": [0.1, 0.2]}
    of_classes = "tried_code:of_classes"
    lines = tried(
        {
            "weights": {"train": model, "grid": varied},
            "shape": {"train": model | {"loss": "tried_code:per_image"}},
            "mixed": {"train": model | {"loss": of_classes, "augment": {"mixup": 0.2}}},
            "value": {"train": model | {"metrics": ["tried_code:NoValue"]}},
            "works": {"train": model | {"pretrained": "fits.pt", "freeze": ["conv1"], "loss": of_classes}},
            "momentum": {"train": {"optimizer_args": {"nestrov": True}}},
            "schedule": {"train": {"schedule": {"name": "step"}}, "grid": {"schedule.step_size": [0, 1]}},
            "period": {"train": {"schedule": {"name": "step"}}},
            "ratio": {"train": model | {"metrics": ["tried_code:Ratio", "top5_accuracy"]}},
        },
        staged=staged,
    )
    expected = {
        "10 mistakes, found before anything was submitted:": "",
        "sweeps.weights.train with pretrained = 'fits.pt', freeze = ['convl']": "freeze: 'convl' matches no parameter",
        "sweeps.weights.train with pretrained = 'other.pt', freeze = ['conv1']": "other.pt: has none of the names",
        "sweeps.weights.train with pretrained = 'other.pt', freeze = ['convl']": "other.pt: has none of the names",
        "sweeps.shape.train": "it returns the shape (2,)",
        "sweeps.mixed.train": "loss 'tried_code:of_classes'",
        "sweeps.value.train": "metric 'tried_code:NoValue': it computes a NoneType: it must compute a single number",
        "sweeps.momentum.train": "optimizer_args: SGD got an unexpected keyword argument 'nestrov'; known: dampening",
        "sweeps.schedule.train with schedule.step_size = 0": "schedule: integer division or modulo by zero",
        "sweeps.period.train": "schedule: StepLR missing a required argument: 'step_size'",
        "scaling.ranks": "ddp: DistributedDataParallel got an unexpected keyword argument 'find_unused'; "
        "known: timeout_minutes, init_sync, bucket_cap_mb, find_unused_parameters",
    }
    for line, (place, message) in zip(lines, expected.items(), strict=True):
        assert line.strip().startswith(place)
        assert message in line
