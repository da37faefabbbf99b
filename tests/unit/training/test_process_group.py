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


@pytest.mark.parametrize(
    ("listed", "allowed", "share", "used"),
    [
        ("0-3,8-11\n", range(16), 4, {0, 1, 2, 3, 8, 9, 10, 11}),
        ("0-3\n", [2, 3, 4, 5], 2, {2, 3}),
        ("0-3\n", [3, 4, 5, 6], 2, None),  # on the other socket, there are more
        ("\n", range(16), 4, None),  # a virtual machine that hides its topology
        (None, range(16), 4, None),
    ],
)
def test_a_process_runs_on_the_cpus_next_to_its_gpu(tmp_path, monkeypatch, listed, allowed, share, used):
    found, asked = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xB1, pci_device_id=1), []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setattr(process_group, "PCI_DEVICES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(allowed))
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cpus: asked.append(cpus))
    if listed is not None:
        (tmp_path / "0000:b1:01.0").mkdir()
        (tmp_path / "0000:b1:01.0" / "local_cpulist").write_text(listed)
    process_group.run_near(torch.device("cuda", 0), share=share)
    assert asked == ([used] if used else [])


@pytest.mark.parametrize("name", [None, "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_allocator_extends_its_segments_unless_the_user_configures_it(monkeypatch, name):
    """Also if torch has read its environment before, as it does to limit the memory of a trial."""
    change, changes = torch._C._accelerator_setAllocatorSettings, []

    def remember(settings):
        changes.append(settings)
        change(settings)

    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", remember)
    for each in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(each, raising=False)
    if name:
        monkeypatch.setenv(name, "max_split_size_mb:64")
    process_group.use_expandable_segments()
    change("expandable_segments:False")  # torch's default, for other tests
    assert changes == ([] if name else ["expandable_segments:True"])


@pytest.mark.parametrize(("error", "supported"), [(0, True), (0, False), (100, True)])
def test_segments_are_only_extended_where_the_driver_maps_memory(monkeypatch, error, supported):
    class Driver:
        def cuInit(self, flags):
            return error

        def cuDeviceGet(self, device, index):
            device._obj.value = 40 + index
            return 0

        def cuDeviceGetAttribute(self, value, attribute, device):
            value._obj.value = supported and attribute == 102 and device.value == 43
            return 0

    monkeypatch.setattr(process_group.ctypes, "CDLL", lambda name: Driver())
    assert process_group.manages_virtual_memory(3) is (supported and not error)


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
