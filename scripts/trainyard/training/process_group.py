"""The process group that a training finds itself in: none, one rank, or many started by torchrun."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainyard.cluster import host
from trainyard.utils import fast_start
from trainyard.utils.errors import UserError

NODE_GPUS = Path("/proc/driver/nvidia/gpus")  # one entry per GPU, whatever a job may see of them


@dataclass(frozen=True)
class Group:
    """This process's place among those that train together."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that prints and writes."""
        return self.rank == 0

    def wrap(
        self, model: nn.Module, *, static_graph: bool = False, compression: str = "none", compiled: bool = False
    ) -> nn.Module:
        """The model with gradients averaged over all ranks; itself where there is only one.

        `static_graph`: every step uses the same parameters in the same way. `compression`: what gradients are sent as.
        `compiled`: torch's compiler will be used.
        """
        if self.world_size == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        parallel = DistributedDataParallel if compiled else fast_start.distributed_data_parallel
        wrapped = parallel(model, device_ids=ids, gradient_as_bucket_view=True, static_graph=static_graph)
        if compression == "bf16":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

            wrapped.register_comm_hook(None, bf16_compress_hook)
        return wrapped

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Element-wise sum over all ranks, in place; the same tensor."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def all_reduce_min(self, values: Tensor) -> dist.Work | None:
        """Begin the element-wise minimum over all ranks, in place; what to wait for, None where there is one rank."""
        return dist.all_reduce(values, dist.ReduceOp.MIN, async_op=True) if self.world_size > 1 else None

    def all_gather_object(self, value: Any) -> list[Any]:
        """What every rank has of something that can be pickled, in their order."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


def single_process() -> Group:
    """The group of a single process: a trial, or a script that torchrun did not start."""
    return Group(rank=0, local_rank=0, world_size=1, device=_device(0))


@contextmanager
def process_group() -> Iterator[Group]:
    """Join the group that torchrun describes in the environment; without torchrun, be alone."""
    if "RANK" not in os.environ:
        yield single_process()
        return
    local_rank = int(os.environ["LOCAL_RANK"])
    device = _device(local_rank)
    _choose_interface()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Group(rank=dist.get_rank(), local_rank=local_rank, world_size=dist.get_world_size(), device=device)
    finally:
        dist.destroy_process_group()


def _choose_interface() -> None:
    """Have gloo and NCCL use the network interface that reaches the first node, if the user has not chosen one.

    Left alone, gloo takes the address that the host name resolves to, which on many nodes is a loopback address.
    """
    if os.environ["WORLD_SIZE"] == os.environ["LOCAL_WORLD_SIZE"]:
        return
    if name := host.source_interface(os.environ["MASTER_ADDR"]):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _device(local_rank: int) -> torch.device:
    """The GPU of this rank, or the CPU, made ready: chosen when the program runs, never in a config.

    Raises:
        UserError: this process was given a GPU that its node does not have; a CPU would be no answer to that.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != "cuda":
        present, given = len(list(NODE_GPUS.glob("*"))), os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if present and given:
            raise UserError(
                f"GPU {given} was given to this process, but torch finds none of that number among the {present} here: "
                "ask for at most the GPUs of a node, and check that torch was built for the driver"
            )
        keep_freed_memory()
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.accelerator.device_count())
    torch.accelerator.set_device_index(device)
    return device


# Of glibc's malloc.h: https://man7.org/linux/man-pages/man3/mallopt.3.html
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Have malloc return nothing to the operating system before the process ends.

    Left alone, it returns each large tensor, and the next one costs page faults and zeroing: a fifth of the time of a
    small ResNet's training on two cores (benchmarks/README.md). With another libc than glibc, nothing is done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)
