"""Measurements of what could be faster: kernels by time, and trainings on a shared GPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from trainyard.cluster.gpus import run_mps
from trainyard.config.train import Augment, Train
from trainyard.packing import worker_gpu
from trainyard.training.augmentation import Augmenter
from trainyard.training.sampler import training_batches

from gpu_check.report import Report
from gpu_check.rig import Rig, start
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


SHARING_SECONDS = 8


def measure_shared_gpu(rig: Rig) -> None:
    """Images per second of trainings of a small ResNet that share the GPU, also with MPS."""
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
    row = {"trainings": count, "MPS": mps, "img/s, together": f"{rate:,.0f}"}
    rig.report.add_row("shared GPU", row)


def train_beside_others(share: float, begins: float) -> None:
    """Train on a share of the GPU from `begins` (Unix seconds) on; print images per second as JSON."""
    torch.set_num_threads(2)
    worker_gpu.limit_gpu_memory(share)
    rig = Rig(torch.device("cuda", 0), Report(Path(os.devnull), seconds=600))
    model_args = {"blocks": 8, "width": 32}
    spec = Train(model="resnet", model_args=model_args, batch_size=128, precision="bf16", epochs=1000)
    epochs = start(spec, rig.images(count=12_800, val_count=128)).epochs()
    next(epochs)
    time.sleep(max(0.0, begins - time.time()))
    began, images = time.monotonic(), 0
    while time.monotonic() - began < SHARING_SECONDS:
        next(epochs)
        images += 12_800
    rate = images / (time.monotonic() - began)
    print(json.dumps({"images_per_second": rate}))


if __name__ == "__main__":
    train_beside_others(float(sys.argv[1]), float(sys.argv[2]))
