"""Checks of steps by a CUDA graph: bit-identical to eager steps, and eager where a step cannot be captured."""

from typing import Any

from torch import Tensor
from trainyard.config.train import Augment, Train

from gpu_check.rig import SMALL, Rig, changed, final_parameters, free_memory, start

CASES: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16", "lr": 0.005},
    "adamw": {"precision": "bf16", "optimizer": "adamw", "lr": 0.001},
    "accumulation": {"precision": "bf16", "accumulation": 2, "batch_size": 32},
    "augmented, clipped": {"precision": "bf16", "augment": Augment(crop_padding=2, flip=True), "clip_norm": 1.0},
    "dropout": {"model": "gpu_check.models:dropout", "model_args": {}, "precision": "bf16"},
}


def check_cuda_graphs(rig: Rig) -> None:
    """With deterministic kernels, the weights after two epochs are those of eager steps."""
    for name, options in CASES.items():
        spec = changed(SMALL, epochs=rig.size(2, 1), deterministic=True, **options)
        (eager, _), (graphed, captured) = (_trained(rig, spec, cuda_graphs=wanted) for wanted in (False, True))
        difference = float((eager - graphed).abs().max())
        seen = f"captured: {captured}; largest difference from eager steps {difference:.2g}"
        rig.report.check(f"CUDA graph {name}", difference == 0 and captured == rig.has_gpu, seen)


def check_cuda_graph_fallback(rig: Rig) -> None:
    """A model that waits for the GPU in its forward pass trains eagerly."""
    spec = changed(SMALL, model="gpu_check.models:synchronizing", model_args={}, precision="bf16")
    _, captured = _trained(rig, spec, cuda_graphs=True)
    rig.report.check("CUDA graph, a model that waits", not captured, f"captured: {captured}")


def _trained(rig: Rig, spec: Train, *, cuda_graphs: bool) -> tuple[Tensor, bool]:
    """The parameters after a training, and whether its steps were captured."""
    free_memory()
    trainer = start(spec, rig.images(count=rig.size(2048, 128)), cuda_graphs=cuda_graphs)
    list(trainer.epochs())
    return final_parameters(trainer), trainer.step_graph is not None and trainer.step_graph.is_captured
