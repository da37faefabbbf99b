"""Which parameters of a model are trained, and at which share of the learning rate, by patterns of their names."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainyard.training.networks.adapted_model import inner_model
from trainyard.training.networks.models import ModelError


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
        if isinstance(module, _BatchNorm) and _is_frozen(name, module, patterns):
            module.is_frozen = True  # type: ignore[assignment]


def _is_frozen(name: str, norm: nn.Module, patterns: Sequence[str]) -> bool:
    own = list(norm.parameters())
    if not own:  # without scale and shift
        return any(matches(name, pattern) for pattern in patterns)
    return not any(parameter.requires_grad for parameter in own)


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
    found = {}
    for name in names:
        matching = [pattern for pattern in scales if matches(name, pattern)]
        longest = [pattern for pattern in matching if _length(pattern) == max(map(_length, matching))]
        if len({scales[pattern] for pattern in longest}) > 1:
            raise ModelError(f"lr_scale: {' and '.join(longest)} both match {name} and are equally long: extend one")
        found[name] = scales[longest[0]] if longest else 1.0
    return found


def _length(pattern: str) -> int:
    return len(pattern.replace("*", ""))


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern, as of `fnmatch`, matches a parameter's name or the name of a module that contains it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:count]), pattern) for count in range(1, len(parts) + 1))


def _check_matches(option: str, patterns: Iterable[str], names: Iterable[str]) -> None:
    known = list(names)
    for pattern in patterns:
        if not any(matches(name, pattern) for name in known):
            examples = ", ".join(dict.fromkeys(name.split(".")[0] for name in known))
            raise ModelError(f"{option}: {pattern!r} matches no parameter that is trained; the model has {examples}")
