"""Losses and metrics: the config's own, a user's, and those of labels that are numbers."""

import itertools
import logging
import sys
from dataclasses import replace

import pytest
import torch
from loops import LEARNER, SPEC, assert_equal_states, changed, load_images, start, stop_within_second_epoch, train
from trainyard.cluster.stop_request import StopRequest
from trainyard.config.datasets import Digits, Python
from trainyard.data.staged import DataError
from trainyard.data.staging import stage
from trainyard.training.checkpoints import CheckpointStore
from trainyard.training.loaders import load_input_data
from trainyard.training.loss_and_metrics import ObjectiveError
from trainyard.training.process_group import Group
from trainyard.training.sampler import batch_sizes
from trainyard.training.summary import write_results
from trainyard.training.trainer import Trainer, TrainingInterrupted
from trainyard.training.untimed_steps import warm_up
from trainyard.utils.errors import UserError

OWN = """
import json
import math
import sys
import torch
import torchmetrics
from torch.nn.functional import cross_entropy

def weighted(outputs, targets, weight):
    return weight * cross_entropy(outputs, targets)

def of_classes(outputs, targets):
    return -outputs.log_softmax(1)[range(len(targets)), targets].mean()

def hit(outputs, targets):
    return outputs.argmax(1) == targets

class MacroRecall(torchmetrics.Metric):
    def __init__(self):
        super().__init__()
        self.add_state("hits", torch.zeros(10), dist_reduce_fx="sum")
        self.add_state("images", torch.zeros(10), dist_reduce_fx="sum")

    def update(self, outputs, targets):
        self.hits.index_add_(0, targets, (outputs.argmax(1) == targets).float())
        self.images.index_add_(0, targets, torch.ones(len(targets)))

    def compute(self):
        return (self.hits / self.images)[self.images > 0].mean()

def batch_mean(outputs, targets):
    return hit(outputs, targets).float().mean()

def per_image(outputs, targets):
    return cross_entropy(outputs, targets, reduction="none")

def constant(outputs, targets):
    return torch.ones(())

class Smoothed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.ones(()))

    def forward(self, outputs, targets):
        loss = cross_entropy(outputs, targets)
        self.average.lerp_(loss.detach(), 0.1)
        return loss / self.average

class Replaced(Smoothed):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", None)

    def forward(self, outputs, targets):
        self.average = 0.9 * self.average + 0.1 * cross_entropy(outputs, targets).detach()
        self.steps = torch.ones(1) if self.steps is None else self.steps + 1
        return cross_entropy(outputs, targets) / self.average / self.steps.sqrt().squeeze()

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, outputs, targets):
        return cross_entropy(self.scale * outputs, targets)

def broken(outputs, targets):
    raise RuntimeError("no kernel for that")

def of_real_images(outputs, targets):
    if targets.any():
        raise IndexError("no such class")
    return targets

class PlainNumber(MacroRecall):
    def compute(self):
        return float(super().compute())

class NoValue(MacroRecall):
    def compute(self):
        return None

def library(outputs, targets):
    return json.loads("{")

def a_float(outputs, targets):
    return 0.5

def none_of_a_class(outputs, targets):
    if targets.any():
        raise IndexError("no such class\\nand more")
    return cross_entropy(outputs, targets)

def ends(outputs, targets):
    assert not targets.any()
    return cross_entropy(outputs, targets)

def quits(outputs, targets):
    if targets.any():
        sys.exit(3)
    return cross_entropy(outputs, targets, reduction="none")

def per_image_later(outputs, targets):
    return cross_entropy(outputs, targets, reduction="none" if targets.any() else "mean")

class Halves(torch.utils.data.Dataset):
    # The targets are the brightness of the top and of the bottom of an image, as numbers or as yes and no.
    def __init__(self, count, kind):
        generator = torch.Generator().manual_seed(count)
        levels = torch.randint(256, (count, 2), generator=generator, dtype=torch.uint8)
        self.images = levels.repeat_interleave(4, dim=1).view(count, 8, 1, 1).expand(count, 8, 8, 3)
        self.labels = levels / 256 if kind == "regression" else levels > 127

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index].numpy(), self.labels[index]

def build(kind):
    return Halves(64, kind), Halves(24, kind)

def absolute_error(outputs, targets):
    return (outputs - targets).abs().mean(1)

def all_right(outputs, targets):
    return ((outputs > 0) == (targets > 0.5)).all(1)
"""


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    """The user's module `own_objective`."""
    (tmp_path / "own_objective.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def test_an_own_loss_of_the_same_formula_gives_the_same_numbers(data, own_code):
    whole, _ = train(SPEC, data)
    assert train(changed(SPEC, loss="torch.nn:CrossEntropyLoss"), data)[0] == whole
    args = {"loss": "own_objective:weighted", "loss_args": {"weight": 1}}
    assert train(changed(SPEC, **args), data)[0] == whole
    assert train(changed(SPEC, **args | {"loss_args": {"weight": 2}}), data)[0] != whole


@pytest.mark.parametrize("name", ["Smoothed", "Replaced"])
def test_the_buffers_of_an_own_loss_are_in_its_checkpoint(data, own_code, tmp_path, name):
    """Also those of a checkpoint within an epoch; trying the loss beforehand does not change them."""
    spec = changed(SPEC, loss=f"own_objective:{name}")
    own = start(spec, data).objective.loss_module
    assert own.average == 1
    assert getattr(own, "steps", None) is None
    whole, _ = train(spec, data)
    stop_within_second_epoch(start(spec, data, store=CheckpointStore(tmp_path)))
    assert train(spec, data, store=CheckpointStore(tmp_path))[0] == whole
    train(spec, data, epochs=2, store=CheckpointStore(tmp_path / "whole epochs"))
    assert train(spec, data, store=CheckpointStore(tmp_path / "whole epochs"))[0] == whole


@pytest.mark.parametrize("name", ["Smoothed", "Replaced"])
def test_validation_images_do_not_change_the_buffers_of_an_own_loss(data, own_code, tmp_path, name):
    """Nor does a stop among them."""
    spec = changed(SPEC, loss=f"own_objective:{name}", epochs=2)
    whole, _ = train(spec, data)
    others, _ = train(spec, replace(data, val=data.train))
    assert [row["train_loss"] for row in others] == [row["train_loss"] for row in whole]
    stop_request, store = StopRequest(), CheckpointStore(tmp_path)
    training = start(spec, data, store=store, stop_request=stop_request)
    training.module.register_forward_hook(lambda module, *_: None if module.training else stop_request.make())
    with pytest.raises(TrainingInterrupted, match="in epoch 1 of 2, after step 4 of 4"):
        list(training.epochs())
    assert train(spec, data, store=store)[0] == whole


def test_metrics_change_nothing_but_add_columns(data, own_code):
    metrics = {"hits": "own_objective:hit", "top5": "top5_accuracy", "macro": "own_objective:MacroRecall"}
    metrics["plain"] = "own_objective:PlainNumber"
    rows, state = train(changed(LEARNER, metrics=metrics), data)
    plain, plain_state = train(LEARNER, data)
    own = [{name: row.pop(f"val_{name}") for name in metrics} for row in rows]
    assert rows == plain
    assert all(torch.equal(state[name], plain_state[name]) for name in state)
    assert [row["hits"] for row in own] == [row["val_accuracy"] for row in plain]
    assert all(row["top5"] >= row["hits"] for row in own)
    assert 0.8 < own[-1]["macro"] < own[-1]["top5"]
    assert [row["plain"] for row in own] == [row["macro"] for row in own]


def test_a_top5_accuracy_is_that_of_sorted_outputs(data):
    training = start(changed(LEARNER, metrics=["top5_accuracy"], epochs=1), data)
    (row,) = training.epochs()
    images = next(data.val.batches([torch.arange(len(data.val))]))
    outputs = training.module(data.normalize(images.pixels, channels_last=False))
    ranks = outputs.argsort(1, descending=True).argsort(1)[torch.arange(len(outputs)), images.labels]
    assert row.metrics["val_top5_accuracy"] == (ranks < 5).double().mean()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": "own_objective:per_image"}, r"loss 'own_objective:per_image': it returns the shape \(2,\): return"),
        ({"loss": "own_objective:constant"}, "it has no gradient"),
        ({"loss": "own_objective:Scaled"}, "it has parameters, which are not trained"),
        ({"loss": "own_objective:broken"}, "RuntimeError: no kernel for that"),
        ({"loss": "own_objective:weighted"}, "missing 1 required positional argument: 'weight'"),
        ({"loss": "torch.nn:CrossEntropyLoss", "loss_args": {"gamma": 1}}, "unexpected keyword argument 'gamma'"),
        ({"loss": "own_objective:of_classes", "augment": {"mixup": 0.2}}, "of_classes': IndexError"),
        ({"metrics": ["own_objective:batch_mean"]}, r"metric 'own_objective:batch_mean': .* one value per image"),
        (
            {"metrics": ["own_objective:broken"]},
            r"metric 'own_objective:broken': RuntimeError: no kernel for that \(.*own_objective.py, line \d+\)",
        ),
        ({"metrics": ["own_objective:NoValue"]}, "it computes a NoneType: it must compute a single number"),
        ({"metrics": ["own_objective:library"]}, r"JSONDecodeError: .* \(.*own_objective.py, line \d+\)"),
        ({"metrics": ["own_objective:a_float"]}, "it returns a float for 2 images: return a tensor with one value"),
    ],
)
def test_an_own_loss_or_metric_that_does_not_fit_is_named_before_the_training(data, own_code, values, message):
    with pytest.raises(ObjectiveError, match=message):
        start(changed(SPEC, **values), data)


