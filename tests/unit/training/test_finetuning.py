"""Fine-tuning: pretrained weights for other classes, frozen parameters, and learning rates by name."""

import logging

import pytest
import torch
from loops import LEARNER, SPEC, assert_equal_states, changed, start, train
from torch import nn
from torchvision import models as vision
from trainyard.config.train import BUILT_IN_MODELS, Train
from trainyard.config.weights import WeightsError
from trainyard.data import torchvision_weights
from trainyard.training import fine_tuning, models, optimizers
from trainyard.training.checkpoints import CheckpointStore
from trainyard.training.gpu_utilization import count_flops
from trainyard.training.models import AdaptedModel, ModelError
from trainyard.utils.files import file_digest


def build(spec, classes=10, shape=(32, 32, 3)):
    return models.build_model(spec, shape=shape, classes=classes)


def load(spec, classes=10, shape=(32, 32, 3), downloads="nowhere"):
    model = build(spec, classes, shape)
    fine_tuning.load_pretrained(model, spec, classes=classes, downloads=str(downloads))
    return model


@pytest.fixture(scope="module")
def published():
    """The state_dict of a small model of torchvision with 1000 classes."""
    torch.manual_seed(0)
    return vision.shufflenet_v2_x0_5().state_dict()


@pytest.fixture
def weights(published, tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(published, path)
    return path


def spec_of(path, **more):
    return Train(model="shufflenet_v2_x0_5", pretrained=str(path), **more)


# ---- weights


def test_weights_are_loaded_and_the_output_layer_is_new(published, weights, caplog):
    with caplog.at_level(logging.INFO):
        ours = load(spec_of(weights)).state_dict()
    new = ["fc.weight", "fc.bias"]
    assert_equal_states({name: published[name] for name in published if name not in new}, ours)
    assert ours["fc.weight"].shape == (10, 1024)
    (line,) = caplog.messages
    assert f"pretrained {weights} (sha256 {file_digest(weights)[:8]})" in line
    count = len(published)
    assert line.endswith(f"{count - 2} of {count} tensors loaded, new output layer: fc.weight, fc.bias, skipped: none")


def test_an_output_layer_with_as_many_classes_is_loaded_too(published, weights):
    assert_equal_states(published, load(spec_of(weights), classes=1000).state_dict())


def test_a_file_without_an_output_layer_or_with_more_than_the_model_fits(published, tmp_path, caplog):
    path = tmp_path / "backbone.pt"
    backbone = {name: each for name, each in published.items() if not name.startswith("fc.")}
    torch.save(backbone | {"aux.weight": torch.zeros(3)}, path)
    with caplog.at_level(logging.INFO):
        assert_equal_states(backbone, load(spec_of(path)).state_dict())
    assert "new output layer: fc.weight, fc.bias, skipped: aux.weight" in caplog.text


@pytest.mark.parametrize(
    "pack",
    [
        lambda weights: {"model": weights, "epoch": 3},
        lambda weights: {"model": weights, "state": "done", "average": 0.93},
        lambda weights: {"state_dict": {f"module.{name}": each for name, each in weights.items()}},
        lambda weights: {f"_orig_mod.{name}": each for name, each in weights.items()},
        lambda weights: {"spec": {}, "state": {"module": weights, "history": []}},
        lambda weights: {"state": {"module": {name: each + 1 for name, each in weights.items()}, "average": weights}},
    ],
    ids=["torchvision's scripts", "with other entries", "DDP", "compiled", "Trainyard", "with averaged weights"],
)
def test_the_usual_checkpoints_are_read(published, tmp_path, pack):
    torch.save(pack(published), tmp_path / "it.pt")
    assert_equal_states(published, load(spec_of(tmp_path / "it.pt"), classes=1000).state_dict())


class Wrapping(nn.Module):
    """A user's model, all of whose parameters are below a part with the name of a wrapper."""

    def __init__(self, channels, classes):
        super().__init__()
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 16), nn.ReLU(), nn.Linear(16, classes))

    def forward(self, images):
        return self.model(images)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_a_part_of_an_own_model_may_have_the_name_of_a_wrapper(tmp_path, prefix):
    weights, model = Wrapping(3, 7).state_dict(), Wrapping(3, 7)
    torch.save({f"{prefix}{name}": each for name, each in weights.items()}, tmp_path / "it.pt")
    spec = Train(model="test_finetuning:Wrapping", pretrained=str(tmp_path / "it.pt"))
    fine_tuning.load_pretrained(model, spec, classes=7, downloads="")
    assert_equal_states(weights, model.state_dict())


def test_models_adapted_to_the_images_take_the_names_of_torchvision(published, weights):
    model = load(spec_of(weights), classes=1000, shape=(28, 28, 1))
    assert isinstance(model, AdaptedModel)
    assert_equal_states(published, model.model.state_dict())


OLD = """
from torchvision.models import DenseNet, VisionTransformer

def dense(*, channels, classes):
    return DenseNet(growth_rate=4, block_config=(1, 1), num_init_features=8, num_classes=classes)

def transformer(*, channels, classes):
    return VisionTransformer(32, 16, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=classes)
"""


