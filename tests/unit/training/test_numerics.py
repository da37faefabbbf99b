"""The precision of float32 on GPUs, which torch can be told, and asked for, in two ways."""

import os

import pytest
import torch
from trainyard.training import numerics
from trainyard.utils.environment_variables import COMPILE_THREADS


@pytest.fixture(autouse=True)
def _restored():
    yield
    numerics.set_float32("fp32")


@pytest.mark.parametrize("first", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16"])
def test_both_ways_to_ask_for_tf32_agree(first, name):
    """After `fp32_precision` has been set, torch raises where `allow_tf32` is read: in users' code, and to compile."""
    numerics.set_float32(first)  # by the trial before
    numerics.set_float32(name)
    is_tf32 = name != "fp32"
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (is_tf32, is_tf32)
    assert (torch.get_float32_matmul_precision() == "high") == is_tf32
    operations = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    assert {operation.fp32_precision == "tf32" for operation in operations} == {is_tf32}
    with torch.backends.cudnn.flags(enabled=False):
        """It reads `allow_tf32`."""


def test_cpus_multiply_exactly():
    numerics.set_float32("tf32")
    assert torch.backends.mkldnn.matmul.fp32_precision == "none"


def _set(backend, value):
    backend.fp32_precision = value


@pytest.mark.parametrize("name", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "by_user",
    [
        pytest.param(lambda: None, id="none"),
        pytest.param(lambda: torch.set_float32_matmul_precision("medium"), id="matmul precision"),
        pytest.param(lambda: _set(torch.backends, "tf32"), id="all"),
        pytest.param(lambda: _set(torch.backends.cuda.matmul, "tf32"), id="matmul"),
        pytest.param(lambda: _set(torch.backends.cudnn.conv, "tf32"), id="convolutions in TF32"),
        pytest.param(lambda: _set(torch.backends.cudnn, "ieee"), id="cuDNN in float32"),
    ],
)
@pytest.mark.parametrize("before", ["fp32", "tf32"])
def test_what_the_code_of_a_user_has_set_does_not_change_later_trainings(by_user, name, before):
    """In the same worker. torch raises where a setting is read that contradicts another one, as torch.compile does."""
    numerics.set_float32(before)
    by_user()
    numerics.set_float32(name)
    in_tf32 = name != "fp32"
    assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == in_tf32
    assert torch.get_float32_matmul_precision() == ("high" if in_tf32 else "highest")
    settings = torch.backends.cudnn.conv, torch.backends.cudnn.rnn, torch.backends.cuda.matmul
    assert all((setting.fp32_precision == "tf32") == in_tf32 for setting in settings)
    assert torch.backends.mkldnn.matmul.fp32_precision == "none"


def test_torch_compile_has_the_threads_of_the_training_unless_the_user_says_otherwise(monkeypatch):
    """By default, each rank and trial would start one for each CPU of the node."""
    before = torch.get_num_threads()
    monkeypatch.setenv(COMPILE_THREADS, "")  # restored at the end
    monkeypatch.delenv(COMPILE_THREADS)
    numerics.set_threads(2)
    assert os.environ[COMPILE_THREADS] == "2"
    numerics.set_threads(1)
    assert (os.environ[COMPILE_THREADS], torch.get_num_threads()) == ("2", 1)
    torch.set_num_threads(before)