def test_a_metric_that_fails_in_validation_is_named(data, own_code):
    training = start(changed(SPEC, metrics=["own_objective:of_real_images"]), data)
    with pytest.raises(ObjectiveError, match=r"metric 'own_objective:of_real_images': IndexError: .* line \d+\)"):
        list(training.epochs())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"loss": "own_objective:none_of_a_class"},
            r"loss '.*': IndexError: no such class \(.*own_objective.py, line \d+\)$",
        ),
        ({"loss": "own_objective:ends"}, r"loss '.*': AssertionError \(.*own_objective.py, line \d+\)$"),
        (
            {"metrics": ["own_objective:quits"]},
            r"metric '.*': it calls sys.exit\(3\) \(.*own_objective.py, line \d+\)$",
        ),
        ({"loss": "own_objective:per_image_later"}, r"loss '.*': it returns the shape \(16,\): return the mean"),
    ],
)
def test_own_code_that_fails_for_real_images_is_one_line_with_its_place(data, own_code, values, message):
    training = start(changed(SPEC, **values), data)
    with pytest.raises(ObjectiveError, match=message) as caught:
        list(training.epochs())
    assert "\n" not in str(caught.value)


TORCHMETRICS = {
    "f1": ("torchmetrics.classification:MulticlassF1Score", {"average": "macro"}),
    "kappa": ("torchmetrics:CohenKappa", {"task": "multiclass"}),
    "auroc": ("torchmetrics.classification:MulticlassAUROC", {"thresholds": 50}),
    "exact": ("torchmetrics.classification:MulticlassAUROC", {}),
    "calibration": ("torchmetrics.classification:MulticlassPrecision", {}),
}


