"""Training from pretrained weights: loading them, freezing parameters, and learning rates by name."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from trainyard.config.train import Train
from trainyard.config.weights import WeightsError, is_published, weights_digest
from trainyard.data.torchvision_weights import remote_weights, weights_folder
from trainyard.training.models import ModelError, inner_model
from trainyard.utils.files import expand_path
from trainyard.utils.text import list_some
from trainyard.utils.typed_commands import trainyard_call


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Exclude the parameters that match a pattern from training.

    `set_training_mode` leaves batch normalization whose parameters are all frozen in evaluation mode: its running
    statistics are frozen, too.

    Raises:
        ModelError: a pattern matches no parameter, or all parameters are frozen.
    """
    if not patterns:
        return
    inner = inner_model(model)
    parameters = dict(inner.named_parameters())
    _check_matches("freeze", patterns, parameters)
    for name, parameter in parameters.items():
        if any(matches(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ModelError("freeze: the patterns match all parameters of the model, so nothing is left to train")
    for name, module in inner.named_modules():
        if not isinstance(module, _BatchNorm):
            continue
        if trained := [parameter.requires_grad for parameter in module.parameters()]:
            module.is_frozen = not any(trained)  # type: ignore[assignment]
        else:  # without scale and shift
            module.is_frozen = any(matches(name, pattern) for pattern in patterns)  # type: ignore[assignment]


def set_training_mode(model: nn.Module) -> None:
    """Set the training mode of a model, and the evaluation mode of its frozen batch normalization."""
    model.train()
    for module in model.modules():
        if isinstance(module, _BatchNorm) and getattr(module, "is_frozen", False):
            module.eval()


def lr_scales(names: Sequence[str], scales: Mapping[str, float]) -> dict[str, float]:
    """The learning rate factor of each parameter, from the longest matching pattern (not counting `*`), or 1.

    Raises:
        ModelError: a pattern matches none of the names, or two of the same length match one.
    """
    _check_matches("lr_scale", scales, names)
    factors = {}
    for name in names:
        matching = [pattern for pattern in scales if matches(name, pattern)]
        longest = [pattern for pattern in matching if _length(pattern) == max(map(_length, matching))]
        if len({scales[pattern] for pattern in longest}) > 1:
            raise ModelError(f"lr_scale: {' and '.join(longest)} both match {name} and are equally long: extend one")
        factors[name] = scales[longest[0]] if longest else 1.0
    return factors


def _length(pattern: str) -> int:
    return len(pattern.replace("*", ""))


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern, as of `fnmatch`, matches a parameter's name or the name of a module that contains it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:count]), pattern) for count in range(1, len(parts) + 1))


def _check_matches(option: str, patterns: Iterable[str], names: Iterable[str]) -> None:
    parameters = list(names)
    for pattern in patterns:
        if not any(matches(name, pattern) for name in parameters):
            examples = ", ".join(dict.fromkeys(name.split(".")[0] for name in parameters))
            raise ModelError(f"{option}: {pattern!r} matches no parameter that is trained; the model has {examples}")


# Where training scripts keep the state_dict in their checkpoints; Trainyard's own: `state`, then the `average` of the
# weights if there is one, as it is what was validated, or `module`.
ENTRIES: Final = ("state", "average", "module", "state_dict", "model_state_dict", "model")
PREFIXES: Final = ("module.", "_orig_mod.", "model.")  # of DDP, of torch.compile, and of our adapted models
# torchvision renames the layers in its files of DenseNet outside of `load_state_dict`.
_OLD_DENSENET: Final = re.compile(r"^(.*denselayer\d+\.(?:norm|conv))\.([12]\.\w+)$")
_OTHER_OBJECT: Final = re.compile(r"GLOBAL ([\w.]+) was not an allowed global")  # in messages of `weights_only=True`
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
    inner = inner_model(model)
    ours = inner.state_dict()
    theirs = _read_state_dict(path, ours)
    replaced = [name for name in theirs if _is_new_output(theirs[name], ours.get(name), classes)]
    for name in replaced:
        del theirs[name]
    try:
        keys = inner.load_state_dict(theirs, strict=False)
    except (RuntimeError, ValueError) as error:  # the first line of a RuntimeError names the class of the model
        reason = str(error).strip().splitlines()[-1].strip()
        remedy = "; small_images replaces the stem: leave it out" if spec.small_images else ""
        raise WeightsError(f"{path}: does not fit {spec.model}: {reason}{remedy}") from None
    loaded = len(theirs) - len(keys.unexpected_keys)
    skipped = keys.unexpected_keys
    if not loaded:
        raise WeightsError(
            f"{path}: has none of the names of {spec.model}: {list_some(skipped)}, not {list_some([*ours])}"
        )
    missing = [name for name in keys.missing_keys if not name.endswith("num_batches_tracked")]
    if absent := [name for name in missing if ours[name].shape[:1] != (classes,)]:
        raise WeightsError(f"{path}: does not fit {spec.model}: it lacks {list_some(absent)} of the model")
    # Names of the file in parts that the model has, except its output layer: its architecture is another one.
    parts = {name.partition(".")[0] for name in ours} - {name.partition(".")[0] for name in (*missing, *replaced)}
    if others := [name for name in skipped if name.partition(".")[0] in parts]:
        raise WeightsError(f"{path}: does not fit {spec.model}: the model has no {list_some(others)}")
    source = f"{path} (sha256 {weights_digest(str(path))[:8]})"
    count = f"{loaded} of {len(ours)} tensors"
    message = "pretrained %s: %s loaded, new output layer: %s, skipped: %s"
    log.info(message, source, count, list_some(missing), list_some(skipped))


def _is_new_output(theirs: Tensor, ours: Tensor | None, classes: int) -> bool:
    """Whether a tensor of the file belongs to an output layer of another number of classes."""
    if ours is None or ours.shape[:1] != (classes,):
        return False
    return theirs.shape[:1] != ours.shape[:1] and theirs.shape[1:] == ours.shape[1:]


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
        program = trainyard_call("weights", "--model", spec.model, "--weights", weights)
        raise WeightsError(
            f"{path}: no such file: Snakemake's rule `weights` downloads it, or `{program} --config FILE`"
        )
    if not f"sha256:{weights_digest(str(path))}".startswith(remote.checksum):
        raise WeightsError(f"{path}: its checksum is not {remote.checksum}: remove it to download it again")
    return path


def _read_state_dict(path: Path, ours: Iterable[str]) -> dict[str, Tensor]:
    """The state_dict in a file, without the prefixes of a wrapper; `ours` are the names that the model itself gives."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror})") from None
    except Exception as error:  # which exception a damaged file raises depends on its bytes
        named = _OTHER_OBJECT.search(str(error))
        reason = f"it holds a {named[1]}" if named else (str(error).splitlines() or [type(error).__name__])[0]
        remedy = "save the model's `state_dict()` with torch.save: other Python objects are not loaded"
        raise WeightsError(f"{path}: is not a file of weights ({reason}): {remedy}") from None
    while isinstance(state, Mapping) and not _is_state_dict(state):
        state = next((state[entry] for entry in ENTRIES if isinstance(state.get(entry), Mapping)), None)
    if state is None or not _is_state_dict(state):
        raise WeightsError(f"{path}: has no state_dict, neither itself nor in {', '.join(ENTRIES)}")
    for prefix in PREFIXES:
        is_own = any(name.startswith(prefix) for name in ours)  # a user's model may have a part of this name
        if not is_own and all(name.startswith(prefix) for name in state):
            consume_prefix_in_state_dict_if_present(state, prefix)
    for name in list(state):
        if old := _OLD_DENSENET.match(name):
            state[old[1] + old[2]] = state.pop(name)
    return state


def _is_state_dict(found: Any) -> TypeGuard[dict[str, Tensor]]:
    return isinstance(found, dict) and bool(found) and all(isinstance(each, Tensor) for each in found.values())
