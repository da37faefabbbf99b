"""Throughput of ResNet-50 on 64x64 images and of the small ResNets of the depth sweep, in Trainyard's own loop."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from trainyard.config.train import Augment, Train
from trainyard.training import numerics
from trainyard.training.augmentation import Augmenter
from trainyard.training.gpu_utilization import count_flops, gpu_peak, gpu_utilization
from trainyard.training.loaders import InputData
from trainyard.training.sampler import training_batches
from trainyard.training.trainer import Trainer
from trainyard.training.untimed_steps import warm_up

from gpu_check.machine import wait_for
from gpu_check.rig import Rig, changed, cuda_graph_skips, first_line, free_memory, start

GOALS = {"NVIDIA H200": 40_000, "NVIDIA H100 80GB HBM3": 27_000}  # img/s of ResNet-50 in bf16, by the GPU's name
COMPILED_SPEEDUP = 5  # goal for the small ResNets, relative to eager steps
TOY_MODEL = {"model_args": {"blocks": 2, "width": 8}}
HOST_STEPS = 12
COLUMNS = {  # of the table of speed: a row is a training of two or three epochs, without the first one
    "img/s": "training images per second, on random images that are on the GPU unless the row says otherwise; median",
    "goal": "of ResNet-50 in bf16 on an H200 or H100; of a small ResNet with `compile`, five times its eager speed",
    "step p50, p95": "time of a step on the GPU, by CUDA events",
    "host": "time to launch a step while the GPU is idle; close to the step time, a faster GPU does not help, larger "
    "batches and `compile` do",
    "MFU": "the FLOPs of the model at this speed, relative to the peak of the GPU's data sheet",
    "memory": "peak of the memory that tensors took",
    "warm-up": "time to compile, to select kernels and to find the micro-batch",
    "CUDA graphs skipped": "how often torch.compile has left them out; it must be 0",
}


@dataclass(frozen=True)
class Measurement:
    """A training whose throughput is measured."""

    name: str
    spec: Train
    data: InputData
    goal: int | None = None  # images per second
    epochs: int = 3  # the first one does not count
    kernels: Mapping[str, Any] = field(default_factory=dict)  # of `numerics`, in place of its own values


def measure_resnet50(rig: Rig) -> None:
    """ResNet-50 on 64x64 images: the goal, and what changes it."""
    images: dict[str, Any] = {"side": 64, "count": rig.size(50_000, 64), "val_count": 2000, "classes": 200}
    data = rig.images(**images)
    model: dict[str, Any] = rig.size({"model": "resnet50"}, TOY_MODEL)
    spec = Train(**model, precision="bf16", lr=0.05, batch_size=rig.size(1024, 16))
    goal = GOALS.get(rig.gpu_name)
    for batch_size in rig.size((512, 1024), (16,)):
        measure(rig, Measurement(f"ResNet-50, batch {batch_size}", changed(spec, batch_size=batch_size), data, goal))
    augment = Augment(crop_padding=4, flip=True)
    options_by_name: dict[str, dict[str, Any]] = {
        "crop and flip": {"augment": augment},
        "fp16": {"precision": "fp16", "lr": 0.01},
        "compile": {"compile": True},
    }
    for name, options in options_by_name.items():
        measure(rig, Measurement(f"ResNet-50, {name}", changed(spec, **options), data, goal))
    benchmark = {"CUDNN_BENCHMARK": True}
    measure(rig, Measurement("ResNet-50, cudnn.benchmark", spec, data, goal, kernels=benchmark))
    tf32 = changed(spec, precision="tf32", batch_size=rig.size(512, 16))
    measure(rig, Measurement("ResNet-50, tf32, batch 512", tf32, data))
    channels_last = {"CHANNELS_LAST": (*numerics.CHANNELS_LAST, "tf32")}
    measure(rig, Measurement("ResNet-50, tf32, batch 512, channels_last", tf32, data, kernels=channels_last))
    del data
    prefetched = rig.images(**images, prefetched=True)
    measure(rig, Measurement("ResNet-50, prefetched images", spec, prefetched, goal, epochs=2))


def measure_small_resnets(rig: Rig) -> None:
    """The depth sweep and CIFAR-like trials, whose kernels are too short to hide their launches."""
    shapes = rig.size([(8, 1, 64, (4, 20, 80)), (32, 3, 128, (8,))], [(8, 1, 16, (4,))])
    for side, channels, batch_size, depths in shapes:
        data = rig.images(side=side, channels=channels, count=rig.size(60, 4) * batch_size, val_count=batch_size)
        for blocks in depths:
            model_args = {"blocks": blocks, "width": rig.size(32, 8)}
            spec = Train(model="resnet", model_args=model_args, batch_size=batch_size, precision="bf16", lr=0.01)
            name = f"{blocks} blocks, {side}x{side}, batch {batch_size}"
            eager = measure(rig, Measurement(name, spec, data))
            goal = int(COMPILED_SPEEDUP * eager) if rig.has_gpu else None
            measure(rig, Measurement(f"{name}, compile", changed(spec, compile=True), data, goal))


def measure(rig: Rig, what: Measurement, *, table: str = "speed") -> float:
    """Add a row: images per second of all epochs but the first, and what limits them. Returns the images per second."""
    from torch._dynamo.utils import counters

    if rig.report.remaining_seconds < 0:
        rig.report.skip(what.name)
        return 0.0
    free_memory()
    if what.spec.compile:
        torch._dynamo.reset()
        counters.clear()
    try:
        with rig.compiler(), mock.patch.dict(vars(numerics), what.kernels):
            rate, row = _row(rig, what)
    except Exception as error:
        rig.report.check(what.name, False, first_line(error))
        return 0.0
    rig.report.add_row(table, row)
    return rate


def _row(rig: Rig, what: Measurement) -> tuple[float, dict[str, Any]]:
    """Images per second, and the row."""
    if rig.has_gpu:
        torch.cuda.reset_peak_memory_stats()
    trainer = start(changed(what.spec, epochs=what.epochs), what.data)
    warmed = warm_up(trainer)
    rows = list(trainer.epochs())[1:]
    rate = statistics.median(row.images_per_second for row in rows)
    flops = count_flops(what.spec, shape=what.data.shape, classes=what.data.classes, trains=True)
    peak = gpu_peak(rig.gpu_name)
    use = gpu_utilization(flops, images_per_second=rate, gpus=1, precision=trainer.precision, peak=peak)
    reached = f"{'reached' if rate >= what.goal else 'missed'}: {what.goal:,}" if what.goal else ""
    row = {
        "what": what.name,
        "img/s": f"{rate:,.0f}",
        "goal": reached,
        "step p50 (ms)": f"{rows[-1].step_ms_p50:.3f}",
        "p95": f"{rows[-1].step_ms_p95:.3f}",
        "host (ms)": f"{1e3 * host_seconds(rig, trainer):.3f}",
        "MFU": f"{use['mfu']:.1%}" if use["mfu"] else "",
        "memory (GiB)": f"{torch.cuda.max_memory_allocated() / 2**30:.1f}" if rig.has_gpu else "",
        "warm-up (s)": f"{warmed.seconds:.1f}",
        "CUDA graphs skipped": cuda_graph_skips() if what.spec.compile else "",
    }
    return rate, row


def host_seconds(rig: Rig, trainer: Trainer) -> float:
    """Seconds that the host takes to launch one step on an idle GPU: no step can be shorter."""
    spent = []
    size = len(trainer.data.train)
    order = training_batches(size, trainer.batch, rank=0, seed=0, epoch=99)
    augment = Augmenter(trainer.spec.augment, size=size, seed=0, epoch=99)
    batches = trainer.data.train.batches(order)
    trainer.model.train()
    for _ in range(min(HOST_STEPS, trainer.steps)):
        wait_for(rig)
        began = time.perf_counter()
        trainer._step(batches, augment)
        spent.append(time.perf_counter() - began)
    batches.close()
    wait_for(rig)
    return statistics.median(spent)
