"""The process group of a training: a single process, or the ranks that torchrun started."""

import ctypes
import inspect
import io
import ipaddress
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainyard.cluster import host
from trainyard.cluster.job_step import is_rank
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import further_arguments

# The option of DDP to synchronize buffers in each forward pass; the second name is deprecated since torch 2.13.
_SYNC_OPTIONS = ("forward_sync_buffers", "broadcast_buffers")
_SYNC_BUFFERS = next(each for each in _SYNC_OPTIONS if each in inspect.signature(DistributedDataParallel).parameters)
_set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout  # older releases
TIMEOUT: Final = timedelta(minutes=10)  # of collectives, until `Group.limit_collectives`; PyTorch's default for NCCL
_TIMED_OUT: Final = re.compile("Timed out waiting|Application timeout")  # gloo
NODE_GPUS = Path("/proc/driver/nvidia/gpus")  # one entry per GPU of the node, also of those that the job cannot use


# Arguments of DDP that follow from the training, or that no config can give.
_SET_HERE: Final = {
    *("module", "device_ids", "output_device", "dim", "process_group", "device_mesh", "static_graph", *_SYNC_OPTIONS),
    *("mixed_precision", "delay_all_reduce_named_params", "param_to_hook_all_reduce"),
}


def ddp_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of DistributedDataParallel with those of a config.

    Raises:
        UserError: it has no such argument.
    """
    ours = {"gradient_as_bucket_view": True, **arguments}
    keys = ["timeout_minutes"]
    return further_arguments(DistributedDataParallel, ours, option="ddp", keys=keys, without=_SET_HERE)


@dataclass(frozen=True)
class Group:
    """The rank of this process in its process group, and its device."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which logs and writes files."""
        return self.rank == 0

    def wrap(
        self,
        model: nn.Module,
        *,
        static_graph: bool = False,
        synced_buffers: Sequence[Tensor] = (),
        **arguments: Any,
    ) -> nn.Module:
        """The model in DistributedDataParallel; on a single rank, the model itself.

        `static_graph`: every step uses the same parameters. `synced_buffers`: each forward pass begins with those of
        rank 0; all other buffers stay each rank's own. `arguments` are further ones of DistributedDataParallel.
        """
        if self.world_size == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        arguments |= {"static_graph": static_graph, _SYNC_BUFFERS: bool(synced_buffers)}
        if synced_buffers:
            synced = {id(each) for each in synced_buffers}
            ignored = [name for name, each in model.named_buffers() if id(each) not in synced]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)  # type: ignore[no-untyped-call]
        return DistributedDataParallel(model, device_ids=ids, **arguments)

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Sum `values` over all ranks, element-wise and in place; returns the same tensor."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def broadcast(self, values: Tensor) -> Tensor:
        """Broadcast `values` from rank 0, in place; returns the same tensor."""
        if self.world_size > 1:
            dist.broadcast(values, src=0)
        return values

    def all_reduce_min(self, values: Tensor) -> dist.Work | None:
        """Start the element-wise minimum over all ranks, in place; returns its work handle, None on a single rank."""
        return dist.all_reduce(values, dist.ReduceOp.MIN, async_op=True) if self.world_size > 1 else None

    def minimum(self, values: Tensor) -> Tensor:
        """Replace `values` by their minimum over all ranks, element-wise and in place; returns the same tensor."""
        if work := self.all_reduce_min(values):
            work.wait()
        return values

    def lowest(self, value: bool) -> int:
        """The lowest rank on which `value` is true; the world size if there is none. Collective."""
        mine = self.rank if value else self.world_size
        if self.world_size == 1:
            return mine
        return int(self.minimum(torch.tensor(mine, device=self.device)))

    def any(self, value: bool) -> bool:
        """Whether `value` is true on any rank. Collective."""
        return self.lowest(value) < self.world_size

    def limit_collectives(self, minutes: float) -> None:
        """Let the collectives from now on fail if a rank does not take part within so many minutes."""
        if self.world_size > 1:
            _set_timeout(timedelta(minutes=minutes))

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, in the order of ranks: numbers, text, tensors, and lists and dicts of them.

        `dist.all_gather_object` unpickles what it receives, and the connections of gloo and NCCL authenticate nobody.
        """
        if self.world_size == 1:
            return [value]
        packed = io.BytesIO()
        torch.save(value, packed)
        mine = torch.frombuffer(packed.getbuffer(), dtype=torch.uint8).to(self.device)
        sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.world_size)]
        dist.all_gather(sizes, torch.tensor([len(mine)], device=self.device))
        parts = [mine.new_zeros(int(max(sizes))) for _ in sizes]
        dist.all_gather(parts, nn.functional.pad(mine, (0, len(parts[0]) - len(mine))))
        read = [io.BytesIO(part[: int(size)].cpu().numpy().tobytes()) for part, size in zip(parts, sizes, strict=True)]
        return [torch.load(each, weights_only=True) for each in read]


def single_process() -> Group:
    """The group of a process without torchrun, such as a trial of a sweep."""
    return Group(rank=0, local_rank=0, world_size=1, device=_device(0))


@contextmanager
def process_group(*, traces: Path | None = None) -> Iterator[Group]:
    """Initialize the process group from the environment of torchrun; without torchrun, a single process.

    When a collective of NCCL fails or times out, each rank writes what the flight recorder has recorded to
    `flight-recorder-rank-<rank>` in the folder `traces`.
    After an error in the block, the process has to exit: the rank does not wait for others, which may never reach
    `destroy_process_group`.

    Raises:
        UserError: the GPU of this rank is missing, or belongs to another rank; or a collective of gloo has timed out.
            NCCL aborts the process then.
    """
    if not is_rank():
        yield single_process()
        return
    local_rank = int(os.environ["LOCAL_RANK"])
    device = _device(local_rank)
    _choose_interface(os.environ["MASTER_ADDR"])
    if traces:  # read by torch when it first writes one; recording is torch's default
        os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(traces / "flight-recorder-rank-"))
    on_gpu = device.type == "cuda"
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT, device_id=device if on_gpu else None)
    group = Group(rank=dist.get_rank(), local_rank=local_rank, world_size=dist.get_world_size(), device=device)
    try:
        yield group
    except BaseException as error:
        # End the NCCL kernels of this rank, which may wait for others forever; gloo has no such operation. In a thread,
        # because `ncclCommAbort` may hang, too (https://github.com/NVIDIA/nccl/issues/1777).
        assert dist.group.WORLD is not None
        threading.Thread(target=dist.group.WORLD.abort, name="aborting the process group", daemon=True).start()
        if _TIMED_OUT.search(str(error)):
            what = "another rank hangs, or takes longer than timeout_minutes of `ddp`"
            raise UserError(f"rank {group.rank} timed out in a collective operation: {what} ({error})") from error
        raise
    dist.destroy_process_group()


def _choose_interface(master: str) -> None:
    """Set the network interface of gloo to the one that reaches the first node, unless the user has set one.

    By default, gloo uses the address that the host name resolves to, which on many nodes is a loopback address. NCCL
    finds the best interface by itself: it prefers InfiniBand.
    """
    several = os.environ["WORLD_SIZE"] != os.environ["LOCAL_WORLD_SIZE"]
    if several and ipaddress.ip_address(host.source_address(master)).is_loopback:
        return  # torchrun was not started by Trainyard, and this node's own name is a loopback address
    if name := host.source_interface(master):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def _device(local_rank: int) -> torch.device:
    """The GPU of this rank, made the current device, or the CPU.

    Raises:
        UserError: CUDA_VISIBLE_DEVICES names a GPU, but torch finds none: training on the CPU instead would hide that.
            Or there are fewer GPUs than ranks: two ranks on one GPU would halve the speed, and NCCL refuses them.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != "cuda":
        present = len(list(NODE_GPUS.glob("*")))
        assigned = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if present and assigned:
            raise UserError(
                f"GPU {assigned} was assigned to this process, but torch finds none, although the node has {present}: "
                "request at most the GPUs of a node, and check that torch was built for the driver"
            )
        return torch.device("cpu")
    count = torch.accelerator.device_count()
    if local_rank >= count:
        raise UserError(
            f"local rank {local_rank} has no GPU of its own: this process sees {count}; start at most one rank per "
            "GPU, and let each rank see all GPUs of its node (CUDA_VISIBLE_DEVICES)"
        )
    device = torch.device("cuda", local_rank)
    if manages_virtual_memory(local_rank):
        use_expandable_segments()
    torch.accelerator.set_device_index(device)
    run_near(device, share=len(os.sched_getaffinity(0)) // count)
    return device


_VIRTUAL_MEMORY: Final = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED of cuda.h


def manages_virtual_memory(index: int) -> bool:
    """Whether the driver maps memory of a GPU to addresses that a process has reserved; some virtual GPUs cannot."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        device = ctypes.c_int()
        supported = ctypes.c_int()
    except OSError:  # AMD's driver
        return False
    failed = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), index)
    failed = failed or cuda.cuDeviceGetAttribute(ctypes.byref(supported), _VIRTUAL_MEMORY, device)
    return not failed and bool(supported.value)


def use_expandable_segments() -> None:
    """Let torch's allocator extend its segments, unless the user's environment configures the allocator.

    Memory that batches of other sizes have left, as in the next trial or after a micro-batch was halved, is then of use
    to larger tensors. torch reads the environment once, as soon as it knows the GPUs: for the limit of a trial's
    memory, that is before this call. CUDA graphs have segments of their own.
    """
    if not any(name in os.environ for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


PCI_DEVICES = Path("/sys/bus/pci/devices")


def run_near(device: torch.device, *, share: int) -> None:
    """Let this process, and what it starts, run on the CPUs of the NUMA node of its GPU.

    It stays as it is if this process may use fewer than its `share` of them, or the kernel does not know the node.
    """
    found: Any = torch.cuda.get_device_properties(device)
    place = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
    with suppress(OSError, ValueError):
        parts = [part.partition("-") for part in (PCI_DEVICES / place / "local_cpulist").read_text().split(",")]
        local = {cpu for first, _, last in parts for cpu in range(int(first), int(last or first) + 1)}
        near = local & os.sched_getaffinity(0)
        if len(near) >= max(1, share):
            os.sched_setaffinity(0, near)
