"""GPU utilization: FLOPs and memory traffic of a model, peak performance of GPUs, MFU and roofline."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from trainyard.config.train import Train
from trainyard.training import models
from trainyard.training.fine_tuning import freeze


@dataclass(frozen=True)
class GpuPeak:
    """Peak performance of a GPU by its data sheet, dense."""

    tflops: dict[str, float]  # by precision
    bandwidth: float  # bytes per second

    def __str__(self) -> str:
        return f"{max(self.tflops.values()):g} TFLOP/s, {self.bandwidth / 1e12:g} TB/s"


def gpu_peak(device_name: str) -> GpuPeak | None:
    """Peak performance of the GPU with this name; None for a CPU, an unknown GPU, or a part of a GPU (MIG)."""
    return PEAKS.get(device_name.removeprefix("NVIDIA ").removeprefix("Tesla "))


def _peak(fp32: float, tf32: float, half: float, terabytes: float) -> GpuPeak:
    return GpuPeak({"fp32": fp32, "tf32": tf32, "bf16": half, "fp16": half}, terabytes * 1e12)


def _without_bf16(fp32: float, fp16: float, terabytes: float) -> GpuPeak:
    """Volta and Turing."""
    return GpuPeak({"fp32": fp32, "tf32": fp32, "fp16": fp16}, terabytes * 1e12)


# Of NVIDIA's data sheets, by the exact name that torch reports: dense matrix multiplication with fp32 accumulation.
# Throughput that is only given with sparsity is halved. A precision that the hardware does not have is left out;
# without TF32, `tf32` runs in fp32.
PEAKS = {
    # Blackwell: NVIDIA Blackwell Architecture Technical Brief (HGX B200, GB200)
    "B200": _peak(80, 1100, 2250, 8.0),
    "GB200": _peak(80, 1250, 2500, 8.0),
    # Hopper: data sheets of the H200, the H100 and the GH200
    "H200": _peak(67, 494.5, 989, 4.8),
    "H200 NVL": _peak(60, 417.5, 835.5, 4.8),
    "GH200 480GB": _peak(67, 494.5, 989, 4.0),
    "H100 80GB HBM3": _peak(67, 494.5, 989, 3.35),
    "H100 NVL": _peak(60, 417.5, 835.5, 3.9),
    "H100 PCIe": _peak(51, 378, 756, 2.0),
    # Ampere: data sheets of the A100 (40 GB and 80 GB), A40, A30 and A10
    "A100-SXM4-80GB": _peak(19.5, 156, 312, 2.039),
    "A100-SXM4-40GB": _peak(19.5, 156, 312, 1.555),
    "A100 80GB PCIe": _peak(19.5, 156, 312, 1.935),
    "A100-PCIE-40GB": _peak(19.5, 156, 312, 1.555),
    "A40": _peak(37.4, 74.8, 149.7, 0.696),
    "A30": _peak(10.3, 82, 165, 0.933),
    "A10": _peak(31.2, 62.5, 125, 0.6),
    # Ada: data sheets of the L40S, L40 and L4
    "L40S": _peak(91.6, 183, 362, 0.864),
    "L40": _peak(90.5, 90.5, 181, 0.864),
    "L4": _peak(30.3, 60, 121, 0.3),
    # Volta and Turing: data sheets of the V100, V100S and T4
    "V100-SXM2-16GB": _without_bf16(15.7, 125, 0.9),
    "V100-SXM2-32GB": _without_bf16(15.7, 125, 0.9),
    "V100-PCIE-16GB": _without_bf16(14, 112, 0.9),
    "V100-PCIE-32GB": _without_bf16(14, 112, 0.9),
    "V100S-PCIE-32GB": _without_bf16(16.4, 130, 1.134),
    "T4": _without_bf16(8.1, 65, 0.3),
    # Workstations and GeForce: appendices of the architecture whitepapers of RTX Blackwell, Ada, GA102 and Turing
    "RTX PRO 6000 Blackwell Workstation Edition": _peak(126, 251.9, 503.8, 1.792),
    "RTX 6000 Ada Generation": _peak(91.1, 182.1, 364.2, 0.96),
    "RTX A6000": _peak(38.7, 77.4, 154.8, 0.768),
    "Quadro RTX 6000": _without_bf16(16.3, 130.5, 0.672),
    "GeForce RTX 5090": _peak(104.8, 104.8, 209.5, 1.792),
    "GeForce RTX 4090": _peak(82.6, 82.6, 165.2, 1.008),
    "GeForce RTX 4080": _peak(48.7, 48.7, 97.5, 0.717),
    "GeForce RTX 3090": _peak(35.6, 35.6, 71, 0.936),
    "GeForce RTX 2080 Ti": _without_bf16(13.4, 53.8, 0.616),
}


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
    dtype, traffic = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32), _ByteCounter()

    def take_step(model: nn.Module, images: Tensor) -> None:
        freeze(model, spec.freeze)
        with traffic:
            loss = nn.functional.cross_entropy(model(images), torch.zeros(_BATCH, dtype=torch.int64))
            loss.backward()  # type: ignore[no-untyped-call]

    flops = _count_flops(take_step, spec, shape=shape, classes=classes, dtype=dtype)
    return None if flops is None else ModelCost(flops / _BATCH, traffic.total / _BATCH)


def forward_flops(spec: Train, *, shape: tuple[int, int, int], classes: int) -> int | None:
    """FLOPs of the forward pass of one image; None if they cannot be counted.

    About a third of `model_cost(...).flops`, counted in a third of the time.
    """
    run = torch.no_grad()(lambda model, images: model(images))
    flops = _count_flops(run, spec, shape=shape, classes=classes, dtype=torch.float32)
    return None if flops is None else flops // _BATCH


def _count_flops(
    run: Callable[[nn.Module, Tensor], Any],
    spec: Train,
    *,
    shape: tuple[int, int, int],
    classes: int,
    dtype: torch.dtype,
) -> int | None:
    """FLOPs of `run` on the model and `_BATCH` images, on the meta device; None if they cannot be counted."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model = models.build_model(spec, shape=shape, classes=classes).to(dtype)
            with FlopCounterMode(display=False) as flops:
                run(model, torch.zeros(_BATCH, shape[2], *shape[:2], dtype=dtype))
    except Exception as error:  # a user's own model may do anything
        log.info("the FLOPs of model %r cannot be counted: %s", spec.model, str(error).splitlines()[0])
        return None
    return int(flops.get_total_flops())


