"""Every model of torchvision, built for the images of a dataset."""

import pytest
import torch
from torchvision import models as torchvision_models
from trainyard.config.train import Train
from trainyard.training import models as vision
from trainyard.training.models import build_model

# Without memory or computation, on the meta device, where one kind cannot be built: two of those are, below.
BUILT_BY_SHAPE = [name for name in torchvision_models.list_models(module=torchvision_models) if "regnet" not in name]


def build(name, shape, **more):
    return build_model(Train(model=name, **more), shape=shape, classes=7)


@pytest.mark.parametrize("name", BUILT_BY_SHAPE)
@pytest.mark.parametrize("shape", [(64, 64, 3), (28, 28, 1)], ids=["64 RGB", "28 grey"])
def test_every_model_of_torchvision_takes_small_and_grey_images(name, shape):
    """It uses each of its batch-normalization layers once, which `count_batches_together` relies on.

    Those in color have the stem for small images, if there is one: it does not downsample.
    """
    used, sizes, images = [], [], torch.zeros(2, shape[2], *shape[:2], device="meta")
    small_images = shape[2] == 3 and not name.startswith(vision._NO_STEM)
    with torch.device("meta"):
        model = build(name, shape, small_images=small_images)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.forward = torch.nn.Identity().forward  # on the meta device, it takes as long as all other layers
        norm.register_forward_hook(
            lambda norm, inputs, output: used.append(norm) if inputs[0].shape[1] == norm.num_features else None
        )
    second = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)][1:2]
    for convolution in second:
        convolution.register_forward_hook(lambda module, inputs, output: sizes.append(tuple(inputs[0].shape[2:])))
    with torch.no_grad():
        assert model(images).shape == (2, 7)
    assert len(used) == len(norms) == len(set(used))
    assert sizes == [shape[:2]] or not small_images


@pytest.mark.parametrize("name", ["regnet_x_400mf", "regnet_y_400mf"])
def test_models_that_cannot_be_built_by_shape_alone(name):
    assert build(name, (28, 28, 1))(torch.zeros(2, 1, 28, 28)).shape == (2, 7)
