"""Check of own losses, further metrics and averaged weights."""

from typing import Any

import torch

from gpu_check.correctness import LOSS_TOLERANCE
from gpu_check.rig import SMALL, Rig, changed, start, synthetic_images

CHANCE_TOLERANCE = 0.05  # of a metric of 128 images: six of them


def check_objective(rig: Rig) -> None:
    """An epoch with an own loss, a further metric and averaged weights is close to that of a CPU."""
    images: dict[str, Any] = {"count": 640, "val_count": 128, "side": rig.size(16, 8)}
    spec = changed(SMALL, precision="fp32", loss="torch.nn:CrossEntropyLoss", metrics=["top5_accuracy"], ema_decay=0.9)
    devices = rig.device, torch.device("cpu")
    ours, theirs = (next(start(spec, synthetic_images(device, **images)).epochs()) for device in devices)
    loss = abs(ours.val_loss - theirs.val_loss)
    top5 = abs(ours.metrics["val_top5_accuracy"] - theirs.metrics["val_top5_accuracy"])
    seen = f"val loss {ours.val_loss:.5f}, on a CPU {theirs.val_loss:.5f}; top-5 accuracy differs by {top5:.3f}"
    rig.report.check("own loss, metric, average", loss < LOSS_TOLERANCE["fp32"] and top5 < CHANCE_TOLERANCE, seen)
