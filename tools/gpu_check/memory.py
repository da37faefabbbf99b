"""Checks of GPU memory: too large a micro-batch, and the share of a trial."""

import gc
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from trainyard.config.train import Augment
from trainyard.data.staged import Staged, StagedImageMeta, write_meta
from trainyard.packing import worker_gpu
from trainyard.training.loaders import MappedSplit, load_input_data
from trainyard.training.trainer import Trainer

from gpu_check.rig import SMALL, Rig, changed, free_memory, start

MEMORY_LIMIT_BYTES = 2 * 2**30  # of the 5 GiB or so that the step below needs


def check_out_of_memory(rig: Rig) -> None:
    """With 2 GiB of memory, micro-batches are halved until they fit, eagerly and compiled."""
    if not rig.has_gpu:
        rig.report.inform("out of memory", "needs a GPU")
        return
    data = rig.images(count=8192)
    spec = changed(SMALL, batch_size=8192, precision="bf16")
    torch.cuda.set_per_process_memory_fraction(MEMORY_LIMIT_BYTES / torch.cuda.get_device_properties(0).total_memory)
    try:
        for compiled in (False, True):
            free_memory()
            _check_halving(rig, start(changed(spec, compile=compiled), data))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch._dynamo.reset()


def _check_halving(rig: Rig, trainer: Trainer) -> None:
    loss, micro = next(trainer.epochs()).train_loss, trainer.batch.micro
    passed = micro < trainer.spec.batch_size and math.isfinite(loss)
    name = f"out of memory, compile: {str(trainer.spec.compile).lower()}"
    peak = torch.cuda.max_memory_reserved() / 2**30
    rig.report.check(name, passed, f"micro-batches of {micro}, train loss {loss:.3f}, peak {peak:.1f} GiB")


SHARE = 0.05  # of the memory of the GPU


def check_memory_share(rig: Rig) -> None:
    """Images stay on the GPU only if they fit the share of a trial that shares it."""
    if not rig.has_gpu:
        rig.report.inform("memory share", "needs a GPU")
        return
    share = SHARE * torch.cuda.get_device_properties(0).total_memory
    worker_gpu.limit_gpu_memory(SHARE)
    try:
        with tempfile.TemporaryDirectory() as folder:
            data = load_input_data(black_images(Path(folder), size_bytes=1.2 * share), rig.device)
    except torch.OutOfMemoryError as error:
        rig.report.check("memory share", False, error)
    else:
        kind = type(data.train).__name__
        seen = f"images larger than the share of {share / 2**30:.1f} GiB are in a {kind}"
        rig.report.check("memory share", isinstance(data.train, MappedSplit), seen)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


KINDS: dict[str, dict[str, Any]] = {  # of trainings
    "plain": {},
    "bf16, clipped": {"precision": "bf16", "clip_norm": 1.0},
    "fp16, AdamW": {"precision": "fp16", "optimizer": "adamw"},
    "checkpointed, averaged": {"activation_checkpointing": True, "ema_decay": 0.9},
    "mixed, in parts": {"augment": Augment(mixup=0.2, flip=True), "accumulation": 2},
    "frozen, measured": {"freeze": ["0"], "lr_scale": {"*": 0.5}, "metrics": ["top5_accuracy"]},
}


def check_kept_memory(rig: Rig) -> None:
    """Once garbage is collected, as at the end of a trial, trainings of no kind keep memory that they had."""
    data, batch_size = rig.images(count=512, val_count=64, side=16), rig.size(64, 16)
    kept: dict[str, list[int]] = {name: [] for name in KINDS}
    for _ in range(2):  # the first round loads libraries, and fills caches
        for name, options in KINDS.items():
            trainer = start(changed(SMALL, batch_size=batch_size, **options), data)
            list(trainer.epochs())
            del trainer
            free_memory()
            kept[name].append(torch.cuda.memory_allocated() if rig.has_gpu else _live_tensors())
    grown = {name: later - earlier for name, (earlier, later) in kept.items() if later > earlier}
    unit = "bytes" if rig.has_gpu else "tensors"
    rig.report.check("kept memory", not grown, f"more {unit} in the second round: {grown}" if grown else "none")


def _live_tensors() -> int:
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


def black_images(folder: Path, *, size_bytes: float) -> Staged:
    """A staged dataset in sparse files, which take no space on the disk."""
    shape = (64, 64, 3)
    for split, count in (("train", int(size_bytes) // math.prod(shape)), ("val", 16)):
        np.lib.format.open_memmap(folder / f"{split}-images.npy", mode="w+", dtype=np.uint8, shape=(count, *shape))
        np.lib.format.open_memmap(folder / f"{split}-labels.npy", mode="w+", dtype=np.int64, shape=(count,))
    mean, std = [127.0] * 3, [73.0] * 3
    write_meta(folder, StagedImageMeta(classes=["a", "b"], shape=shape, mean=mean, std=std, counts={}))
    return Staged(folder)
