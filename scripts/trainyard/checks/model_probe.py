"""Try what the config decides about trainings: models, weights, optimizers, losses and metrics, on a batch of zeros."""

import signal
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from trainyard.checks.findings import Finding, Verdict
from trainyard.config.train import Train
from trainyard.config.weights import WeightsError, is_published
from trainyard.data.known_images import KnownImages, Shape
from trainyard.data.torchvision_weights import remote_weights
from trainyard.training import models
from trainyard.training.fine_tuning import freeze, load_pretrained, lr_scales
from trainyard.training.loss_and_metrics import Objective, naming
from trainyard.training.models import inner_model
from trainyard.training.optimizers import try_arguments
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import USER_CODE_ERRORS, check_call, error_line, import_object

SECONDS: Final = 60  # for one training
TOTAL_SECONDS: Final = 300  # after which no further training is tried
MOST_PARAMETERS: Final = 100_000_000  # of a model that is built on the CPU
_IMAGES: Final = 2  # of the batch
# Used while a dataset is not staged, for models whose parameters have the same names with any data.
_SHAPE: Final[Shape] = (64, 64, 3)
_OUTPUTS: Final = 7


def probe_trainings(trainings: Iterable[tuple[str, Train, KnownImages]]) -> Iterator[Finding]:
    """The findings of each training, with its place in the config."""
    warnings.simplefilter("ignore")  # weights that are loaded into parameters without memory
    signal.signal(signal.SIGALRM, _give_up)
    end = time.monotonic() + TOTAL_SECONDS
    for place, spec, images in trainings:
        if time.monotonic() > end:
            message = f"model {spec.model!r} is not tried: the previous ones took {TOTAL_SECONDS} s"
            yield Finding(place, "unknown", message)
            continue
        signal.alarm(SECONDS)
        try:
            yield from (Finding(place, *each) for each in probe_training(spec, images))
        except UserError as error:
            yield Finding(place, "fails", str(error))
        except _TooLongError:
            message = f"model {spec.model!r} is tried only in part: it takes more than {SECONDS} s"
            yield Finding(place, "unknown", message)
        except USER_CODE_ERRORS as error:  # of a user's code
            yield Finding(place, "fails", error_line(error))
        finally:
            signal.alarm(0)


class _TooLongError(BaseException):
    """A training is not tried any longer; a user's `except Exception` does not catch it."""


def _give_up(number: int, frame: object) -> None:
    raise _TooLongError


def probe_training(spec: Train, images: KnownImages) -> Iterator[tuple[Verdict, str]]:
    """Try a training on what is known of its images; yields verdicts, with what was tried or why it could not be.

    The optimizer and the schedule are built. The model is built without memory for its parameters, unless it is a
    user's that needs them. Weights from a file are loaded, the patterns of `freeze` and `lr_scale` are matched, a model
    of a user's or of timm computes outputs of a batch, and own losses and metrics are computed from them.

    Raises:
        UserError: the training would fail with this error before its first step.
    """
    try_arguments(spec)
    has_images = images.shape is not None and images.outputs is not None
    if has_images or models.is_known(spec.model):
        try:
            yield "ok", _try_model(spec, images)
        except WeightsError as error:
            if images.shape is not None or "size mismatch" not in str(error):
                raise
            yield "unknown", f"whether they fit is known once the images are staged: {error}"
    else:
        model = import_object(spec.model, role="model")
        given = {"channels": _SHAPE[2], "classes": _OUTPUTS, **spec.model_args}
        check_call(model, spec.model, role="model", args=[], kwargs=given)
        yield "unknown", f"model {spec.model!r} can be built once the images are staged"
    if spec.has_user_loss or spec.metrics:
        named = ", ".join(filter(None, [spec.loss if spec.has_user_loss else "", *spec.metrics]))
        if images.outputs is None:
            yield "unknown", f"{named}: the number of classes is known once the images are staged"
        else:
            Objective(spec, torch.device("cpu"), classes=images.outputs, numeric=images.numeric)
            yield "ok", f"{named}: computed for {_IMAGES} images of {images.outputs} outputs"


def _try_model(spec: Train, images: KnownImages) -> str:
    """Build the model and try what depends on it; returns what was built."""
    shape = images.shape or _SHAPE
    outputs = images.outputs or _OUTPUTS
    model = _build(spec, shape, outputs)
    if not isinstance(model, nn.Module):
        raise UserError(f"model {spec.model!r} is a {type(model).__name__}: return a torch.nn.Module")
    if spec.pretrained and is_published(spec.pretrained):
        remote_weights(spec.model, spec.pretrained)  # they are downloaded later
    elif spec.pretrained:
        load_pretrained(model, spec, classes=outputs, downloads="")
    freeze(model, spec.freeze)
    names = [name for name, each in inner_model(model).named_parameters() if each.requires_grad]
    lr_scales(names, spec.lr_scale)
    if ":" in spec.model and images.shape and images.outputs:
        _try_outputs(spec, model, images)
    size = _size(model) / 1e6
    known = f" for images of {'x'.join(map(str, images.shape))}" if images.shape else ""
    return f"{spec.model} is built{known}: {size:,.2f} million parameters"


def _build(spec: Train, shape: Shape, outputs: int) -> nn.Module:
    # Code of a user may compute with its parameters, or the model is wrong.
    with suppress(*USER_CODE_ERRORS), torch.device("meta"):
        return models.build_model(spec, shape=shape, classes=outputs)
    try:
        return models.build_model(spec, shape=shape, classes=outputs)
    except UserError:
        raise
    except USER_CODE_ERRORS:
        with naming("model", spec.model):
            raise


def _try_outputs(spec: Train, model: nn.Module, images: KnownImages) -> None:
    """Compute the outputs of a user's model for a batch of zeros, and check their shape."""
    assert images.shape is not None
    assert images.outputs is not None
    try:
        outputs = _outputs(model, images.shape)
    except USER_CODE_ERRORS:  # it may compute with values that only a model with memory has
        if _size(model) > MOST_PARAMETERS:
            return
        model = models.build_model(spec, shape=images.shape, classes=images.outputs)
        with naming("model", spec.model):
            outputs = _outputs(model, images.shape)
    returned = f"model {spec.model!r} returns"
    if not isinstance(outputs, Tensor):
        raise UserError(f"{returned} {type(outputs).__name__}: return a tensor, one row of outputs per image")
    returned_shape = tuple(outputs.shape)
    wanted = (_IMAGES, images.outputs)
    # Embeddings for an own loss may have any width, and a head more outputs than there are classes.
    is_matrix = len(returned_shape) == 2 and returned_shape[0] == _IMAGES and not images.numeric
    fits = returned_shape == wanted or (is_matrix and (returned_shape[1] > wanted[1] or spec.has_user_loss))
    if not fits:
        what = "labels have" if images.numeric else "classes need"
        raise UserError(
            f"{returned} the shape {returned_shape} for {_IMAGES} images, but the dataset's {what} {wanted}"
        )


def _size(model: nn.Module) -> int:
    """Parameters whose shape is known."""
    return sum(each.numel() for each in model.parameters() if not is_lazy(each))


def _outputs(model: nn.Module, shape: Shape) -> Any:
    """The outputs of a batch of zeros, without gradients and in eval mode."""
    height, width, channels = shape
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    with torch.no_grad():
        return model.eval()(torch.zeros(_IMAGES, channels, height, width, device=device))
