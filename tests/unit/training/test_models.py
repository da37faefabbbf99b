"""Models by name, for images and classes of a dataset."""

import inspect

import pytest
import torch
from torchvision import models as torchvision_models
from trainyard.config.train import OWN_MODEL_ARGS, Train
from trainyard.training.networks import models
from trainyard.training.networks import torchvision_models as vision
from trainyard.training.networks.models import ModelError
from trainyard.utils.errors import UserError


def build(name, shape=(32, 32, 3), classes=7, **more):
    return models.build_model(Train(model=name, **more), shape=shape, classes=classes)


@pytest.mark.parametrize("name", ["resnet", "cnn", "resnet18"])
@pytest.mark.parametrize("channels", [1, 3])
def test_models_map_images_to_classes(name, channels):
    assert build(name, (32, 32, channels))(torch.zeros(2, channels, 32, 32)).shape == (2, 7)


# Without memory or computation, on the meta device, where one kind cannot be built: two of those are, below.
BUILT_BY_SHAPE = [name for name in torchvision_models.list_models(module=torchvision_models) if "regnet" not in name]


@pytest.mark.parametrize("name", BUILT_BY_SHAPE)
@pytest.mark.parametrize("shape", [(64, 64, 3), (28, 28, 1)], ids=["64 RGB", "28 grey"])
def test_every_model_of_torchvision_takes_small_and_grey_images(name, shape):
    """It uses each of its batch-normalization layers once, which `count_batches_together` relies on.

    Those in color have the stem for small images, if there is one: it does not downsample.
    """
    used, sizes = [], []
    small_images = shape[2] == 3 and not name.startswith(vision._NO_STEM)
    with torch.device("meta"):
        model = build(name, shape, small_images=small_images)
        norms = [module for module in model.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
        for norm in norms:
            norm.register_forward_hook(lambda module, inputs, output: used.append(module))
        second = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)][1:2]
        for convolution in second:
            convolution.register_forward_hook(lambda module, inputs, output: sizes.append(tuple(inputs[0].shape[2:])))
        assert model(torch.zeros(2, shape[2], *shape[:2])).shape == (2, 7)
    assert len(used) == len(norms) == len(set(used))
    assert sizes == [shape[:2]] or not small_images


@pytest.mark.parametrize("name", ["regnet_x_400mf", "regnet_y_400mf"])
def test_models_that_cannot_be_built_by_shape_alone(name):
    assert build(name, (28, 28, 1))(torch.zeros(2, 1, 28, 28)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("resnot", {}, "model 'resnot' is not known; did you mean 'resnet'?"),
        ("resnet", {"model_args": {"depth": 3}}, r"cannot be built with {'depth': 3}"),
        ("nowhere.models:build", {}, "cannot be imported: No module named 'nowhere'"),
        ("trainyard.training.networks.models:nothing", {}, "cannot be imported"),
        ("vit_b_16", {"small_images": True}, "no stem to replace"),
    ],
)
def test_a_model_that_cannot_be_built_is_explained(name, more, message):
    with pytest.raises(UserError, match=message.replace("{", r"\{")):
        build(name, **more)


def test_torchvision_models_refuse_images_of_five_channels():
    with pytest.raises(ModelError, match="1 or 3 channels, not 5"):
        build("resnet18", (32, 32, 5))


def test_a_dotted_path_is_called_with_channels_and_classes():
    model = build("trainyard.training.networks.models:SmallConvNet", (8, 8, 1), 2, model_args={"width": 4})
    assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 2)


def test_the_config_knows_the_arguments_of_own_models():
    """It checks them without building the models."""
    given = {name: [*inspect.signature(model).parameters] for name, model in models._OWN.items()}
    assert given == {name: ["channels", "classes", *arguments] for name, arguments in OWN_MODEL_ARGS.items()}
