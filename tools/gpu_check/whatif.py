"""Measurements of what could be faster: kernels by time, another layout, fused models, trainings on a shared GPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from trainyard.cluster.gpus import run_mps
from trainyard.config.train import Augment, Train
from trainyard.packing import worker_gpu
from trainyard.training.augmentation import Augmenter
from trainyard.training.sampler import training_batches

from gpu_check.machine import seconds_of
from gpu_check.report import Report
from gpu_check.rig import Rig, free_memory, start
from gpu_check.speed import TOY_MODEL

PROFILED_STEPS = 5


def profile_step(rig: Rig) -> None:
    """Kernels of a ResNet-50 step by time, and an upper bound of its memory traffic."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    augment = Augment(crop_padding=4, flip=True)
    model: dict[str, Any] = rig.size({"model": "resnet50"}, TOY_MODEL)
    spec = Train(**model, batch_size=rig.size(1024, 8), precision="bf16", augment=augment)
    trainer = start(spec, rig.images(count=rig.size(20_480, 64), side=64, classes=200))
    next(trainer.epochs())
    size = len(trainer.data.train)
    batches = trainer.data.train.batches(training_batches(size, trainer.batch, rank=0, seed=0, epoch=2))
    augmenter = Augmenter(augment, size=size, seed=0, epoch=2)
    trainer.model.train()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if rig.has_gpu else [])]
    with profile(activities=activities) as found:
        for _ in range(PROFILED_STEPS):
            trainer._step(batches, augmenter)
        torch.cuda.synchronize() if rig.has_gpu else None
    batches.close()
    kernels = [event for event in found.events() or [] if event.device_type == DeviceType.CUDA]
    busy_ms = sum(event.device_time_total for event in kernels) / PROFILED_STEPS / 1e3
    seen = f"{len(kernels) / PROFILED_STEPS:.0f} kernels and copies per step, {busy_ms:.2f} ms of the GPU"
    rig.report.inform("profile", seen)
    print(found.key_averages().table(sort_by="self_device_time_total", row_limit=25, max_name_column_width=70))


class FusedResNets(nn.Module):
    """`count` ResNets as one model with grouped convolutions (HFTA, Wang et al. 2021)."""

    def __init__(self, count: int, *, channels: int, classes: int = 10, blocks: int = 8, width: int = 32) -> None:
        super().__init__()
        self._count, self._classes = count, classes

        def convolution(inputs: int) -> nn.Conv2d:
            return nn.Conv2d(inputs * count, width * count, 3, padding=1, bias=False, groups=count)

        self.stem, self.norm = convolution(channels), nn.BatchNorm2d(width * count)
        self.convolutions = nn.ModuleList(convolution(width) for _ in range(2 * blocks))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width * count) for _ in range(2 * blocks))
        self.head = nn.Conv2d(width * count, classes * count, 1, groups=count)

    def forward(self, images: Tensor) -> Tensor:
        """(N, channels, H, W) to (N * count, classes)."""
        hidden = torch.relu(self.norm(self.stem(images.repeat(1, self._count, 1, 1))))
        for first in range(0, len(self.convolutions), 2):
            inner = torch.relu(self.norms[first](self.convolutions[first](hidden)))
            hidden = torch.relu(hidden + self.norms[first + 1](self.convolutions[first + 1](inner)))
        logits: Tensor = self.head(hidden.mean((2, 3), keepdim=True)).view(-1, self._classes)
        return logits


def measure_fused_models(rig: Rig) -> None:
    """Images per second of all models together, eagerly and as a CUDA graph."""
    for side, channels, batch_size in rig.size([(8, 1, 64), (32, 3, 128)], [(8, 1, 4)]):
        for count in rig.size((1, 4, 16), (2,)):
            free_memory()
            step = _fused_step(rig, count, side=side, channels=channels, batch_size=batch_size)
            eager = seconds_of(step, rig, repeats=rig.size(20, 1))
            row = {"what": f"{count} fused, {side}x{side}, batch {batch_size}", "eager": count * batch_size / eager}
            if rig.has_gpu:
                row["graph"] = count * batch_size / seconds_of(_captured(step).replay, rig, repeats=50)
            rates = {name: each if isinstance(each, str) else f"{each:,.0f} img/s" for name, each in row.items()}
            rig.report.add_row("fused models", rates)


def _fused_step(rig: Rig, count: int, *, side: int, channels: int, batch_size: int) -> "Step":
    model = FusedResNets(count, channels=channels).to(rig.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Step(
        model,
        torch.randn(batch_size, channels, side, side, device=rig.device).to(memory_format=torch.channels_last),
        torch.randint(10, (batch_size * count,), device=rig.device),
    )


class Step:
    """A training step of a model on one batch."""

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        self._model, self._images, self._labels = model, images, labels
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    def __call__(self) -> None:
        """Take the step."""
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._images.device.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(self._model(self._images), self._labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


def _captured(step: Step) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


SHARING_SECONDS = 8


def measure_shared_gpu(rig: Rig) -> None:
    """Images per second of trainings of a small ResNet that share the GPU, also with MPS, and NVML's utilization."""
    if not rig.has_gpu:
        rig.report.inform("shared GPU", "needs a GPU")
        return
    for count in (1, 4, 8):
        _add_shared_gpu(rig, count, mps="no")
    with run_mps(True) as obstacle:
        if obstacle:
            rig.report.inform("shared GPU, MPS", obstacle)
            return
        for count in (4, 8):
            _add_shared_gpu(rig, count, mps="yes")


def _add_shared_gpu(rig: Rig, count: int, *, mps: str) -> None:
    began_together = time.time() + 40
    command = [sys.executable, "-m", "gpu_check.whatif", str(1 / count), str(began_together)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(count)]
    found = [json.loads(each.communicate(timeout=120)[0].splitlines()[-1]) for each in running]
    rate = sum(each["images_per_second"] for each in found)
    busy = " ".join(f"{each['busy']:.0%}" for each in found)
    row = {"trainings": count, "MPS": mps, "img/s, together": f"{rate:,.0f}", "busy by NVML": busy}
    rig.report.add_row("shared GPU", row)


def train_beside_others(share: float, begins: float) -> None:
    """Train on a share of the GPU from `begins` (Unix seconds) on; print images per second and utilization as JSON."""
    torch.set_num_threads(2)
    worker_gpu.limit_gpu_memory(share)
    rig = Rig(torch.device("cuda", 0), Report(Path(os.devnull), seconds=600))
    model_args = {"blocks": 8, "width": 32}
    spec = Train(model="resnet", model_args=model_args, batch_size=128, precision="bf16", epochs=1000)
    epochs = start(spec, rig.images(count=12_800, val_count=128)).epochs()
    next(epochs)
    time.sleep(max(0.0, begins - time.time()))
    began, images = time.monotonic(), 0
    with worker_gpu.measure_gpu() as uses:
        while time.monotonic() - began < SHARING_SECONDS:
            next(epochs)
            images += 12_800
    rate = images / (time.monotonic() - began)
    print(json.dumps({"images_per_second": rate, "busy": uses[0].busy if uses else 0.0}))


if __name__ == "__main__":
    train_beside_others(float(sys.argv[1]), float(sys.argv[2]))