@pytest.mark.parametrize(
    ("name", "new", "old"), [("dense", "norm1.", "norm.1."), ("transformer", "mlp.0.", "mlp.linear_1.")]
)
def test_files_of_torchvision_with_old_names_are_read(tmp_path, monkeypatch, name, new, old):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "old_models.py").write_text(OLD)
    spec = Train(model=f"old_models:{name}", pretrained=str(tmp_path / "it.pt"))
    torch.manual_seed(1)
    weights = build(spec, classes=1000).state_dict()
    names = {each: each.replace(new, old).replace("mlp.3.", "mlp.linear_2.") for each in weights}
    assert any(old in each for each in names.values())
    torch.save({names[each]: weights[each] for each in weights}, tmp_path / "it.pt")
    assert_equal_states(weights, load(spec, classes=1000).state_dict())


def unfitting(tmp_path):
    text, code, empty = (tmp_path / name for name in ("text.pt", "code.pt", "empty.pt"))
    text.write_text("PK weights")
    torch.save({"model": Train()}, code)
    torch.save({"epoch": 3}, empty)
    other, wide = tmp_path / "other.pt", tmp_path / "wide.pt"
    torch.save(torch.nn.Linear(3, 2).state_dict(), other)
    torch.save(vision.shufflenet_v2_x1_0().state_dict(), wide)
    part = vision.shufflenet_v2_x0_5().state_dict()
    part.pop("conv1.0.weight")
    torch.save(part, tmp_path / "part.pt")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.pt", "none.pt: cannot be read"),
        ("text.pt", r"text.pt: is not a file of weights .*: save the model's `state_dict\(\)`"),
        ("code.pt", r"code.pt: is not a file of weights \(it holds a trainyard\..*Train\): .* other Python objects"),
        ("empty.pt", "empty.pt: has no state_dict, neither itself nor in state, average, module"),
        ("other.pt", "other.pt: has none of the names of shufflenet_v2_x0_5: weight, bias, not conv1.0.weight, conv1"),
        ("wide.pt", "wide.pt: does not fit shufflenet_v2_x0_5: size mismatch for conv5.0.weight: copying a param"),
        ("part.pt", "part.pt: does not fit shufflenet_v2_x0_5: it lacks conv1.0.weight of the model"),
    ],
)
def test_an_unfitting_file_is_an_error_of_one_line(tmp_path, name, message):
    unfitting(tmp_path)
    with pytest.raises(WeightsError, match=message) as caught:
        load(spec_of(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_weights_of_a_deeper_model_are_an_error(tmp_path):
    torch.save(vision.resnet34(num_classes=9).state_dict(), tmp_path / "deeper.pt")
    with pytest.raises(WeightsError, match=r"does not fit resnet18: the model has no layer1\.2\.conv1\.weight"):
        load(Train(model="resnet18", pretrained=str(tmp_path / "deeper.pt")))


def test_an_output_layer_of_other_parts_is_replaced(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    theirs = vision.resnet18(num_classes=9)
    theirs.fc = torch.nn.Sequential(torch.nn.Dropout(), theirs.fc)
    torch.save(theirs.state_dict(), tmp_path / "head.pt")
    load(Train(model="resnet18", pretrained=str(tmp_path / "head.pt")))
    assert "new output layer: fc.weight, fc.bias, skipped: fc.1.weight, fc.1.bias" in caplog.text


def test_weights_with_another_stem_name_the_remedy(tmp_path):
    torch.save(vision.resnet18(num_classes=9).state_dict(), tmp_path / "stem.pt")
    with pytest.raises(WeightsError, match="small_images replaces the stem: leave it out"):
        load(Train(model="resnet18", small_images=True, pretrained=str(tmp_path / "stem.pt")))


def test_weights_of_torchvision_are_taken_from_the_folder_of_downloads(published, tmp_path, monkeypatch):
    named = Train(model="shufflenet_v2_x0_5", pretrained="IMAGENET1K_V1")
    folder = torchvision_weights.weights_folder(str(tmp_path))
    folder.mkdir()
    remote = torchvision_weights.remote_weights(named.model, "IMAGENET1K_V1")
    assert (remote.name, remote.checksum) == ("shufflenetv2_x0.5-f707e7126e.pth", "sha256:f707e7126e")
    with pytest.raises(WeightsError, match=r"f707e7126e.pth: no such file: Snakemake's rule `weights` downloads it"):
        load(named, downloads=tmp_path)
    torch.save(published, folder / remote.name)
    with pytest.raises(WeightsError, match=r"its checksum is not sha256:f707e7126e: remove it"):
        load(named, downloads=tmp_path)
    monkeypatch.setattr(fine_tuning, "weights_digest", lambda path: "f707e7126e" + 54 * "0")
    assert_equal_states(published, load(named, classes=1000, downloads=tmp_path).state_dict())


@pytest.mark.parametrize(
    ("model", "weights", "message"),
    [
        ("cnn", "IMAGENET1K_V1", "'cnn' is not a classification model of torchvision: give a file"),
        ("resnet18", "IMAGENET1K_V7", "torchvision has no IMAGENET1K_V7 for resnet18; it has IMAGENET1K_V1, DEFAULT"),
    ],
)
def test_unknown_weights_are_explained(model, weights, message):
    with pytest.raises(WeightsError, match=message):
        torchvision_weights.remote_weights(model, weights)


def test_all_weights_of_torchvision_have_a_checksum():
    for name in vision.list_models(module=vision):
        for weights in vision.get_model_weights(name).__members__:
            assert len(torchvision_weights.remote_weights(name, weights).checksum) >= len("sha256:") + 8


def test_own_models_are_those_of_the_config():
    assert tuple(models.BUILT_IN) == BUILT_IN_MODELS


# ---- training on


def test_a_training_starts_from_another_ones_checkpoint(data, tmp_path):
    _, before = train(changed(SPEC, epochs=1), data, store=CheckpointStore(tmp_path))
    (path,) = tmp_path.glob("*.pt")
    assert_equal_states(before, start(changed(SPEC, pretrained=str(path), seed=5), data).module.state_dict())


def test_frozen_parameters_and_statistics_stay_and_resume_is_exact(data, tmp_path):
    spec = changed(SPEC, freeze=["0", "1", "3.*"], lr_scale={"*": 0.5, "7.*": 1}, epochs=3, decay_all=False)
    first = start(spec, data).module.state_dict()
    first = {name: each.clone() for name, each in first.items()}
    rows, last = train(spec, data)
    kept = {name for name in first if torch.equal(first[name], last[name])}
    assert kept == {name for name in first if name.startswith(("0.", "1.", "3."))}
    store = CheckpointStore(tmp_path)
    train(spec, data, store=store, epochs=2)
    again, resumed = train(spec, data, store=store)
    assert again == rows
    assert_equal_states(resumed, last)


def test_only_what_is_trained_has_gradients_and_state(data):
    training = start(changed(LEARNER, freeze=["0.*", "2.*"], epochs=1), data)
    list(training.epochs())
    trained = {name for name, each in training.module.named_parameters() if each.grad is not None}
    assert trained == {"6.weight", "6.bias", "8.weight", "8.bias"}
    assert len(training.state.optimizer.state) == len(trained)


def test_a_frozen_backward_pass_costs_less():
    spec = {"model": "resnet", "model_args": {"blocks": 2, "width": 4}}
    whole, part = (
        count_flops(Train(**spec, freeze=freeze), shape=(8, 8, 3), classes=10, trains=True)
        for freeze in ([], ["0", "1", "3", "4"])
    )
    assert part < whole / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"freeze": ["conv9*"]}, "freeze: 'conv9.' matches no parameter that is trained; the model has 0, 1, 3, 4, 7"),
        ({"freeze": ["*"]}, "the patterns match all parameters of the model, so nothing is left to train"),
        ({"lr_scale": {"head": 2.0}}, "lr_scale: 'head' matches no parameter"),
        ({"lr_scale": {"3.*": 2.0}, "freeze": ["3"]}, "lr_scale: '3..' matches no parameter that is trained"),
        (
            {"lr_scale": {"3.*": 2.0, "*.c": 1.0, "*n1": 3.0}},
            "'...' matches no|both match 3.norm1.weight and are equally",
        ),
    ],
)
def test_patterns_that_cannot_be_meant_are_errors(data, options, message):
    with pytest.raises(ModelError, match=message):
        start(changed(SPEC, **options), data)


