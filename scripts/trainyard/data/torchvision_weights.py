"""The pretrained weights that torchvision publishes for its classification models, as files to download."""

import re
from pathlib import Path

from trainyard.config.weights import WeightsError
from trainyard.data.downloads import RemoteFile
from trainyard.utils.files import expand_path


def remote_weights(model: str, weights: str) -> RemoteFile:
    """The file of `weights`, such as IMAGENET1K_V1, for a model; its name contains the first digits of its SHA-256.

    Raises:
        WeightsError: torchvision has no such model, or no such weights for it.
    """
    from torchvision import models

    if model not in models.list_models(module=models):
        raise WeightsError(
            f"pretrained: {model!r} is not a classification model of torchvision: give a file of weights"
        )
    published = models.get_model_weights(model).__members__
    if weights not in published:
        raise WeightsError(
            f"pretrained: torchvision has no {weights} for {model}; it has {', '.join(published) or 'none'}"
        )
    url = published[weights].url
    digest = re.search(r"-([0-9a-f]{8,})\.\w+$", url)
    if digest is None:
        raise WeightsError(f"pretrained: {url} has no checksum in its name: download it, and give the file")
    name = url.rpartition("/")[2]
    return RemoteFile(name, (url,), f"sha256:{digest[1]}", alternative="give `pretrained` the path of a copy")


def weights_folder(downloads: str) -> Path:
    """The folder of downloaded weights, in the folder of all downloads."""
    return expand_path(downloads) / "weights"
