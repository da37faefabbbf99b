"""The device of a process."""

import os

import pytest
import torch
from trainyard.training import process_group
from trainyard.training.process_group import single_process
from trainyard.utils.errors import UserError


def test_a_missing_gpu_is_not_replaced_by_a_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(process_group, "NODE_GPUS", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert single_process().device.type == "cpu", "a node without GPUs: slots are only counted"
    (tmp_path / "0000:01:00.0").mkdir()
    with pytest.raises(UserError, match="GPU 3 was assigned to this process"):
        single_process()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert single_process().device.type == "cpu", "a job without GPUs on a node that has some"


def test_gloo_gets_the_interface_of_the_first_node_and_nccl_chooses_its_own(monkeypatch):
    monkeypatch.setattr(os, "environ", {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"})
    process_group._choose_interface("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert "NCCL_SOCKET_IFNAME" not in os.environ
    os.environ["GLOO_SOCKET_IFNAME"] = "ib0"
    process_group._choose_interface("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0", "the user's choice"


def test_rank_alone_does_not_make_a_process_a_rank(monkeypatch):
    """A job may inherit it from another launcher."""
    monkeypatch.setenv("RANK", "1")
    with process_group.process_group() as group:
        assert (group.rank, group.world_size) == (0, 1)