def test_the_longest_pattern_decides_the_learning_rate(data):
    spec = Train(
        lr=0.2, lr_scale={"*": 0.1, "fc.*": 1, "layer4.*": 0.5}, model="resnet18", weight_decay=0.1, decay_all=False
    )
    model = build(spec, shape=(28, 28, 1))
    names = {id(parameter): name for name, parameter in model.model.named_parameters()}
    groups = optimizers.build_optimizer(spec, model).param_groups
    rates = {names[id(each)]: group["lr"] for group in groups for each in group["params"]}
    decays = {names[id(each)]: group["weight_decay"] for group in groups for each in group["params"]}
    assert len(rates) == len(names)
    assert (rates["conv1.weight"], rates["layer4.0.conv1.weight"], rates["fc.bias"]) == pytest.approx((0.02, 0.1, 0.2))
    assert (decays["bn1.weight"], decays["layer4.0.bn1.bias"], decays["fc.weight"]) == (0, 0, 0.1)


def test_the_reported_learning_rate_is_the_one_without_a_factor(data):
    spec = changed(SPEC, lr_scale={"*": 0.5}, schedule={"name": "step", "step_size": 1, "gamma": 0.1}, epochs=2)
    assert [row["lr"] for row in train(spec, data)[0]] == pytest.approx([0.05, 0.005])
