import pytest
import torch
from trainyard.config.datasets import Synthetic
from trainyard.data.staging import stage
from trainyard.training.loaders import load_input_data

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def staged(tmp_path_factory):
    """70 training images of 8x8 pixels and 23 to validate with: numbers that divide by nothing."""
    torch.set_num_threads(1)
    dataset = Synthetic(source="synthetic", images=70, val_images=23, height=8, width=8)
    return stage(dataset, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def data(staged):
    return load_input_data(staged, CPU)
