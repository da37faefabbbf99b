"""Train one scale of a study. Every rank runs this program; torchrun starts them.

1 GPU:   python scripts/train.py --config config/config.yaml --study width --scale 1x1
2 GPUs:  torchrun --standalone --nproc-per-node 2 scripts/train.py --config config/config.yaml --study width --scale 1x2

Interrupted, it continues from the checkpoint of the last whole epoch.
"""

import argparse
import logging
import math
import statistics
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from trainyard import failures, programs, slurm
from trainyard.checkpoints import CheckpointStore
from trainyard.config import Config, Scaling, split_scale
from trainyard.configfile import read_config
from trainyard.datasets import Staged
from trainyard.distributed import Group, process_group
from trainyard.errors import UserError
from trainyard.files import digest_of, lock, write_json
from trainyard.loading import load
from trainyard.localcopy import local_copy
from trainyard.telemetry import device_name, launch_time
from trainyard.training import Training, epoch_line
from trainyard.trials import RESULT_VERSION

log = logging.getLogger("train")


def main(arguments: argparse.Namespace) -> None:
    """Join the process group and train."""
    config = read_config(arguments.config)
    programs.section(config, "scaling", arguments.study)
    with failures.word_left(), process_group() as group:
        if not group.leads:
            logging.getLogger().setLevel(logging.WARNING)
        _train(config, arguments, group)


def _train(config: Config, arguments: argparse.Namespace, group: Group) -> None:
    study = config.scaling[arguments.study]
    folder = arguments.results / "scaling" / arguments.study / arguments.scale
    _check_world(arguments.scale, group)
    torch.set_num_threads(study.cpus_per_gpu)
    with ExitStack() as stack:
        if group.leads:
            stack.enter_context(lock(folder / ".lock"))
        staged = Staged(arguments.results / "data" / study.dataset)
        batch_size = _batch_per_rank(study, group)
        copy = stack.enter_context(local_copy(staged, config.data.local))
        if copy.words:
            log.warning("%s", copy.words)  # whichever rank it was
        store = CheckpointStore(folder / "checkpoints" / _identity(study, staged, arguments.scale))
        training = Training(study.train, load(copy.staged, group.device), group, batch_size=batch_size, store=store)
        if len(training.history) == study.train.epochs:
            log.info("trained already: all %d epochs are in %s", study.train.epochs, store.folder)
        elif training.history:
            log.info("continuing after epoch %d, from %s", len(training.history), store.folder)
        log.info(
            "training on %d x %s, global batch %d", group.world_size, device_name(group.device), training.global_batch
        )
        given = slurm.allocation() if group.leads else None
        deadline = given.deadline if given else math.inf
        for row in training.epochs():
            log.info(epoch_line(row, study.train.epochs))
            _stop_before(deadline, training)
        if group.leads:
            _write_results(training, folder, arguments.scale)


def _stop_before(deadline: float, training: Training) -> None:
    """End on all ranks, its checkpoint written, if the next epoch would not end before the leading rank's deadline."""
    last = training.history[-1]
    too_late = last.epoch < training.spec.epochs and time.time() + 1.2 * last.seconds > deadline
    if training.group.total(torch.tensor(float(too_late), device=training.group.device)):
        raise UserError(f"stopped before the end of the walltime, after epoch {last.epoch} of {training.spec.epochs}: "
                        "the same command continues from here, and so do Snakemake's retries")  # fmt: skip


def _check_world(scale: str, group: Group) -> None:
    nodes, gpus = split_scale(scale)
    if group.world_size != nodes * gpus:
        raise UserError(f"scale {scale} needs {nodes * gpus} ranks, but there are {group.world_size}: start it with "
                        f"torchrun --nnodes {nodes} --nproc-per-node {gpus}")  # fmt: skip


def _batch_per_rank(study: Scaling, group: Group) -> int:
    return study.train.batch_size // (group.world_size if study.mode == "strong" else 1)


def _identity(study: Scaling, staged: Staged, scale: str) -> str:
    """Changes with everything that changes the result, so that a checkpoint of another training is never used."""
    spec = study.train.model_dump(mode="json", exclude_defaults=True)
    return digest_of([spec, study.mode, study.retrain, scale, staged.digest, RESULT_VERSION], length=10)


def _write_results(training: Training, folder: Path, scale: str) -> None:
    """Derive the declared outputs from the history, which is durable in the last checkpoint."""
    from trainyard.tables import write_rows  # pandas takes a second to import: not before the first step

    rows = [asdict(row) for row in training.history]
    write_rows(rows, folder / "history.csv")
    write_json(folder / "summary.json", _summary(training, scale))
    total = sum(row.seconds for row in training.history)
    log.info("trained %d epochs in %.1f s", len(rows), total)


def _summary(training: Training, scale: str) -> dict[str, Any]:
    history, group = training.history, training.group
    nodes, gpus_per_node = split_scale(scale)
    last, given = asdict(history[-1]), slurm.allocation()
    kept = ("train_loss", "train_accuracy", "val_loss", "val_accuracy")
    medians = ("images_per_second", "step_ms_p50", "step_ms_p95")
    return {
        "scale": scale,
        "nodes": nodes,
        "gpus": nodes * gpus_per_node,
        "global_batch": training.global_batch,
        "epochs": len(history),
        **{name: last[name] for name in kept},
        **{name: statistics.median(asdict(row)[name] for row in history) for name in medians},
        "train_seconds": sum(row.seconds for row in history),
        "startup_seconds": training.first_step_time - launch_time() if training.first_step_time else None,
        "device": device_name(group.device),
        "threads_per_rank": torch.get_num_threads(),
        "torch": torch.__version__,
        "job": slurm.job_id(),
        "node": slurm.node_name(),
        "node_names": list(given.nodes) if given else [slurm.node_name()],
        "gpu_model": given.gpu_model if given else "",
    }


def _arguments() -> argparse.Namespace:
    example = "python scripts/train.py --config config/config.yaml --study width --scale 1x1"
    parser = programs.parser(
        "Train one scale of a study; start it with torchrun for more than one GPU.", example=example
    )
    parser.add_argument("--study", required=True, metavar="NAME", help="a name in `scaling` of the config")
    parser.add_argument("--scale", required=True, metavar="NxG", help="nodes x GPUs per node")
    return parser.parse_args()


if __name__ == "__main__":
    programs.run(main, _arguments())
