"""Whether the GPU of this process works: tried in a process of its own, which a broken GPU may hang or end."""

import subprocess
from typing import Final

from trainyard.packing import gpu_sharing
from trainyard.utils.import_path import helper_command

CHECK_SECONDS: Final = 120.0  # torch's import included
SIZE: Final = 1024  # rows and columns of the matrices that are multiplied
PATTERN_MIB: Final = 256  # of its memory, written and read back: other trials may have the rest


def checked() -> tuple[bool, str]:
    """Whether this process's GPU is broken, and what a check of it has found, in words."""
    line = helper_command("packing.gpu_health")
    try:
        done = subprocess.run(line, text=True, capture_output=True, check=False, timeout=CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        return True, f"it gave no answer within {CHECK_SECONDS:.0f} s"
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return done.returncode != 0, said[-1] if said else f"it ended with exit code {done.returncode} and without a word"


def look() -> str:
    """Try the GPU; says what was tried.

    Raises:
        RuntimeError: something is wrong with it. CUDA's own errors are RuntimeErrors, too.
    """
    if not gpu_sharing.has_gpu():
        return "there is no GPU to check"
    import torch

    if torch.version.cuda is None:
        return "nothing was checked: torch is built without CUDA"
    if not torch.cuda.is_available():
        raise RuntimeError("there is a GPU, but torch cannot use it")
    from trainyard.training.telemetry import visible_gpus

    with visible_gpus() as gpus:
        faults = [fault for gpu in gpus for fault in gpu.faults()]
    if faults:
        raise RuntimeError("; ".join(faults))
    for number in range(torch.cuda.device_count()):
        _compute(f"cuda:{number}")
    return "no fault found; look for Xid messages in the kernel log of its node"


def _compute(device: str) -> None:
    """Multiply small whole numbers, whose products are exact in any precision, and fill some memory."""
    import torch

    factor = torch.randint(-8, 9, (SIZE, SIZE), generator=torch.Generator().manual_seed(0)).float()
    on_gpu = factor.to(device)
    if not torch.equal((on_gpu @ on_gpu).cpu(), factor @ factor):
        raise RuntimeError("a product of matrices is wrong")
    pattern = torch.arange(PATTERN_MIB * 2**18, dtype=torch.int32, device=device)
    copy = pattern.clone()
    if not torch.equal(copy, pattern) or int(copy[-1]) != copy.numel() - 1:
        raise RuntimeError("its memory does not keep what is written to it")


if __name__ == "__main__":
    print(look())
