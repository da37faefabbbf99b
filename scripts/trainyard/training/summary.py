"""The results of a training: `history.csv` and `summary.json`, derived from its last checkpoint."""

import logging
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch

from trainyard.cluster import host, slurm_allocation
from trainyard.cluster.telemetry import gpu_memory, telemetry_summary
from trainyard.config.scaling import repeat_of, split_scale
from trainyard.training.gpu_utilization import count_flops, gpu_peak, gpu_utilization
from trainyard.training.models import gradient_bytes
from trainyard.training.step_timing import device_name, launch_time
from trainyard.training.trainer import Trainer
from trainyard.training.untimed_steps import SteadySteps, WarmUpResult
from trainyard.utils.files import write_json
from trainyard.utils.text import count_of

TRAINING: Final = "the training"  # where the throughput was measured,
REPEATS: Final = "steps after the training, with the same batches"  # if that had too few steps
log = logging.getLogger(__name__)


def write_results(
    trainer: Trainer,
    probe: WarmUpResult | None,
    folder: Path,
    *,
    scale: str,
    steady: SteadySteps | None = None,
    **facts: Any,
) -> None:
    """Write `history.csv` and `summary.json` of a complete training to `folder`.

    `steady` are steps after it, whose times count then. `facts` are further entries of the summary.
    """
    from trainyard.utils.csv_files import write_rows  # imports pandas, which takes a second

    rows = trainer.state.rows
    memory = gpu_memory(folder / "telemetry")
    for each in memory:
        log.info("%s%s", f"{each.node}: " if len({gpu.node for gpu in memory}) > 1 else "", each)
    write_rows(rows, folder / "history.csv")
    measured = _summary(trainer, probe, steady, scale) | telemetry_summary(folder / "telemetry", memory)
    write_json(folder / "summary.json", measured | facts)
    spent = trainer.checkpoints.total_seconds
    total = sum(row.seconds for row in trainer.history) + spent
    log.info("trained %s in %.1f s, %.1f s of it for checkpoints", count_of(len(rows), "epoch"), total, spent)
    if len(rows) < trainer.spec.epochs:
        ended = "ended by patience, %d epochs early: the best %s was in epoch %d"
        log.info(ended, trainer.spec.epochs - len(rows), trainer.spec.metric, trainer.state.best_epoch)


def _summary(trainer: Trainer, probe: WarmUpResult | None, steady: SteadySteps | None, scale: str) -> dict[str, Any]:
    history = trainer.history
    group = trainer.group
    on_gpu = group.device.type == "cuda"
    nodes, gpus_per_node = split_scale(scale)
    last = history[-1].as_row()
    allocation = slurm_allocation.current_allocation()
    kept = ("train_loss", "train_accuracy", "val_loss", "val_accuracy", *history[-1].metrics)
    names = ("images_per_second", "step_ms_p50", "step_ms_p95", "data_wait_fraction", "epoch_start_seconds")
    medians = dict[str, Any]()
    for name in names:
        values = [row.value(name) for row in history]
        measured_values = [value for value in values if value is not None]
        medians[name] = statistics.median(measured_values) if measured_values else None
    measured: dict[str, Any] = {"measured_steps": trainer.steps * len(history), "measured_in": TRAINING}
    if steady:
        times = asdict(steady)
        measured = {"measured_steps": times.pop("steps"), "measured_in": REPEATS}
        medians |= times
    return {
        "scale": scale.partition("/")[0],
        "repeat": repeat_of(scale),
        "nodes": nodes,
        "gpus": nodes * gpus_per_node,
        "global_batch": trainer.batch.images,
        "micro_batch": trainer.batch.micro,
        "accumulation": trainer.batch.accumulation,
        "precision": trainer.precision,
        "epochs": len(history),
        "lr": trainer.spec.lr,
        "best_epoch": trainer.state.best_epoch,
        **{name: last[name] for name in kept},
        **medians,
        **measured,
        "program": "DDP" if group.world_size > 1 else "one process, without DDP",
        "gradient_mib": gradient_bytes(trainer.module) / 2**20,
        "exposed_comm_fraction": probe.exposed_comm_fraction if probe else None,
        "train_seconds": sum(row.seconds for row in history) + trainer.checkpoints.total_seconds,
        "checkpoint_seconds": trainer.checkpoints.total_seconds,
        "startup_seconds": trainer.first_step_time - launch_time() if trainer.first_step_time else None,
        "warmup_seconds": probe.seconds if probe else None,
        **training_utilization(trainer, medians["images_per_second"]),
        # Of tensors of rank 0, in this run.
        "max_memory_allocated_mib": torch.cuda.max_memory_allocated(group.device) / 2**20 if on_gpu else None,
        "device": device_name(group.device),
        "threads_per_rank": torch.get_num_threads(),
        "torch": torch.__version__,
        "job": slurm_allocation.job_id(),
        "node": host.node_name(),
        "node_names": list(allocation.nodes) if allocation else [host.node_name()],
        "gpu_model": allocation.gpu_model if allocation else "",
    }


def training_utilization(trainer: Trainer, images_per_second: float) -> dict[str, Any]:
    """Peak of the GPU and MFU; None on CPUs."""
    group = trainer.group
    data = trainer.data
    if group.device.type != "cuda":
        return dict.fromkeys(("gpu_peak", "tflops_per_gpu", "mfu"))
    flops = count_flops(trainer.spec, shape=data.shape, classes=data.classes, trains=True)
    name = device_name(group.device)
    peak = gpu_peak(name)
    if peak is None:
        log.warning("the peak performance of a GPU named %r is unknown: no MFU", name)
    utilization = gpu_utilization(
        flops, images_per_second=images_per_second, gpus=group.world_size, precision=trainer.precision, peak=peak
    )
    return {"gpu_peak": f"{max(peak.values()):g} TFLOP/s" if peak else "unknown", **utilization}
