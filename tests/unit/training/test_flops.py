"""GPU utilization: counted FLOPs against the peak of a data sheet."""

from types import SimpleNamespace

import pytest
import torch
from trainyard.config.train import Train
from trainyard.training import summary
from trainyard.training.gpu_utilization import count_flops, gpu_peak, gpu_utilization, peaks
from trainyard.training.process_group import Group


def test_the_flops_of_resnet50_are_the_measured_ones():
    """1.985 GFLOP for an image of 64x64 pixels, forward and backward, measured on the H200."""
    counted = count_flops(Train(model="resnet50"), shape=(64, 64, 3), classes=200, trains=True)
    assert counted == pytest.approx(1.985e9, rel=1e-3)


def test_the_flops_of_a_convolution_equal_their_formula():
    """cnn of width 2 on 4x4 images: multiplications of its layers; the first layer needs no gradient of its input."""
    counted = count_flops(Train(model="cnn", model_args={"width": 2}), shape=(4, 4, 1), classes=3, trains=True)
    first, second, third, last = 16 * 9 * 2, 16 * 9 * 2 * 4, 64 * 128, 128 * 3
    assert counted == 2 * (2 * first + 3 * (second + third + last))


def test_a_model_that_computes_its_widths_from_tensors_is_counted():
    """Such tensors have no values on the meta device. 0.402 GFLOP (multiply-adds) by torchvision's documentation."""
    counted = count_flops(Train(model="regnet_y_400mf"), shape=(224, 224, 3), classes=1000, trains=False)
    assert counted == pytest.approx(2 * 0.402e9, rel=0.01)


def test_a_model_whose_flops_cannot_be_counted_is_not_an_error(caplog):
    caplog.set_level("INFO")
    assert count_flops(Train(model="nowhere:build"), shape=(8, 8, 3), classes=3, trains=True) is None
    assert "cannot be counted" in caplog.text


def test_mfu_of_two_gpus():
    """Two H200 with 989 TFLOP/s."""
    found = gpu_utilization(1e12, images_per_second=200, gpus=2, precision="bf16", peak=gpu_peak("NVIDIA H200"))
    assert found == {"tflops_per_gpu": 100, "mfu": pytest.approx(100 / 989)}


def test_an_unknown_gpu_has_no_mfu():
    found = gpu_utilization(1e12, images_per_second=100, gpus=1, precision="bf16", peak=gpu_peak("Some GPU"))
    assert found == {"tflops_per_gpu": 100, "mfu": None}
    found = gpu_utilization(None, images_per_second=1, gpus=1, precision="fp32", peak=gpu_peak("cpu"))
    assert found == {"tflops_per_gpu": None, "mfu": None}


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A40", 149.7),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA L40S", 362),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA B200", 2250),
        ("NVIDIA L40", 181),
        ("NVIDIA L4", 121),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("Tesla T4", None),
        ("Tesla V100-SXM2-32GB", None),
    ],
)
def test_peaks_by_the_names_that_torch_gives(name, tflops):
    assert gpu_peak(name).get("bf16") == tflops


@pytest.mark.parametrize("name", ["NVIDIA L40 48GB", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100", "cpu", ""])
def test_a_name_that_only_resembles_another_is_unknown(name):
    """A part of a GPU (MIG) does not have its peak."""
    assert gpu_peak(name) is None


@pytest.mark.parametrize("peak", peaks().values(), ids=peaks())
def test_peaks_are_plausible(peak):
    """A transposed digit or a value with sparsity would not be."""
    assert peak["fp32"] <= peak["tf32"] <= peak["fp16"]
    assert peak.get("bf16", peak["fp16"]) == peak["fp16"]


@pytest.mark.parametrize(("name", "peak"), [("NVIDIA H200", "989 TFLOP/s"), ("Some GPU", "unknown")])
def test_an_unknown_peak_is_said_to_be_unknown(monkeypatch, caplog, name, peak):
    """In `summary.json`, which the table reads, and once in the log."""
    monkeypatch.setattr(summary, "device_name", lambda device: name)
    spec = Train(model="resnet", model_args={"blocks": 1, "width": 4})
    trainer = SimpleNamespace(
        spec=spec,
        data=SimpleNamespace(shape=(8, 8, 3), classes=3),
        group=Group(0, 0, 1, torch.device("cuda", 0)),
        precision="bf16",
    )
    found = summary.training_utilization(trainer, 1000.0)
    assert found["gpu_peak"] == peak
    assert (found["mfu"] is None) == (peak == "unknown")
    assert caplog.text.count("the peak performance of a GPU named 'Some GPU' is unknown") == (peak == "unknown")
