"""The GPUs that this process sees, by NVML, and NVIDIA's Multi-Process Service (MPS). torch is not imported.

MPS is for the processes of one job that share its GPUs: without it, kernels of different processes take turns on a GPU;
with it, they run at the same time. A program uses the service whose control daemon listens in the folder
CUDA_MPS_PIPE_DIRECTORY, and runs as usual if none does. https://docs.nvidia.com/deploy/mps/
"""

import contextlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trainyard.cluster import host, stop_request
from trainyard.cluster.node_folders import private_folder
from trainyard.utils.environment_variables import environment_variables
from trainyard.utils.guarded_process import processes_ended
from trainyard.utils.text import describe_exit

CONTROL: Final = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
LONGEST_FOLDER: Final = 60  # the daemon makes Unix sockets there, whose paths have at most 107 characters
START_SECONDS: Final = 60  # for the daemon, and for a first program to use it
QUIT_SECONDS: Final = 5
# Creates a CUDA context, for which the daemon starts the server of MPS; prints the error code of the CUDA driver.
PROBE: Final = """
import ctypes
try:
    cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
except OSError:  # a node without the driver has no GPU to share
    raise SystemExit(print(0))
print(
    cuda.cuInit(0)
    or cuda.cuDeviceGet(ctypes.byref(device), 0)
    or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
)
"""
log = logging.getLogger(__name__)


def hide_gpus() -> None:
    """Let neither this process nor its children use a GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def are_hidden() -> bool:
    """Whether CUDA uses no GPU in this process; NVML lists them all the same."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")


def has_gpu() -> bool:
    """Whether this process can use a GPU."""
    return first_gpu_name() is not None


def first_gpu_name() -> str | None:
    """The model of this process's first GPU; "" if NVML does not tell it, and None without a GPU."""
    import pynvml

    if are_hidden():
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        if not pynvml.nvmlDeviceGetCount():
            return None
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdecimal() else 0)
        return str(pynvml.nvmlDeviceGetName(handle))
    except pynvml.NVMLError:
        return ""
    finally:
        pynvml.nvmlShutdown()


# ---- MPS


@contextlib.contextmanager
def run_mps(wanted: bool) -> Iterator[str]:
    """Run MPS for the programs that the block starts, where this node has it, and log whether it runs.

    Yields why it does not run, or "". The daemon's folder is private, and the daemon ends with the block, also if this
    process is killed.
    """
    if not wanted:
        yield "it is not wanted"
        return
    with contextlib.ExitStack() as running:
        if reason := _obstacle() or _start(running):
            running.close()
            log.info("MPS is not used on %s: %s", host.node_name(), reason)
        else:
            log.info("MPS runs on %s for the trials that share a GPU", host.node_name())
        yield reason


def _obstacle() -> str:
    """Why MPS cannot be started; "" if it can."""
    if PIPES in os.environ:
        return f"{PIPES} is set, so a daemon of yours or of the site serves the trials"
    if shutil.which(CONTROL) is None:
        return f"there is no {CONTROL}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
    by_uuid = all(device.startswith("GPU-") for device in visible)
    if visible != [str(number) for number in range(len(visible))] and not by_uuid:
        # https://docs.nvidia.com/deploy/topics/topic_5_2_1.html: the daemon numbers its GPUs from 0 for its clients.
        return f"CUDA_VISIBLE_DEVICES is {','.join(visible)}, whose numbers mean other GPUs to clients of MPS"
    return ""


def _start(running: contextlib.ExitStack) -> str:
    """Start the daemon, which ends with the stack; returns why it does not run, or ""."""
    folder = running.enter_context(private_folder("ty-mps-", max_path_length=LONGEST_FOLDER))
    variables = {PIPES: str(folder / "pipes"), LOGS: str(folder / "logs")}
    for path in variables.values():
        Path(path).mkdir()
    running.enter_context(environment_variables(variables))
    quit_command = ["/bin/sh", "-c", f"echo quit | timeout {QUIT_SECONDS} {CONTROL}"]
    mark = running.enter_context(processes_ended(folders=[str(folder)], command=quit_command))
    output = folder / "start.log"  # a file, because the daemon may keep its output open
    try:
        with open(output, "w") as file, stop_request.shielded_children():
            subprocess.run(
                [CONTROL, "-d"],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=os.environ | mark,
                timeout=START_SECONDS,
                check=True,
            )
        probe = [sys.executable, "-c", PROBE]
        code = subprocess.run(probe, text=True, capture_output=True, timeout=START_SECONDS, check=False).stdout.strip()
    except subprocess.CalledProcessError as error:
        lines = output.read_text(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else describe_exit(error.returncode)
        return f"{CONTROL} -d: {reason}"
    except subprocess.TimeoutExpired as error:
        return f"no answer within {error.timeout:g} s"
    return "" if code == "0" else f"CUDA does not start with it (error {code or 'unknown'})"
