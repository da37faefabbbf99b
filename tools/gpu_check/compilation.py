"""Checks of torch.compile in a training: with each option, and over many trials in a process."""

from typing import Any, Final

import torch
from trainyard.training.forward_pass import release_compiled_code
from trainyard.training.untimed_steps import warm_up

from gpu_check.rig import SMALL, Rig, changed, cuda_graph_skips, first_line, free_memory, start

TOLERANCE = 0.05  # of the mean loss of an epoch, between compiled and eager kernels in bf16

OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "bf16": {},
    "tf32": {"precision": "tf32"},
    "fp32": {"precision": "fp32"},
    "accumulation": {"accumulation": 2},  # of the same step
    "activation checkpointing": {"activation_checkpointing": True},
    "two epochs, clipped": {"epochs": 2, "clip_norm": 1.0},
    "halved": {},
}


def check_compile(rig: Rig) -> None:
    """A compiled training has the loss of an eager one, with each option."""
    from torch._dynamo.utils import counters

    batch_size = rig.size(128, 16)
    data = rig.images(count=rig.size(1024, 64), val_count=rig.size(256, 16))
    spec = changed(SMALL, batch_size=batch_size, precision="bf16")
    eager = next(start(spec, data).epochs()).train_loss
    for name, options in OPTIONS.items():
        torch._dynamo.reset()
        counters.clear()
        try:
            with rig.compiler():
                micro = {"batch_size": batch_size // options.get("accumulation", 1)}
                trainer = start(changed(spec, compile=True, **micro, **options), data)
                warm_up(trainer)
                if name == "halved":  # CUDA graphs, which the warm-up has captured, must not accumulate gradients
                    trainer.halve_micro_batch()
                loss = next(trainer.epochs()).train_loss
        except Exception as error:
            rig.report.check(f"compile {name}", False, first_line(error))
        else:
            graphs = counters["stats"].get("unique_graphs", 0)
            skipped = cuda_graph_skips()
            seen = f"loss {loss:.4f}, eager {eager:.4f}, graphs compiled {graphs}, CUDA graphs skipped {skipped}"
            passed = graphs > 0 and skipped == 0 and abs(loss - eager) < TOLERANCE
            rig.report.check(f"compile {name}", passed, seen)
    torch._dynamo.reset()


TRIALS = 10  # more than the models that torch.compile by default compiles for one place in the code: 8
GROWTH_MIB = 64  # of the memory held from the second trial on; the first one loads libraries


def check_compiled_sweep(rig: Rig) -> None:
    """In a process that runs one compiled trial after another, the last one is compiled, and memory is returned."""
    from torch._dynamo.utils import counters

    data = rig.images(count=rig.size(256, 32), val_count=rig.size(64, 16), side=16)
    graphs, held_mib = [], []
    for trial in range(1, TRIALS + 1):
        counters.clear()
        spec = changed(SMALL, model="cnn", model_args={"width": trial}, precision="bf16", compile=True)
        with rig.compiler():
            trainer = start(changed(spec, batch_size=rig.size(64, 16)), data)
            warm_up(trainer)
            list(trainer.epochs())
        del trainer
        release_compiled_code()
        free_memory()
        graphs.append(counters["stats"].get("unique_graphs", 0))
        held_mib.append(torch.cuda.memory_reserved() // 2**20 if rig.has_gpu else 0)
    torch._dynamo.reset()
    passed = graphs[-1] > 0 and held_mib[-1] <= held_mib[1] + GROWTH_MIB
    rig.report.check("compiled sweep", passed, f"graphs compiled by trial {graphs}, MiB held after it {held_mib}")