class _ByteCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of activations and their gradients that the CUDA kernels of operations read and write.

    An operation reads its arguments and writes its results once; views do neither. Those of `_READ_AGAIN` are several
    kernels, which read some arguments again. Caches are not considered. Tensors without a batch dimension are not
    counted, since they do not grow with the batch: parameters, their gradients, statistics and casts of weights.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket not in _FREE:
            again = [args[index] for index in _READ_AGAIN.get(func.overloadpacket, ())]
            tensors = [each for each in tree_leaves([args, again, result]) if isinstance(each, Tensor)]
            self.total += sum(each.nbytes for each in tensors if each.shape[:1] == (_BATCH,))
        return result


_FREE = {torch.ops.aten.detach, torch.ops.aten.zeros, torch.ops.aten.empty, torch.ops.aten.empty_like}
# Positions of the arguments that kernels read twice (ATen/native: Normalization.cuh, layer_norm_kernel.cu, Conv_v8.cpp)
_READ_AGAIN = {
    torch.ops.aten.native_batch_norm: (0,),  # the input: for the statistics, and to normalize it
    torch.ops.aten.native_batch_norm_backward: (0, 1),  # gradient and input: for their sums, and for the gradient
    torch.ops.aten.native_layer_norm_backward: (0, 1),  # gradient and input: for the gradients of input and weight
    torch.ops.aten.convolution_backward: (0,),  # the gradient: for the gradients of input and weight
}


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
