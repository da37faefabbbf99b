"""Checks of a training in this process: data, numerics, host syncs, non-finite losses, resuming."""

import contextlib
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from trainyard.cluster.stop_request import StopRequest
from trainyard.config.train import Augment, Train
from trainyard.training.augmentation import Augmenter
from trainyard.training.checkpoints import CheckpointStore
from trainyard.training.loaders import LoaderSplit, MappedSplit, ResidentSplit, Split
from trainyard.training.sampler import BatchSizes, training_batches
from trainyard.training.trainer import TrainingInterrupted
from trainyard.utils.errors import Diverged

from gpu_check.models import BAD_STEP
from gpu_check.rig import (
    SMALL,
    CallingSplit,
    Rig,
    changed,
    final_parameters,
    random_images,
    start,
    synthetic_images,
)

AUGMENT = Augment(crop_padding=4, flip=True)


LOSS_TOLERANCE = {"fp32": 2e-3, "tf32": 1e-2, "bf16": 5e-2, "fp16": 3e-2}


def check_numerics(rig: Rig) -> None:
    """The mean loss of an epoch is a CPU's in fp32, within 0.002 (fp32), 0.01 (TF32), 0.05 (bf16), 0.03 (fp16)."""
    images: dict[str, Any] = {"count": 640, "val_count": 128, "side": rig.size(16, 8)}
    device, on_cpu = rig.images(**images), synthetic_images(torch.device("cpu"), **images)
    for optimizer, lr in (("sgd", 0.05), ("adamw", 0.01)):
        augment = Augment(crop_padding=2, flip=True)
        spec = changed(SMALL, optimizer=optimizer, lr=lr, augment=augment, clip_norm=0.3, weight_decay=0.01)
        expected = next(start(changed(spec, precision="fp32"), on_cpu).epochs()).train_loss
        for precision in rig.size(list(LOSS_TOLERANCE), ["bf16"]):
            loss = next(start(changed(spec, precision=precision), device).epochs()).train_loss
            close = abs(loss - expected) < LOSS_TOLERANCE[precision]
            rig.report.check(f"numerics {optimizer} {precision}", close, f"{loss:.5f}, on a CPU {expected:.5f}")


CHANCE_TOLERANCE = 0.05  # of a metric of 128 images: six of them


def check_objective(rig: Rig) -> None:
    """An epoch with an own loss, top-5 accuracy and averaged weights has a CPU's validation loss, within 0.002."""
    images: dict[str, Any] = {"count": 640, "val_count": 128, "side": rig.size(16, 8)}
    spec = changed(SMALL, precision="fp32", loss="torch.nn:CrossEntropyLoss", metrics=["top5_accuracy"], ema_decay=0.9)
    devices = rig.device, torch.device("cpu")
    ours, theirs = (next(start(spec, synthetic_images(device, **images)).epochs()) for device in devices)
    loss = abs(ours.val_loss - theirs.val_loss)
    top5 = abs(ours.metrics["val_top5_accuracy"] - theirs.metrics["val_top5_accuracy"])
    seen = f"val loss {ours.val_loss:.5f}, on a CPU {theirs.val_loss:.5f}; top-5 accuracy differs by {top5:.3f}"
    rig.report.check("own loss, metric, average", loss < LOSS_TOLERANCE["fp32"] and top5 < CHANCE_TOLERANCE, seen)


