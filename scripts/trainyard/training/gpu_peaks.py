"""Peak performance of GPUs by the exact name that torch reports, from NVIDIA's data sheets.

Dense matrix multiplication with fp32 accumulation: data sheets that only give throughput with sparsity are halved.
A precision that the hardware does not have is left out; without TF32, `tf32` runs in fp32.
"""

from dataclasses import dataclass


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
