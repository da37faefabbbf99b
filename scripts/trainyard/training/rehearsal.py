"""Try what the config alone decides about a training, before anything is submitted: a program of its own.

It reads a list of rehearsals as JSON from stdin, and writes a JSON object with the errors by place in the config.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainyard.config.train import Train
from trainyard.config.weights import is_published
from trainyard.data.staged import Staged
from trainyard.training.networks import models
from trainyard.training.networks.adapted_model import inner_model
from trainyard.training.networks.freezing import freeze, lr_scales
from trainyard.training.networks.pretrained import load_pretrained
from trainyard.training.objective import Objective
from trainyard.utils.errors import UserError

# In place of those of a dataset that is not staged yet, for models whose parameters have the same names with any data.
_SHAPE, _CLASSES = (64, 64, 3), 7


def rehearse(spec: Train, dataset: Staged) -> None:
    """Try weights from a file, `freeze` and `lr_scale` on the model, and own losses and metrics on a batch of zeros.

    If the dataset is not staged yet, only what does not depend on it. No parameter takes memory, except in a model of
    a user that cannot be built without.

    Raises:
        UserError: the training would fail with this error before its first step.
    """
    is_staged = (dataset.folder / "meta.json").exists()
    if not is_staged and not models.is_known(spec.model):
        return
    meta: dict[str, Any] = dataset.meta if is_staged else {"shape": _SHAPE, "classes": range(_CLASSES), "source": {}}
    height, width, channels = meta["shape"]
    classes = len(meta["classes"])
    if spec.pretrained or spec.freeze or spec.lr_scale:
        model = _build(spec, (height, width, channels), classes)
        if spec.pretrained and not is_published(spec.pretrained):  # published ones are downloaded later
            load_pretrained(model, spec, classes=classes, downloads="")
        freeze(model, spec.freeze)
        names = [name for name, each in inner_model(model).named_parameters() if each.requires_grad]
        lr_scales(names, spec.lr_scale)
    if is_staged:
        numeric = bool(meta["source"].get("targets"))
        Objective(spec, torch.device("cpu"), classes=classes, numeric=numeric)


def _build(spec: Train, shape: tuple[int, int, int], classes: int) -> nn.Module:
    try:
        with torch.device("meta"):
            return models.build_model(spec, shape=shape, classes=classes)
    except Exception:  # code of a user may compute with its parameters, or the model is wrong
        return models.build_model(spec, shape=shape, classes=classes)


def _error(spec: dict[str, Any], dataset: str) -> str | None:
    try:
        rehearse(Train.model_validate(spec), Staged(Path(dataset)))
    except UserError as error:
        return str(error)
    except Exception as error:  # of a user's code
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    """Run the rehearsals of stdin."""
    warnings.simplefilter("ignore")  # weights that are loaded into parameters without memory
    found = {place: _error(spec, dataset) for place, spec, dataset in json.load(sys.stdin)}
    print("\n" + json.dumps({place: error for place, error in found.items() if error}))


if __name__ == "__main__":
    main()
