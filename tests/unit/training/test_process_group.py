"""The device of a process."""

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