class _OwnDataset(torch.utils.data.Dataset[tuple[NDArray[np.uint8], int]]):
    """Images as a user's own dataset gives them, one at a time."""

    def __init__(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        return self._images[index], int(self._labels[index])


def check_data(rig: Rig) -> None:
    """Augmented batches are bit-identical to those of a CPU on each of the three paths to the device."""
    images, labels = random_images((1000, 32, 32, 3), 10)
    expected = _augmented(ResidentSplit(images, labels, torch.device("cpu")))
    splits: dict[str, Split] = {
        "resident": ResidentSplit(images, labels, rig.device),
        "prefetched": MappedSplit(images, labels, rig.device),
        "loaded": LoaderSplit(_OwnDataset(images, labels), rig.device, outputs=10),
    }
    for name, split in splits.items():
        pairs = zip(expected, _augmented(split), strict=True)
        same = all(torch.equal(ours, theirs) for ours, theirs in pairs)
        rig.report.check(f"data {name}", same, "bit-identical to a CPU" if same else "differs from a CPU")


def _augmented(split: Split) -> list[Tensor]:
    """The augmented images and the labels of all batches of an epoch, on the CPU."""
    order = training_batches(len(split), BatchSizes(per_rank=96, micro=96), rank=0, seed=0, epoch=1)
    augment = Augmenter(AUGMENT, size=len(split), seed=0, epoch=1)
    batches = list(split.batches(order))
    return [each.cpu() for batch in batches for each in (augment(batch.pixels, batch.indices), batch.labels)]


TORCHVISION = Augment(resized_crop=0.3, flip=True)
DIFFERING = 0.01  # of the bytes; rounded coordinates move a pixel, and some operations amplify it
FINE_TUNED: dict[str, Any] = {"freeze": ["0"], "lr_scale": {"*": 0.5}, "augment": Augment(mixup=0.2, cutmix=1.0)}


def check_augmentation(rig: Rig) -> None:
    """Crops differ from a CPU's by more than 1 in less than 1 % of the bytes; a mixed epoch has a CPU's loss."""
    images = torch.from_numpy(random_images((512, 32, 32, 3), 10)[0])
    augment = Augmenter(TORCHVISION, size=512, seed=0, epoch=1, shape=(32, 32))
    ours, theirs = (augment(images.to(device), torch.arange(512)).cpu().int() for device in (rig.device, "cpu"))
    differing = float(((ours - theirs).abs() > 1).double().mean())
    rig.report.check("augmentation", differing < DIFFERING, f"{differing:.3%} of the bytes differ from a CPU's")
    spec = changed(SMALL, precision="fp32", **FINE_TUNED)
    size: dict[str, Any] = {"count": 640, "val_count": 128, "side": rig.size(16, 8)}
    all_images = rig.images(**size), synthetic_images(torch.device("cpu"), **size)
    loss, expected = (next(start(spec, each).epochs()).train_loss for each in all_images)
    close = abs(loss - expected) < LOSS_TOLERANCE["fp32"]
    rig.report.check("mixed and fine-tuned", close, f"{loss:.5f}, on a CPU {expected:.5f}")


FIRST_WATCHED = 5  # the steps before it allocate memory and select kernels


def check_host_syncs(rig: Rig) -> None:
    """No operation of a step waits for the GPU, or its line is named, by torch's sync debug mode."""
    if not rig.has_gpu:
        rig.report.inform("host syncs", "needs a GPU")
        return
    spec = changed(SMALL, precision="bf16", augment=AUGMENT, clip_norm=1.0, ema_decay=0.99)
    for name in ("resident", "prefetched"):
        data = rig.images(prefetched=name == "prefetched")
        last = len(data.train) // spec.batch_size - 1
        calls = {
            FIRST_WATCHED: lambda: torch.cuda.set_sync_debug_mode("warn"),
            last: lambda: torch.cuda.set_sync_debug_mode("default"),
        }
        watched = replace(data, train=CallingSplit(data.train, calls))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            next(start(spec, watched).epochs())
        found = {f"{Path(each.filename).name}:{each.lineno}" for each in caught if "synchroniz" in str(each.message)}
        rig.report.check(f"host syncs {name}", not found, sorted(found) or f"none in {last - FIRST_WATCHED} steps")


def check_bad_loss(rig: Rig) -> None:
    """A loss that is not finite ends the training with its step, and its update is cancelled on the device."""
    trainer = start(changed(SMALL, model="gpu_check.models:bad_step", model_args={}, precision="bf16"), rig.images())
    try:
        next(trainer.epochs())
    except Diverged as error:
        finite = all(bool(parameter.isfinite().all()) for parameter in trainer.module.parameters())
        rig.report.check(
            "bad loss", f"step {BAD_STEP} " in str(error) and finite, f"{error}; all weights are finite: {finite}"
        )
    else:
        rig.report.check("bad loss", False, "the training went on")


FIRST_SCALE = 2.0**24  # at which gradients overflow, so that the scaler halves it


def check_fp16_overflow(rig: Rig) -> None:
    """The scaler skips the first steps of fp16, as with real networks; the state of the optimizer stays finite."""
    for optimizer in ("sgd", "adamw"):
        spec = changed(
            SMALL, precision="fp16", optimizer=optimizer, lr=0.005, epochs=rig.size(2, 1), batch_size=rig.size(64, 16)
        )
        trainer = start(spec, rig.images(count=rig.size(2048, 320)))
        scaler = trainer.state.scaler
        scaler.load_state_dict(scaler.state_dict() | {"scale": FIRST_SCALE})
        freed = [torch.full((2**20,), 1e4, device=rig.device) for _ in range(64)]  # the allocator returns it again
        del freed
        try:
            loss = list(trainer.epochs())[-1].train_loss
        except Diverged as error:
            rig.report.check(f"fp16 overflow {optimizer}", False, error)
            continue
        states = trainer.state.optimizer.state.values()
        largest = max(float(value.abs().max()) for state in states for key, value in state.items() if key != "step")
        scale = trainer.state.scaler.get_scale()
        seen = f"loss scale {scale:.0f}, train loss {loss:.3f}, largest value in the optimizer's state {largest:.3g}"
        passed = scale < FIRST_SCALE and loss < 3 and 0 < largest < 100
        rig.report.check(f"fp16 overflow {optimizer}", passed, seen)


def check_resume(rig: Rig) -> None:
    """A training that is stopped within an epoch and resumed equals a whole one bit for bit, if `deterministic`."""
    for deterministic in (False, True):
        spec = changed(_RESUMED, deterministic=deterministic)
        whole, again, (resumed, step) = _trained(rig, spec), _trained(rig, spec), _interrupted(rig, spec)
        runs, difference = (float((whole - other).abs().max()) for other in (again, resumed))
        seen = (
            f"resumed after step {step}; largest difference of two runs {runs:.2g}, of a resumed one {difference:.2g}"
        )
        if deterministic:
            rig.report.check("resume, deterministic", step > 0 and runs == difference == 0, seen)
        else:
            rig.report.inform("resume", seen)


STOPPED_AT = 4  # batch at which the training is told to stop, counted from 0
_RESUMED = changed(SMALL, precision="bf16", epochs=2, augment=Augment(flip=True), ema_decay=0.99)


def _trained(rig: Rig, spec: Train) -> Tensor:
    """The parameters after a training."""
    trainer = start(spec, rig.images())
    list(trainer.epochs())
    return final_parameters(trainer)


def _interrupted(rig: Rig, spec: Train) -> tuple[Tensor, int]:
    """The parameters after a training that was interrupted once, and the step after which it continued.

    That is 0 if it did not continue where it was stopped, but from the beginning: it would end with the same numbers.
    """
    data, stop_request = rig.images(), StopRequest()
    stopping = replace(data, train=CallingSplit(data.train, {STOPPED_AT: stop_request.make}))
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder) / "checkpoints")
        first = start(spec, stopping, store=store, stop_request=stop_request)
        with contextlib.suppress(TrainingInterrupted):
            list(first.epochs())
        second = start(spec, data, store=store)
        step = second.state.progress.step
        list(second.epochs())
    return final_parameters(second), step if step == first.state.progress.step else 0