def test_metrics_of_torchmetrics_are_those_of_all_images_at_once(data):
    import torchmetrics
    from torchmetrics import classification

    paths = {name: path for name, (path, _) in TORCHMETRICS.items()}
    arguments = {name: given for name, (_, given) in TORCHMETRICS.items() if given}
    training = start(changed(LEARNER, epochs=2, metrics=paths, metric_args=arguments), data)
    *_, row = training.epochs()
    (images,) = data.val.batches([torch.arange(len(data.val))])
    with torch.no_grad():
        outputs = training.module.eval()(data.normalize(images.pixels, channels_last=False))
    by_hand = {
        "f1": classification.MulticlassF1Score(10, average="macro"),
        "kappa": torchmetrics.CohenKappa(task="multiclass", num_classes=10),
        "auroc": classification.MulticlassAUROC(10, thresholds=50),
        "exact": classification.MulticlassAUROC(10),
        "calibration": classification.MulticlassPrecision(10),
    }
    assert row.metrics == {
        f"val_{name}": pytest.approx(float(metric(outputs, images.labels)), abs=1e-6)
        for name, metric in by_hand.items()
    }
    assert training.batch.micro < len(data.val), "of several batches"


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("torchmetrics.classification:MulticlassRecall", {"average": None}, "it has 10 values: give it an `average`"),
        ("torchmetrics.classification:MulticlassRecall", {"averag": "macro"}, "averag"),
        ("torch.nn.functional:cross_entropy", {"weight": 2}, "it is no class, so metric_args have no place"),
    ],
)
def test_a_metric_of_torchmetrics_that_does_not_fit_is_explained(data, path, arguments, message):
    with pytest.raises(ObjectiveError, match=message):
        start(changed(LEARNER, metrics={"m": path}, metric_args={"m": arguments}), data)


