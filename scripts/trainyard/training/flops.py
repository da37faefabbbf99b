"""GPU utilization: FLOPs and memory traffic of a model, MFU and roofline."""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from trainyard.config.train import Train
from trainyard.training.gpu_peaks import GpuPeak
from trainyard.training.networks import models
from trainyard.training.networks.freezing import freeze

log = logging.getLogger(__name__)
_BATCH = 2  # batch normalization needs more than one value


@dataclass(frozen=True)
class ModelCost:
    """Cost of a forward and backward pass of one image."""

    flops: float  # as torch.utils.flop_counter counts: a multiply-add is two
    eager_bytes: float  # memory traffic of activations if no kernels are fused


def model_cost(spec: Train, *, shape: tuple[int, int, int], classes: int, precision: str) -> ModelCost | None:
    """Cost of one image of `shape` (height, width, channels), counted on the meta device; None if that fails.

    The model is built in the data type of `precision`, which decides how many bytes the kernels move.
    """
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model = models.build_model(spec, shape=shape, classes=classes).to(dtype)
            freeze(model, spec.freeze)
            images = torch.zeros(_BATCH, shape[2], *shape[:2], dtype=dtype)
            labels = torch.zeros(_BATCH, dtype=torch.int64)
            with FlopCounterMode(display=False) as flops, _ByteCounter() as traffic:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                loss.backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # a user's own model may do anything
        log.info("the FLOPs of model %r cannot be counted: %s", spec.model, str(error).splitlines()[0])
        return None
    return ModelCost(flops.get_total_flops() / _BATCH, traffic.total / _BATCH)


def forward_flops(spec: Train, *, shape: tuple[int, int, int], classes: int) -> int | None:
    """FLOPs of the forward pass of one image; None if they cannot be counted.

    About a third of `model_cost(...).flops`, counted in a third of the time.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), torch.no_grad():
            model = models.build_model(spec, shape=shape, classes=classes)
            with FlopCounterMode(display=False) as flops:
                model(torch.zeros(_BATCH, shape[2], *shape[:2]))
    except Exception as error:  # a user's own model may do anything
        log.info("the FLOPs of model %r cannot be counted: %s", spec.model, str(error).splitlines()[0])
        return None
    return int(flops.get_total_flops()) // _BATCH


class _ByteCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of activations and their gradients that the CUDA kernels of operations read and write.

    An operation reads its arguments and writes its results once; views do neither. Those of `_READ_AGAIN` are several
    kernels, which read some arguments again. Caches are not considered. Not counted, since it does not grow with the
    batch: parameters, their gradients, statistics, casts of weights, and the optimizer.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket not in _FREE:
            again = [args[index] for index in _READ_AGAIN.get(func.overloadpacket, ())]
            self.total += sum(map(_bytes, _tensors([args, again, result])))
        return result


_FREE = {torch.ops.aten.detach, torch.ops.aten.zeros, torch.ops.aten.empty, torch.ops.aten.empty_like}
# Positions of the arguments that kernels read twice (ATen/native: Normalization.cuh, layer_norm_kernel.cu, Conv_v8.cpp)
_READ_AGAIN = {
    torch.ops.aten.native_batch_norm: (0,),  # the input: for the statistics, and to normalize it
    torch.ops.aten.native_batch_norm_backward: (0, 1),  # gradient and input: for their sums, and for the gradient
    torch.ops.aten.native_layer_norm_backward: (0, 1),  # gradient and input: for the gradients of input and weight
    torch.ops.aten.convolution_backward: (0,),  # the gradient: for the gradients of input and weight
}


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (list, tuple)) else []


def _bytes(tensor: Tensor) -> int:
    """Bytes of a tensor with a batch dimension; others do not grow with the batch."""
    return tensor.numel() * tensor.element_size() if tensor.ndim and tensor.shape[0] == _BATCH else 0


def gpu_utilization(
    cost: ModelCost | None, *, images_per_second: float, gpus: int, precision: str, peak: GpuPeak | None
) -> dict[str, float | None]:
    """TFLOP/s per GPU, model FLOPs utilization (MFU, Chowdhery et al. 2022), and the roofline in images per second.

    The roofline (Williams et al. 2009) is the throughput at which arithmetic or, without fused kernels, memory
    bandwidth becomes the bottleneck. `peak` is the peak of one GPU. None where the cost or the peak is unknown.
    """
    none: dict[str, float | None] = {"tflops_per_gpu": None, "mfu": None, "roofline_images_per_second": None}
    if cost is None:
        return none
    reached = cost.flops * images_per_second / gpus / 1e12
    best = peak.tflops.get(precision) if peak else None
    if peak is None or best is None:
        return none | {"tflops_per_gpu": reached}
    roofline = min(best * 1e12 / cost.flops, peak.bandwidth / cost.eager_bytes) * gpus
    return {"tflops_per_gpu": reached, "mfu": reached / best, "roofline_images_per_second": roofline}
