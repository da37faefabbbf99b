"""The precision of float32 on GPUs, which torch can be told, and asked for, in two ways."""

import pytest
import torch
from trainyard.training.computation import precision


@pytest.fixture(autouse=True)
def _restored():
    matmul, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, convolution


@pytest.mark.parametrize("first", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16"])
def test_both_ways_to_ask_for_tf32_agree(first, name):
    """After `fp32_precision` has been set, torch raises where `allow_tf32` is read: in users' code, and to compile."""
    precision.set_float32(first)  # by the trial before
    precision.set_float32(name)
    is_tf32 = name != "fp32"
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (is_tf32, is_tf32)
    assert (torch.get_float32_matmul_precision() == "high") == is_tf32
    operations = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    assert {operation.fp32_precision == "tf32" for operation in operations} == {is_tf32}
    with torch.backends.cudnn.flags(enabled=False):
        """It reads `allow_tf32`."""


def test_cpus_multiply_exactly():
    precision.set_float32("tf32")
    assert torch.backends.mkldnn.matmul.fp32_precision == "none"