def test_a_metric_of_torchmetrics_needs_validation_images_on_each_rank(data):
    """A rank without images has no state, and torchmetrics could not combine those of the others."""
    few = replace(data, val=range(3))
    spec = changed(LEARNER, metrics={"auroc": "torchmetrics.classification:MulticlassAUROC"})
    with pytest.raises(ObjectiveError, match="metrics of torchmetrics need validation images on each of the 4 ranks"):
        Trainer(spec, few, Group(3, 3, 4, torch.device("cpu")), batch=batch_sizes(spec, world_size=4))


def test_without_torchmetrics_the_error_says_how_to_get_it(data, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchmetrics"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(UserError, match=r"cannot be imported.*: run `pip install torchmetrics` in the env"):
        start(changed(LEARNER, metrics=["torchmetrics.classification:MulticlassRecall"]), data)


def test_own_code_that_draws_random_numbers_does_not_change_the_initial_weights(data, tmp_path, monkeypatch):
    (tmp_path / "drawing.py").write_text("import torch\ndef noise(outputs, targets): return torch.rand(len(targets))")
    monkeypatch.syspath_prepend(tmp_path)
    one, other = start(SPEC, data), start(changed(SPEC, metrics=["drawing:noise"]), data)
    assert all(torch.equal(*pair) for pair in zip(one.module.parameters(), other.module.parameters(), strict=True))


# ---- labels that are numbers


def numeric_data(tmp_path, kind, targets=("top", "bottom")):
    section = {"source": "python", "factory": "own_objective:build", "args": {"kind": kind}, "on_the_fly": True}
    staged = stage(Python(**section, targets=list(targets)), tmp_path / "staged")
    return load_input_data(staged, torch.device("cpu"))


def test_regression_and_multi_label_learn_and_are_judged_by_their_own_metric(tmp_path, own_code):
    cases = {
        "regression": ("torch.nn.functional:mse_loss", "absolute_error", "min"),
        "multi-label": ("torch.nn:BCEWithLogitsLoss", "all_right", "max"),
    }
    for kind, (loss, metric, mode) in cases.items():
        numeric = numeric_data(tmp_path / kind, kind)
        values = {"loss": loss, "metrics": [f"own_objective:{metric}"], "metric": f"val_{metric}"}
        values |= {"augment": {"mixup": 0.1}}
        training = start(changed(LEARNER, **values), numeric)
        warm_up(training)
        rows = list(training.epochs())
        found = [row.metrics[f"val_{metric}"] for row in rows]
        best = min(found) if mode == "min" else max(found)
        assert training.state.best_epoch == found.index(best) + 1
        assert (best < found[0]) if mode == "min" else (best > found[0]), found
        assert rows[-1].val_loss < rows[0].val_loss
        assert rows[-1].val_accuracy is None


def test_labels_with_other_numbers_than_the_config_names_are_found_when_staging(tmp_path, own_code):
    with pytest.raises(DataError, match=r"the label of image 0 is .*, but `targets` names 1, which must be finite"):
        numeric_data(tmp_path, "regression", targets=["top"])


def test_a_top5_accuracy_of_numbers_is_an_error(tmp_path, own_code):
    spec = changed(LEARNER, loss="torch.nn.functional:mse_loss", metrics=["top5_accuracy"])
    with pytest.raises(ObjectiveError, match="it is for classes, but the labels of the dataset are numbers"):
        start(spec, numeric_data(tmp_path, "regression"))


def test_outputs_that_do_not_match_the_numbers_of_a_label_are_an_error(tmp_path, own_code):
    """A loss would broadcast them, and learn something else."""
    numeric = numeric_data(tmp_path, "regression")
    (tmp_path / "flat.py").write_text(
        "import torch\ndef build(*, channels, classes): return torch.nn.Sequential(torch.nn.Flatten(), "
        "torch.nn.Linear(64 * channels, 1))"
    )
    spec = changed(LEARNER, model="flat:build", model_args=None, loss="torch.nn.functional:mse_loss")
    with pytest.raises(ObjectiveError, match=r"outputs of the shape \(16, 1\), but the labels have \(16, 2\)"):
        next(start(spec, numeric).epochs())


# ---- the average of the weights


def test_the_averaged_weights_follow_the_weights_and_are_validated(data):
    training = start(changed(SPEC, ema_decay=0.3, epochs=2), data)
    ramp = (number / (number + 9) for number in itertools.count(1))  # 0.1, 0.18, 0.25, 0.31, ...
    weights = training.module.state_dict()
    expected = {name: value.clone() for name, value in weights.items()}
    take_step = training.state.schedule.step

    def step():
        take_step()
        decay = min(0.3, next(ramp))
        for name, value in expected.items():
            value.copy_(decay * value + (1 - decay) * weights[name] if value.is_floating_point() else weights[name])

    training.state.schedule.step = step
    rows = list(training.epochs())
    averaged = training.state.average.module.state_dict()
    assert averaged.keys() == expected.keys()
    assert all(torch.allclose(value, expected[name], atol=1e-6) for name, value in averaged.items())
    plain, _ = train(changed(SPEC, epochs=2), data)
    assert [row.train_loss for row in rows] == [row["train_loss"] for row in plain]
    assert rows[-1].val_loss != plain[-1]["val_loss"]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return load_images(stage(Digits(source="digits"), tmp_path_factory.mktemp("digits")))


AVERAGED = changed(LEARNER, batch_size=256, epochs=8, ema_decay=0.999)  # 40 steps, far fewer than its decay averages


def test_a_short_training_with_averaged_weights_learns_as_one_without(digits):
    """From the initial weights on, the average would keep 96 % of them after 40 steps, with an accuracy of a tenth."""
    averaged, plain = (start(spec, digits) for spec in (AVERAGED, changed(AVERAGED, ema_decay=None)))
    accuracies = [[row.val_accuracy for row in training.epochs()] for training in (averaged, plain)]
    assert accuracies[0][-1] > 0.6
    assert accuracies[0][-1] > accuracies[1][-1] - 0.1
    assert averaged.state.best_epoch >= 6


def test_patience_does_not_end_a_training_because_its_weights_are_averaged(digits):
    assert len(list(start(changed(AVERAGED, patience=2), digits).epochs())) == AVERAGED.epochs


class Broadcasting(Group):
    def wrap(self, model, **options):
        """As DDP: sets the weights to those of rank 0."""
        for parameter in model.parameters():
            parameter.data.fill_(0.5)
        return model


def test_the_average_begins_with_the_weights_of_rank_0(data):
    """A user's model may begin with others on each rank."""
    group = Broadcasting(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"))
    training = Trainer(changed(SPEC, ema_decay=0.9), data, group, batch=batch_sizes(SPEC))
    assert all((parameter == 0.5).all() for parameter in training.state.average.module.parameters())


MASKED = """
import torch
from trainyard.training.models import SmallConvNet

class Masked(SmallConvNet):
    def __init__(self, **options):
        super().__init__(**options)
        self.register_buffer("mask", torch.tensor([0.0] * 9 + [float("-inf")]))
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, images):
        if self.training:
            self.passes = self.passes + 1
        return super().forward(images) + self.mask.clamp(min=-9)

def build(*, channels, classes):
    return Masked(channels=channels, classes=classes, width=4)
"""


def test_the_averaged_model_has_the_other_buffers_of_the_model(data, tmp_path, monkeypatch):
    """The average of two infinite numbers would be NaN."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "masked_model.py").write_text(MASKED)
    training = start(changed(LEARNER, model="masked_model:build", model_args=None, ema_decay=0.9, epochs=1), data)
    list(training.epochs())
    averaged = training.state.average.module
    assert averaged.mask.tolist() == [0.0] * 9 + [float("-inf")]
    assert averaged.passes == training.module.passes == training.steps


def test_averaged_weights_are_resumed_bit_identically(data, tmp_path):
    spec = changed(SPEC, ema_decay=0.9, epochs=3)
    whole = start(spec, data)
    rows = list(whole.epochs())
    store = CheckpointStore(tmp_path)
    stop_within_second_epoch(start(spec, data, store=store))
    resumed = start(spec, data, store=store)
    assert resumed.state.progress.step == 1
    list(resumed.epochs())
    assert [row.val_loss for row in resumed.history] == [row.val_loss for row in rows]
    for mine, other in ((resumed.module, whole.module), (resumed.state.average.module, whole.state.average.module)):
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in mine.state_dict().items())


SCALED_LATER = """
import torch

class Block(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.convolution = torch.nn.Conv2d(channels, 3, 3, padding=1)
        self.register_buffer("scale", None)
        self.register_buffer("shift", None, persistent=False)

    def forward(self, images):
        images = self.convolution(images)
        if self.scale is None:
            self.scale = images.detach().std()
        if self.shift is None:
            self.shift = self.scale / 2
        return (images / self.scale - self.shift).relu()

def build(*, channels, classes):
    return torch.nn.Sequential(Block(channels), Block(3), torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, classes))
"""


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("values", [{}, {"ema_decay": 0.9}])
def test_buffers_that_the_first_steps_make_are_averaged_and_resumed(data, tmp_path, monkeypatch, recomputes, values):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "scaled_later.py").write_text(SCALED_LATER)
    spec = changed(SPEC, model="scaled_later:build", model_args=None, activation_checkpointing=recomputes, **values)
    whole, weights = train(spec, data)
    within, between = (CheckpointStore(tmp_path / name) for name in ("within an epoch", "between two"))
    stop_within_second_epoch(start(spec, data, store=within))
    train(spec, data, store=between, epochs=1)
    for store in (within, between):
        resumed, same = train(spec, data, store=store)
        assert resumed == whole
        assert_equal_states(same, weights)


# ---- patience


def test_a_training_ends_when_its_metric_does_not_improve(data, tmp_path, caplog):
    """The learning rate is so low that no weight changes: the first epoch stays the best."""
    spec = changed(LEARNER, lr=1e-30, metric="val_loss", patience=2)
    store = CheckpointStore(tmp_path)
    training = start(spec, data, store=store)
    assert [row.epoch for row in training.epochs()] == [1, 2, 3]
    assert (training.state.best_epoch, training.is_complete) == (1, True)
    again = start(spec, data, store=store)
    assert again.is_complete
    assert list(again.epochs()) == []
    caplog.set_level(logging.INFO)
    write_results(again, None, tmp_path, scale="1x1")
    assert f"patience, {spec.epochs - 3} epochs early: the best val_loss was in epoch 1" in caplog.messages[-1]


def test_a_training_that_improves_is_not_ended(data):
    rows, _ = train(changed(LEARNER, metric="train_loss", patience=1), data)
    assert len(rows) == LEARNER.epochs
