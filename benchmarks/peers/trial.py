"""`wait` is ./trial.sh as a Python function, for participants whose users write functions: trial.sh says what it does.

A training runs in the calling process: one that runs several trials imports PyTorch once.
"""

import importlib
import os
import socket
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")


def wait(seconds: float, index: int) -> None:
    """Wait, or train if there is train.py (`seconds` is a number of blocks); raises RuntimeError to fail once."""
    folder = Path(os.environ["TRIAL_LOG"]).parent
    _log("start", index)
    try:
        if _removed(folder / f"crash-{index}"):
            time.sleep(seconds / 2)
            raise RuntimeError(f"trial {index} fails once")
        if (folder / "train.py").exists():
            importlib.import_module("train").train(int(seconds), index)
        else:
            time.sleep(seconds)
    except BaseException:
        _log("crash", index)
        raise
    (folder / "done" / str(index)).touch()
    _log("end", index)


def _removed(file: Path) -> bool:
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def _log(event: str, index: int) -> None:
    device = os.environ.get("CUDA_VISIBLE_DEVICES") or "-"
    line = f"{event} {index} {time.time():.6f} {socket.gethostname()} {device} {os.getpid()}\n"
    log = os.open(os.environ["TRIAL_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(log, line.encode())  # one write: the lines of several trials do not mix
    finally:
        os.close(log)
