"""The device of a process, and how ranks join and leave their process group."""

import os
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from project import ONE_RANK
from trainyard.training import process_group
from trainyard.training.process_group import single_process
from trainyard.utils.errors import UserError


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_not_replaced_by_a_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(process_group, "NODE_GPUS", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert single_process().device.type == "cpu", "a node without GPUs: slots are only counted"
    (tmp_path / "0000:01:00.0").mkdir()
    with pytest.raises(UserError, match="GPU 3 was assigned to this process"):
        single_process()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert single_process().device.type == "cpu", "a job without GPUs on a node that has some"


def test_rank_alone_does_not_make_a_process_a_rank(monkeypatch):
    """A job may inherit it from another launcher."""
    monkeypatch.setenv("RANK", "1")
    with process_group.process_group() as group:
        assert (group.rank, group.world_size) == (0, 1)


@pytest.fixture
def rank(monkeypatch):
    """This process is the only rank of a training, without a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_FR_DUMP_TEMP_FILE"):
        monkeypatch.setenv(name, "")  # so that it is as before after the test
        del os.environ[name]
    for name, value in ONE_RANK.items():
        monkeypatch.setenv(name, value)
    leave_group()  # which a test of an error may have left
    yield
    leave_group()


def leave_group():
    if dist.is_initialized():
        dist.destroy_process_group()


def test_gloo_gets_the_interface_of_the_first_node_and_nccl_chooses_its_own(rank, tmp_path):
    with process_group.process_group(traces=tmp_path) as group:
        assert (group.rank, group.world_size) == (0, 1)
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
        assert "NCCL_SOCKET_IFNAME" not in os.environ
        assert os.environ["TORCH_FR_DUMP_TEMP_FILE"] == f"{tmp_path}/flight-recorder-rank-", "torch reads it"
    assert not dist.is_initialized()


def test_the_interface_that_a_user_chooses_is_kept(rank):
    os.environ["GLOO_SOCKET_IFNAME"] = "ib-none"
    with pytest.raises(RuntimeError, match="address for: ib-none"), process_group.process_group():
        pass


def test_after_an_error_a_rank_does_not_wait_for_the_others(rank):
    """Who may never reach `destroy_process_group`. The GPU check ends ranks whose collectives of NCCL wait."""
    with pytest.raises(ValueError, match="planned"), process_group.process_group():
        raise ValueError("planned")
    assert dist.is_initialized()


def test_two_ranks_never_share_a_gpu(rank, monkeypatch):
    gpus = SimpleNamespace(current_accelerator=lambda check_available: torch.device("cuda"), device_count=lambda: 2)
    monkeypatch.setattr(torch, "accelerator", gpus)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with (
        pytest.raises(UserError, match="local rank 2 has no GPU of its own: this process sees 2"),
        process_group.process_group(),
    ):
        pass
