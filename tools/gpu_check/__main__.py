"""Check the training loop on one GPU, and measure its speed.

    export PYTHONPATH=tools:scripts
    python -m gpu_check                     # `correct`, then `speed`, within --minutes
    python -m gpu_check correct             # numerics, host syncs, resuming, out of memory, compile, DDP, programs
    python -m gpu_check speed               # ResNet-50 on 64x64 images, and the small ResNets of the depth sweep
    python -m gpu_check whatif              # a profile, trainings that share the GPU
    python -m gpu_check one NAME [NAME...]  # single checks
    python -m gpu_check --list              # what each check shows if it passes, and what each column of speed means

It takes --minutes and half a minute at most: a check that runs when the time is up is interrupted, and has failed.
Without a GPU it ends with exit code 2, unless --toy is given: then everything runs at toy size on the CPU, which tests
only this program. The exit code is 1 if a check fails or has no time left. Missed goals of speed do not change it. All
findings are also in <out>/gpu_check_<what>.json, and as Markdown tables at the end of the output.
"""

import argparse
import datetime
import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

import torch
from trainyard.training.numerics import fix_cublas_workspace
from trainyard.training.process_group import single_process

from gpu_check import (
    compilation,
    correctness,
    endings,
    machine,
    memory,
    programs,
    ranks,
    sharing,
    speed,
    whatif,
)
from gpu_check.report import Report, markdown_table
from gpu_check.rig import Rig, first_line, free_memory

Check = Callable[[Rig], None]
# In the order in which they run: what is cheap and what others build on comes first.
CORRECT: Final[dict[str, Check]] = {
    "environment": machine.check_environment,
    "ceilings": machine.check_ceilings,
    "telemetry": machine.check_telemetry,
    "data": correctness.check_data,
    "augmentation": correctness.check_augmentation,
    "numerics": correctness.check_numerics,
    "objective": correctness.check_objective,
    "bad_loss": correctness.check_bad_loss,
    "fp16": correctness.check_fp16_overflow,
    "resume": correctness.check_resume,
    "stop": endings.check_stop,
    "syncs": correctness.check_host_syncs,
    "share": memory.check_memory_share,
    "kept": memory.check_kept_memory,
    "mps": sharing.check_mps,
    "one_rank": ranks.check_one_rank,
    "two_ranks": ranks.check_two_ranks,
    "failing_rank": endings.check_failing_rank,
    "launch": programs.check_programs,
    "compile": compilation.check_compile,
    "compiled_sweep": compilation.check_compiled_sweep,
    "memory": memory.check_out_of_memory,
}
SPEED: Final[dict[str, Check]] = {"small": speed.measure_small_resnets, "resnet50": speed.measure_resnet50}
WHATIF: Final[dict[str, Check]] = {
    "profile": whatif.profile_step,
    "shared": whatif.measure_shared_gpu,
}
GROUPS: Final = {"all": CORRECT | SPEED, "correct": CORRECT, "speed": SPEED, "whatif": WHATIF}
ALL: Final = CORRECT | SPEED | WHATIF
HANG_SECONDS: Final = 20  # after the time limit, until a check that cannot be interrupted ends the program
LAST_SECONDS: Final = 10  # after these, until the program ends without its tables


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks or measurements; returns the exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.names and arguments.what != "one":
        _parser().error(f"names of checks follow `one`, not `{arguments.what}`")
    if arguments.list or (arguments.what == "one" and not arguments.names):
        print(_list())
        return 0
    if not (torch.cuda.is_available() or arguments.toy):
        print("no GPU: nothing was checked. With --toy, everything runs at toy size on the CPU", file=sys.stderr)
        return 2
    fix_cublas_workspace()  # some checks train with deterministic kernels
    seconds = 60 * arguments.minutes
    torch.set_num_threads(1 if arguments.toy else min(8, os.cpu_count() or 1))
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = Report(arguments.out / f"gpu_check_{arguments.what}.json", seconds=seconds)
    # On a GPU, with the allocator and the CPUs that a training chooses.
    rig = Rig(torch.device("cpu") if arguments.toy else single_process().device, report)
    checks = {name: ALL[name] for name in arguments.names} if arguments.what == "one" else GROUPS[arguments.what]
    with _time_limit(rig, seconds + HANG_SECONDS):
        for name, check in checks.items():
            _run(name, check, rig)
    _print_summary(rig)
    return 1 if report.failed else 0


def _list() -> str:
    """The checks with what they show, and the columns of the table of speed, as Markdown."""
    tables = {
        "checks": {name: (check.__doc__ or "").partition("\n\n")[0] for name, check in ALL.items()},
        "columns of speed": speed.COLUMNS,
    }
    return "\n\n".join(
        f"### {title}\n\n{markdown_table([{'name': name, 'meaning': text} for name, text in rows.items()])}"
        for title, rows in tables.items()
    )


def _print_summary(rig: Rig) -> None:
    """Print the tables, and what has failed."""
    failed = rig.report.failed
    print(f"\n{_title(rig)}\n\n{rig.report.markdown()}\n")
    print(f"{len(failed)} checks failed or had no time left", *failed, sep="\n  ", flush=True)


def _title(rig: Rig) -> str:
    if not rig.has_gpu:
        return "At toy size on a CPU: no figure below is a result."
    return f"`make gpu-check` on {rig.gpu_name}, torch {torch.__version__}, {datetime.date.today()}."


@contextmanager
def _time_limit(rig: Rig, seconds: float) -> Iterator[None]:
    """End the program with a stack trace and its tables if the block takes longer, as when a GPU hangs."""
    output = sys.__stderr__ or sys.stderr

    def give_up() -> NoReturn:
        faulthandler.dump_traceback(output)
        rig.report.check(rig.report.running, False, "it hangs: the stack trace says where")
        _print_summary(rig)
        os._exit(1)

    watch = threading.Timer(seconds, give_up)
    watch.daemon = True
    watch.start()
    faulthandler.dump_traceback_later(seconds + LAST_SECONDS, exit=True, file=output)  # if no thread can run
    try:
        yield
    finally:
        watch.cancel()
        faulthandler.cancel_dump_traceback_later()


class _TimeIsUpError(BaseException):
    """The time limit has come; the `except Exception` of a check does not catch it."""


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Raise `_TimeIsUpError` in the block when this time has passed."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise _TimeIsUpError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _run(name: str, check: Check, rig: Rig) -> None:
    """Run one check; an exception is its failure, and so is a check that finds nothing."""
    report = rig.report
    if (seconds := report.remaining_seconds) <= 0:
        report.skip(name)
        return
    before, report.running = report.size, name
    try:
        with _interrupted_after(seconds):
            check(rig)
    except _TimeIsUpError:
        report.check(name, False, "not finished when the time was up")
    except Exception as error:
        traceback.print_exc()
        report.check(name, False, first_line(error))
    if report.size == before:
        report.check(name, False, "the check has found nothing")
    free_memory()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=[*GROUPS, "one"], default="all", help="default: all")
    parser.add_argument("names", nargs="*", choices=[*ALL, []], metavar="NAME", help="checks of `one`")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")), metavar="DIR")
    parser.add_argument("--minutes", type=float, default=8.5, help="time limit; what is left then is not run")
    parser.add_argument("--list", action="store_true", help="print what each check and each column means, and end")
    parser.add_argument("--toy", action="store_true", help="toy size on the CPU, to test this program")
    return parser


if __name__ == "__main__":
    sys.exit(main())
