"""Models by name, for images and classes of a dataset."""

import inspect
import sys

import pytest
import torch
from trainyard.config.train import BUILT_IN_MODEL_ARGS, Train
from trainyard.training import models
from trainyard.training.models import ModelError
from trainyard.utils.errors import UserError


def build(name, shape=(32, 32, 3), classes=7, **more):
    return models.build_model(Train(model=name, **more), shape=shape, classes=classes)


@pytest.mark.parametrize("name", ["resnet", "cnn", "resnet18"])
@pytest.mark.parametrize("channels", [1, 3])
def test_models_map_images_to_classes(name, channels):
    assert build(name, (32, 32, channels))(torch.zeros(2, channels, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("resnot", {}, "model 'resnot' is not known; did you mean 'resnet'?"),
        ("resnet", {"model_args": {"depth": 3}}, r"cannot be built with {'depth': 3}"),
        ("nowhere.models:build", {}, "cannot be imported: No module named 'nowhere'"),
        ("trainyard.training.models:nothing", {}, "cannot be imported"),
        ("vit_b_16", {"small_images": True}, "no stem to replace"),
        ("timm:resnet19", {}, "timm has no model 'resnet19'; did you mean 'resnet1"),
        ("timm:resnet18", {"model_args": {"widht": 3}}, r"cannot be built with {'widht': 3}"),
    ],
)
def test_a_model_that_cannot_be_built_is_explained(name, more, message):
    with torch.device("meta"), pytest.raises(UserError, match=message.replace("{", r"\{")):
        build(name, **more)


@pytest.mark.parametrize("name", ["timm:test_resnet", "timm:test_vit", "timm:test_efficientnet"])
@pytest.mark.parametrize("shape", [(32, 48, 1), (64, 64, 5)])
def test_models_of_timm_take_images_of_any_size(name, shape):
    height, width, channels = shape
    assert build(name, shape)(torch.zeros(2, channels, height, width)).shape == (2, 7)


def test_a_model_of_timm_is_built_from_its_seed_as_by_hand():
    import timm

    torch.manual_seed(0)
    by_hand = timm.create_model("test_resnet", num_classes=7, in_chans=1, drop_rate=0.1)
    torch.manual_seed(0)
    found = build("timm:test_resnet", (32, 32, 1), model_args={"drop_rate": 0.1}).state_dict()
    assert found.keys() == by_hand.state_dict().keys()
    assert all(torch.equal(found[name], value) for name, value in by_hand.state_dict().items())


def test_without_timm_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"model 'timm' cannot be imported.*: run `pip install timm` in the env"):
        build("timm:resnet18")


def test_torchvision_models_refuse_images_of_five_channels():
    with pytest.raises(ModelError, match="1 or 3 channels, not 5"):
        build("resnet18", (32, 32, 5))


def test_a_dotted_path_is_called_with_channels_and_classes():
    model = build("trainyard.training.models:SmallConvNet", (8, 8, 1), 2, model_args={"width": 4})
    assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 2)


def test_the_config_knows_the_arguments_of_own_models():
    """It checks them without building the models."""
    given = {name: [*inspect.signature(model).parameters] for name, model in models.BUILT_IN.items()}
    assert given == {name: ["channels", "classes", *arguments] for name, arguments in BUILT_IN_MODEL_ARGS.items()}
