"""GPU utilization: FLOPs and memory traffic of a model, peak performance of a GPU, MFU and roofline."""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from trainyard.config.train import Train
from trainyard.training import models

log = logging.getLogger(__name__)
_BATCH = 2  # batch normalization needs more than one value


@dataclass(frozen=True)
class ModelCost:
    """Cost of a forward and backward pass of one image."""

    flops: float  # as torch.utils.flop_counter counts: a multiply-add is two
    eager_bytes: float  # memory traffic if no kernels are fused; parameters are not counted


@dataclass(frozen=True)
class GpuPeak:
    """Peak performance of a GPU by its data sheet, dense."""

    tflops: dict[str, float]  # by precision
    bandwidth: float  # bytes per second


def _peak(fp32: float, tf32: float, half: float, terabytes: float) -> GpuPeak:
    return GpuPeak({"fp32": fp32, "tf32": tf32, "bf16": half, "fp16": half}, terabytes * 1e12)


# By a part of the name that torch reports; the first match counts. Source: NVIDIA's data sheets.
PEAKS = {
    "H200": _peak(67, 494.5, 989, 4.8),
    "H100 PCIe": _peak(51, 378, 756, 2.0),
    "H100": _peak(67, 494.5, 989, 3.35),
    "A100-SXM4-80GB": _peak(19.5, 156, 312, 2.039),
    "A100 80GB PCIe": _peak(19.5, 156, 312, 1.935),
    "A100": _peak(19.5, 156, 312, 1.555),
    "A40": _peak(37.4, 74.8, 149.7, 0.696),
    "L40S": _peak(91.6, 183, 362, 0.864),
    "L4": _peak(30.3, 60, 121, 0.3),
    "V100": GpuPeak({"fp32": 15.7, "tf32": 15.7, "fp16": 125}, 0.9e12),
}


def gpu_peak(device_name: str) -> GpuPeak | None:
    """Peak performance of the GPU with this name; None for a CPU or an unknown GPU."""
    return next((peak for name, peak in PEAKS.items() if name in device_name), None)


def model_cost(spec: Train, *, shape: tuple[int, int, int], classes: int, precision: str) -> ModelCost | None:
    """Cost of one image of `shape` (height, width, channels), counted on the meta device; None if that fails.

    The model is built in the data type of `precision`, which decides how many bytes the kernels move.
    """
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model = models.build_model(spec, shape=shape, classes=classes).to(dtype)
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
    """Counts the bytes that operations read and write; views do neither."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket not in _FREE:
            self.total += sum(map(_bytes, _tensors(args))) + sum(map(_bytes, _tensors(result)))
        return result


_FREE = {torch.ops.aten.detach, torch.ops.aten.zeros, torch.ops.aten.empty, torch.ops.aten.empty_like}


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (list, tuple)) else []


def _bytes(tensor: Tensor) -> int:
    """Bytes of a tensor with a batch dimension; parameters and their gradients are small in comparison."""
    return tensor.numel() * tensor.element_size() if tensor.ndim and tensor.shape[0] == _BATCH else 0


def gpu_utilization(
    cost: ModelCost | None, *, images_per_second: float, gpus: int, precision: str, device_name: str
) -> dict[str, float | None]:
    """TFLOP/s per GPU, model FLOPs utilization (MFU, Chowdhery et al. 2022), and the roofline in images per second.

    The roofline (Williams et al. 2009) is the throughput at which arithmetic or, without fused kernels, memory
    bandwidth becomes the bottleneck. None where the cost or the peak is unknown.
    """
    none: dict[str, float | None] = {"tflops_per_gpu": None, "mfu": None, "roofline_images_per_second": None}
    if cost is None:
        return none
    reached = cost.flops * images_per_second / gpus / 1e12
    peak = gpu_peak(device_name)
    best = peak.tflops.get(precision) if peak else None
    if peak is None or best is None:
        return none | {"tflops_per_gpu": reached}
    roofline = min(best * 1e12 / cost.flops, peak.bandwidth / cost.eager_bytes) * gpus
    return {"tflops_per_gpu": reached, "mfu": reached / best, "roofline_images_per_second": roofline}
