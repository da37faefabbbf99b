"""GPU utilization: FLOPs of a model, peak performance of GPUs, and MFU."""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Final

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from trainyard.config.train import Train
from trainyard.training import models
from trainyard.training.fine_tuning import freeze

# Of NVIDIA's data sheets, by the exact name that torch reports: TFLOP/s of dense matrix multiplication with fp32
# accumulation. Throughput that is only given with sparsity is halved. A precision that the hardware does not have is
# left empty; without TF32, `tf32` runs in fp32.
_PEAKS: Final = """
name                                        |   fp32 |   tf32 |   bf16 |   fp16
# Blackwell: NVIDIA Blackwell Architecture Technical Brief (HGX B200, GB200)
B200                                        |     80 |   1100 |   2250 |   2250
GB200                                       |     80 |   1250 |   2500 |   2500
# Hopper: data sheets of the H200, the H100 and the GH200
H200                                        |     67 |  494.5 |    989 |    989
H200 NVL                                    |     60 |  417.5 |  835.5 |  835.5
GH200 480GB                                 |     67 |  494.5 |    989 |    989
H100 80GB HBM3                              |     67 |  494.5 |    989 |    989
H100 NVL                                    |     60 |  417.5 |  835.5 |  835.5
H100 PCIe                                   |     51 |    378 |    756 |    756
# Ampere: data sheets of the A100 (40 GB and 80 GB), A40, A30 and A10
A100-SXM4-80GB                              |   19.5 |    156 |    312 |    312
A100-SXM4-40GB                              |   19.5 |    156 |    312 |    312
A100 80GB PCIe                              |   19.5 |    156 |    312 |    312
A100-PCIE-40GB                              |   19.5 |    156 |    312 |    312
A40                                         |   37.4 |   74.8 |  149.7 |  149.7
A30                                         |   10.3 |     82 |    165 |    165
A10                                         |   31.2 |   62.5 |    125 |    125
# Ada: data sheets of the L40S, L40 and L4
L40S                                        |   91.6 |    183 |    362 |    362
L40                                         |   90.5 |   90.5 |    181 |    181
L4                                          |   30.3 |     60 |    121 |    121
# Volta and Turing: data sheets of the V100, V100S and T4
V100-SXM2-16GB                              |   15.7 |   15.7 |        |    125
V100-SXM2-32GB                              |   15.7 |   15.7 |        |    125
V100-PCIE-16GB                              |     14 |     14 |        |    112
V100-PCIE-32GB                              |     14 |     14 |        |    112
V100S-PCIE-32GB                             |   16.4 |   16.4 |        |    130
T4                                          |    8.1 |    8.1 |        |     65
# Workstations and GeForce: appendices of the architecture whitepapers of RTX Blackwell, Ada, GA102 and Turing
RTX PRO 6000 Blackwell Workstation Edition  |    126 |  251.9 |  503.8 |  503.8
RTX 6000 Ada Generation                     |   91.1 |  182.1 |  364.2 |  364.2
RTX A6000                                   |   38.7 |   77.4 |  154.8 |  154.8
Quadro RTX 6000                             |   16.3 |   16.3 |        |  130.5
GeForce RTX 5090                            |  104.8 |  104.8 |  209.5 |  209.5
GeForce RTX 4090                            |   82.6 |   82.6 |  165.2 |  165.2
GeForce RTX 4080                            |   48.7 |   48.7 |   97.5 |   97.5
GeForce RTX 3090                            |   35.6 |   35.6 |     71 |     71
GeForce RTX 2080 Ti                         |   13.4 |   13.4 |        |   53.8
"""


def gpu_peak(device_name: str) -> dict[str, float] | None:
    """Peak TFLOP/s by precision of the GPU with this name; None for a CPU, an unknown GPU, or a part of one (MIG)."""
    return peaks().get(device_name.removeprefix("NVIDIA ").removeprefix("Tesla "))


@cache
def peaks() -> dict[str, dict[str, float]]:
    """The peaks of all known GPUs by precision, by name."""
    (_, *precisions), *rows = [
        [cell.strip() for cell in line.split("|")] for line in _PEAKS.splitlines() if "|" in line
    ]
    by_gpu = dict[str, dict[str, float]]()
    for name, *cells in rows:
        of_gpu = zip(precisions, cells, strict=True)
        by_gpu[name] = {precision: float(peak) for precision, peak in of_gpu if peak}
    return by_gpu


log = logging.getLogger(__name__)
_BATCH = 2  # batch normalization needs more than one value


def count_flops(spec: Train, *, shape: tuple[int, int, int], classes: int, trains: bool) -> float | None:
    """FLOPs of a pass of one image of `shape` (height, width, channels), where a multiply-add is two.

    With `trains`, of the forward and the backward pass; otherwise of the forward pass, which is about a third, and is
    counted in a third of the time. Counted on the meta device; None if they cannot be counted.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), torch.set_grad_enabled(trains):
            model = models.build_model(spec, shape=shape, classes=classes)
            with FlopCounterMode(display=False) as flops:
                if trains:
                    freeze(model, spec.freeze)
                outputs = model(torch.zeros(_BATCH, shape[2], *shape[:2]))
                if trains:
                    loss = nn.functional.cross_entropy(outputs, torch.zeros(_BATCH, dtype=torch.int64))
                    loss.backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # a user's own model may do anything
        log.info("the FLOPs of model %r cannot be counted: %s", spec.model, str(error).splitlines()[0])
        return None
    return int(flops.get_total_flops()) / _BATCH


def gpu_utilization(
    flops: float | None, *, images_per_second: float, gpus: int, precision: str, peak: Mapping[str, float] | None
) -> dict[str, float | None]:
    """TFLOP/s per GPU, and model FLOPs utilization (MFU, Chowdhery et al. 2022); None where they are unknown.

    `flops` are those of `count_flops` with `trains`, `peak` is that of one GPU, from `gpu_peak`.
    """
    if flops is None:
        return {"tflops_per_gpu": None, "mfu": None}
    reached = flops * images_per_second / gpus / 1e12
    best = peak.get(precision) if peak else None
    return {"tflops_per_gpu": reached, "mfu": None if best is None else reached / best}
