"""Check the training loop on one GPU, and measure its speed.

    export PYTHONPATH=tools:scripts
    python -m gpu_check                     # `correct`, then `speed`, within --minutes
    python -m gpu_check correct             # numerics, host syncs, resuming, out of memory, compile, DDP, programs
    python -m gpu_check speed               # ResNet-50 on 64x64 images, and the small ResNets of the depth sweep
    python -m gpu_check whatif              # a profile, fused models, trainings that share the GPU
    python -m gpu_check one NAME [NAME...]  # single checks; `one` without a name lists them

Without a GPU it ends with exit code 2, unless --toy is given: then everything runs at toy size on the CPU, which tests
only this program. The exit code is 1 if a check fails or has no time left. Missed goals of speed do not change it. All
findings are also in <out>/gpu_check_<what>.json, and as Markdown tables at the end of the output.
"""

import argparse
import datetime
import faulthandler
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from trainyard.training.computation.determinism import fix_cublas_workspace

from gpu_check import (
    compilation,
    correctness,
    endings,
    graphs,
    machine,
    memory,
    objective,
    programs,
    ranks,
    sharing,
    speed,
    whatif,
)
from gpu_check.report import Report
from gpu_check.rig import Rig, free_memory

Check = Callable[[Rig], None]
# In the order in which they run: what is cheap and what others build on comes first.
CORRECT: Final[dict[str, Check]] = {
    "environment": machine.check_environment,
    "ceilings": machine.check_ceilings,
    "telemetry": machine.check_telemetry,
    "data": correctness.check_data,
    "augmentation": correctness.check_augmentation,
    "numerics": correctness.check_numerics,
    "objective": objective.check_objective,
    "bad_loss": correctness.check_bad_loss,
    "fp16": correctness.check_fp16_overflow,
    "resume": correctness.check_resume,
    "stop": endings.check_stop,
    "syncs": correctness.check_host_syncs,
    "share": memory.check_memory_share,
    "mps": sharing.check_mps,
    "one_rank": ranks.check_one_rank,
    "two_ranks": ranks.check_two_ranks,
    "failing_rank": endings.check_failing_rank,
    "launch": programs.check_programs,
    "compile": compilation.check_compile,
    "compiled_sweep": compilation.check_compiled_sweep,
    "graphs": graphs.check_cuda_graphs,
    "graph_fallback": graphs.check_cuda_graph_fallback,
    "memory": memory.check_out_of_memory,
}
SPEED: Final[dict[str, Check]] = {"small": speed.measure_small_resnets, "resnet50": speed.measure_resnet50}
WHATIF: Final[dict[str, Check]] = {
    "layouts": whatif.measure_layouts,
    "profile": whatif.profile_step,
    "fused": whatif.measure_fused_models,
    "shared": whatif.measure_shared_gpu,
}
LONG: Final[dict[str, Check]] = {"auto_share": sharing.measure_auto_share}  # in no group
GROUPS: Final = {"all": CORRECT | SPEED, "correct": CORRECT, "speed": SPEED, "whatif": WHATIF}
ALL: Final = CORRECT | SPEED | WHATIF | LONG
HANG_SECONDS: Final = 30  # after the time limit, a check that hangs ends the program with a stack trace


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks or measurements; returns the exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.what == "one" and not arguments.names:
        print(*ALL, sep="\n")
        return 0
    if not (torch.cuda.is_available() or arguments.toy):
        print("no GPU: nothing was checked. With --toy, everything runs at toy size on the CPU", file=sys.stderr)
        return 2
    fix_cublas_workspace()  # some checks train with deterministic kernels
    seconds = 60 * arguments.minutes
    torch.set_num_threads(1 if arguments.toy else min(8, os.cpu_count() or 1))
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = Report(arguments.out / f"gpu_check_{arguments.what}.json", seconds=seconds)
    rig = Rig(torch.device("cpu") if arguments.toy else torch.device("cuda", 0), report)
    checks = {name: ALL[name] for name in arguments.names} if arguments.what == "one" else GROUPS[arguments.what]
    with _time_limit(seconds + HANG_SECONDS):
        for name, check in checks.items():
            _run(name, check, rig)
    print(f"\n{_title(rig)}\n\n{report.markdown()}\n")
    print(f"{len(report.failed)} checks failed", *report.failed, sep="\n  ")
    return 1 if report.failed else 0


def _title(rig: Rig) -> str:
    if not rig.has_gpu:
        return "At toy size on a CPU: no figure below is a result."
    return f"`make gpu-check` on {rig.gpu_name}, torch {torch.__version__}, {datetime.date.today()}."


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """End the program with a stack trace if the block takes longer, as when a GPU hangs."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _run(name: str, check: Check, rig: Rig) -> None:
    """Run one check; an exception is its failure."""
    if rig.report.remaining_seconds < 0:
        rig.report.skip(name)
        return
    try:
        check(rig)
    except Exception as error:
        traceback.print_exc()
        rig.report.check(name, False, f"{type(error).__name__}: {error}".splitlines()[0])
    free_memory()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=[*GROUPS, "one"], default="all", help="default: all")
    parser.add_argument("names", nargs="*", choices=[*ALL, []], metavar="NAME", help="checks of `one`")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")), metavar="DIR")
    parser.add_argument("--minutes", type=float, default=9.0, help="time limit; what is left then is not run")
    parser.add_argument("--toy", action="store_true", help="toy size on the CPU, to test this program")
    return parser


if __name__ == "__main__":
    sys.exit(main())
