"""The GPUs of this process, by NVML: torch is not imported."""

import os


def hide_gpus() -> None:
    """Let neither this process nor its children use a GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def are_hidden() -> bool:
    """Whether CUDA uses no GPU in this process; NVML lists them all the same."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")


def has_gpu() -> bool:
    """Whether this process can use a GPU."""
    import pynvml

    if are_hidden():
        return False
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    count = pynvml.nvmlDeviceGetCount()
    pynvml.nvmlShutdown()
    return bool(count)


def first_gpu_name() -> str:
    """The model of this process's first GPU; "" without a GPU."""
    import pynvml

    if are_hidden():
        return ""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ""
    try:
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdecimal() else 0)
        return str(pynvml.nvmlDeviceGetName(handle))
    except pynvml.NVMLError:
        return ""
    finally:
        pynvml.nvmlShutdown()
