"""Pretrained weights: a file, or weights that torchvision publishes, loaded into a model with other classes."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from trainyard.config.train import Train
from trainyard.config.weights import WeightsError, is_published
from trainyard.data.downloads import has_checksum
from trainyard.data.torchvision_weights import remote_weights, weights_folder
from trainyard.training.adapted_model import inner_model
from trainyard.utils.files import expand_path, file_digest

# Where training scripts keep the state_dict in their checkpoints; Trainyard's own: `state`, then `module`.
ENTRIES: Final = ("state", "module", "state_dict", "model_state_dict", "model")
PREFIXES: Final = ("module.", "_orig_mod.", "model.")  # of DDP, of torch.compile, and of our adapted models
NAMED: Final = 3  # tensors in a message
log = logging.getLogger(__name__)


def load_pretrained(model: nn.Module, spec: Train, *, classes: int, downloads: str) -> None:
    """Load `spec.pretrained`, if given, into a model with `classes` outputs, and log what was loaded.

    The output layer keeps its initial values if the file has another number of classes, or none. Names that the model
    does not have are skipped.

    Raises:
        WeightsError: the file cannot be read, or does not fit the model.
    """
    if spec.pretrained is None:
        return
    path = weights_file(spec, downloads)
    theirs, inner = _read_state_dict(path), inner_model(model)
    ours = inner.state_dict()
    skipped = [name for name in theirs if name not in ours]
    replaced = [name for name in theirs if name in ours and theirs[name].shape != ours[name].shape]
    missing = [name for name in ours if name not in theirs and not name.endswith("num_batches_tracked")]
    if len(skipped) == len(theirs):
        examples = f"it has {_listed(skipped)}, the model has {_listed(list(ours))}"
        raise WeightsError(f"{path}: no name in it is one of {spec.model}'s: {examples}")
    unfitting = [name for name in replaced if not _is_output(ours[name], classes, theirs[name])]
    if unfitting:
        shapes = f"{tuple(theirs[unfitting[0]].shape)} in the file and {tuple(ours[unfitting[0]].shape)} in the model"
        raise WeightsError(f"{path}: does not fit {spec.model}: {unfitting[0]} is {shapes}")
    if absent := [name for name in missing if not _is_output(ours[name], classes)]:
        raise WeightsError(f"{path}: does not fit {spec.model}: {_listed(absent)} of the model not in it")
    for name in (*skipped, *replaced):
        del theirs[name]
    inner.load_state_dict(theirs, strict=False)
    counts = f"{len(theirs)} of {len(ours)} tensors loaded, new output layer: {_listed([*replaced, *missing])}"
    log.info("pretrained %s (sha256 %s): %s, skipped: %s", path, file_digest(path)[:8], counts, _listed(skipped))


def _is_output(ours: Tensor, classes: int, theirs: Tensor | None = None) -> bool:
    """Whether a tensor of the model has a row per class, and the one of the file differs in the number of rows only."""
    return ours.shape[:1] == (classes,) and (theirs is None or theirs.shape[1:] == ours.shape[1:])


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}" if names else "none"


# ---- files


def weights_file(spec: Train, downloads: str) -> Path:
    """The file of `spec.pretrained`; weights that torchvision publishes are in the folder `downloads`.

    Raises:
        WeightsError: they are not there.
    """
    weights = str(spec.pretrained)
    if not is_published(weights):
        return expand_path(weights)
    remote = remote_weights(spec.model, weights)
    path = weights_folder(downloads) / remote.name
    if not path.exists():
        program = f"scripts/weights.py --model {spec.model} --weights {weights}"
        raise WeightsError(
            f"{path}: no such file: Snakemake's rule `weights` downloads it, or `{program} --config FILE`"
        )
    if not has_checksum(path, remote.checksum):
        raise WeightsError(f"{path}: its checksum is not {remote.checksum}: remove it to download it again")
    return path


def _read_state_dict(path: Path) -> dict[str, Tensor]:
    """The state_dict in a file, with the names that the model itself gives."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror})") from None
    except Exception as error:  # which exception a damaged file raises depends on its bytes
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "save the model's `state_dict()` with torch.save: other Python objects are not loaded"
        raise WeightsError(f"{path}: is not a file of weights ({reason}): {remedy}") from None
    while isinstance(found, Mapping) and not _is_state_dict(found):
        found = next((found[entry] for entry in ENTRIES if entry in found), None)
    if found is None or not _is_state_dict(found):
        raise WeightsError(f"{path}: has no state_dict, neither itself nor in {', '.join(ENTRIES)}")
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in found):
            consume_prefix_in_state_dict_if_present(found, prefix)
    return found


def _is_state_dict(found: Any) -> TypeGuard[dict[str, Tensor]]:
    return isinstance(found, dict) and bool(found) and all(isinstance(each, Tensor) for each in found.values())
