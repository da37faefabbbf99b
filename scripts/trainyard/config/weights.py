"""The option `pretrained` of a training: a file of weights, or the name of weights that torchvision publishes."""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from trainyard.utils.errors import UserError
from trainyard.utils.files import expand_path, file_digest

SAVED: Final = (b"PK", b"\x80")  # a zip archive; a pickle, before torch 1.6


class WeightsError(UserError):
    """The pretrained weights cannot be used; the message names the file and the reason."""


def is_published(weights: str) -> bool:
    """Whether `pretrained` names weights of torchvision, such as IMAGENET1K_V1; a file's path has a dot or a slash."""
    return re.fullmatch(r"[A-Z][A-Z0-9_]*", weights) is not None


def weights_receipt(model: str, weights: str) -> str:
    """The file, below the results, that says where weights of torchvision were downloaded to."""
    return f"weights/{model}-{weights}.json"


def weights_digest(weights: str) -> str:
    """The SHA-256 of a file of weights, read once for each state of the file.

    Raises:
        WeightsError: it cannot be read, or torch.save has not written it, as far as its first bytes tell.
    """
    path = expand_path(weights)
    try:
        found = path.stat()
        return _digest(path, found.st_size, found.st_mtime_ns)
    except OSError as error:
        remedy = "give a file that this machine and the compute nodes can read"
        raise WeightsError(f"{path.absolute()}: cannot be read ({error.strerror}): {remedy}") from None


@lru_cache(maxsize=64)
def _digest(path: Path, size: int, modified: int) -> str:
    with open(path, "rb") as file:
        begin = file.read(20)
    if not begin.startswith(SAVED):
        raise WeightsError(f"{path.absolute()}: is not a file of torch.save: it begins with {begin!r}")
    return file_digest(path)


def identifying(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a training as its identity counts them: a file of weights by its content, not by its path."""
    weights = settings.get("pretrained")
    if weights is None or is_published(weights):
        return dict(settings)
    return {**settings, "pretrained": f"sha256:{weights_digest(weights)}"}
