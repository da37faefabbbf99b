"""The device of a process, and how ranks join and leave their process group."""

import os
from types import SimpleNamespace

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


@pytest.fixture
def two_gpus(monkeypatch):
    """The calls that initialize CUDA devices and process groups, on a machine with two GPUs."""
    calls = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: calls.append(("device", str(device))))
    monkeypatch.setattr(
        process_group.dist, "init_process_group", lambda *args, **options: calls.append((args, options))
    )
    monkeypatch.setattr(process_group.dist, "destroy_process_group", lambda: calls.append("destroyed"))
    monkeypatch.setattr(process_group.dist, "get_rank", lambda: 1)
    monkeypatch.setattr(process_group.dist, "get_world_size", lambda: 4)
    world = SimpleNamespace(abort=lambda: calls.append("aborted"))
    monkeypatch.setattr(process_group.dist, "group", SimpleNamespace(WORLD=world))
    monkeypatch.setattr(
        os,
        "environ",
        {
            "TORCHELASTIC_RUN_ID": "0",
            "RANK": "1",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
        },
    )
    return calls


def test_nccl_knows_the_gpu_of_the_rank_and_where_its_flight_recorder_writes(two_gpus, tmp_path):
    with process_group.process_group(traces=tmp_path) as group:
        assert group.device == torch.device("cuda", 1)
    (set_device, (backend, options), end) = two_gpus
    assert set_device == ("device", "cuda:1")
    assert backend == ("nccl",)
    assert options["device_id"] == torch.device("cuda", 1)
    assert os.environ["TORCH_FR_DUMP_TEMP_FILE"] == f"{tmp_path}/flight-recorder-rank-"
    assert end == "destroyed"


def test_after_an_error_nccl_is_aborted_and_not_asked_to_finish(two_gpus):
    with pytest.raises(ValueError, match="planned"), process_group.process_group():
        raise ValueError("planned")
    for thread in process_group.threading.enumerate():
        if thread.name == "aborting the process group":
            thread.join()
    assert two_gpus[-1] == "aborted"
    assert "destroyed" not in two_gpus


def test_two_ranks_never_share_a_gpu(two_gpus):
    os.environ["LOCAL_RANK"] = "2"
    with (
        pytest.raises(UserError, match="local rank 2 has no GPU of its own: this process sees 2"),
        process_group.process_group(),
    ):
        pass
