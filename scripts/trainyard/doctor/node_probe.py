"""One short Slurm job that looks at a node from inside: its files, its Python, torch and Ray, its GPU and network."""

import contextlib
import json
import platform
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainyard.cluster import host, slurm_allocation, slurm_queries
from trainyard.doctor.checks import Finding
from trainyard.doctor.sbatch_rehearsal import Request
from trainyard.utils.errors import UserError
from trainyard.utils.files import write_json

MINUTES = 2
SEEN_SECONDS = 60  # a network file system may take this long to show here what a node has written
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
ALONE = "nothing to choose: no job of the config has several nodes"


def look_from_inside(
    asked: list[Request], results: Path, *, program: Path, wait_minutes: float, say: Callable[[str], None]
) -> Iterator[Finding]:
    """Submit the job, wait for it, and yield what it found; a job that does not end in time is cancelled."""
    folder = results / f".doctor-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    try:
        write_json(folder / "question.json", {"nonce": secrets.token_hex(8)})
        job, line = _submit(asked, folder, program)
        say(f"submitted job {job}: {line}")
        with _cancelled_at_the_end(job):
            ended = _wait(job, folder, wait_minutes * 60, say)
        if not ended:
            yield Finding("node", "unknown", f"job {job} had not ended after {wait_minutes:g} minutes",
                          "look at `squeue --me --start`, and allow more with --wait-minutes")  # fmt: skip
            return
        yield from _findings(folder, job)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _submit(asked: list[Request], folder: Path, program: Path) -> tuple[str, str]:
    """As the largest of the jobs would be, but for one GPU and CPU per node, on at most two nodes, for a short time."""
    like = max(asked, key=lambda each: (bool(_gpu_type(each)), each.options.nodes))
    options = like.options
    named = {"account": options.account, "partition": options.partition, "qos": options.qos,
             "constraint": options.constraint, "mem": options.mem, "gres": _gpu_type(like)}  # fmt: skip
    nodes = min(2, max(each.options.nodes for each in asked))
    line = ["sbatch", "--parsable", f"--time={MINUTES}", f"--nodes={nodes}", "--ntasks-per-node=1", "--cpus-per-task=1"]
    line += [f"--{name}={value}" for name, value in named.items() if value]
    line += ["--job-name=trainyard-doctor", f"--output={folder.absolute() / 'job.log'}"]
    wrapped = f"{sys.executable} {program} --from-inside {folder.absolute()}"
    done = subprocess.run([*line, "--wrap", wrapped], text=True, capture_output=True, check=False)
    if done.returncode:
        raise UserError(f"`{' '.join(line)}` failed: {done.stderr.strip()}")
    return done.stdout.strip().split(";")[0], " ".join(line)


def _gpu_type(request: Request) -> str:
    """One GPU of the type that a job asks for, in the words of --gres; "" for a job without."""
    return ":".join(["gpu", *request.gpus.split(":")[:-1], "1"]) if request.gpus else ""


@contextlib.contextmanager
def _cancelled_at_the_end(job: str) -> Iterator[None]:
    try:
        yield
    finally:
        subprocess.run(["scancel", "--quiet", job], check=False)


def _wait(job: str, folder: Path, seconds: float, say: Callable[[str], None]) -> bool:
    """Until the job has left the queue; tells each change of its state."""
    end, last = time.monotonic() + seconds, None
    while time.monotonic() < end:
        state = slurm_queries.job_state(job)
        if state != last and state:
            say(f"job {job} is {state.removesuffix(': None')}")
        if not state and (last is not None or (folder / "answer.json").exists()):
            return True
        last = state if state else last
        time.sleep(0.5)
    return False


def look(folder: Path) -> None:
    """On the node: write down what is here, for `_findings`."""
    answer: dict[str, Any] = {"node": host.node_name(), "python": platform.python_version()}
    with contextlib.suppress(OSError, ValueError):
        answer["nonce"] = json.loads((folder / "question.json").read_text())["nonce"]
    answer["tmp_gib"] = shutil.disk_usage("/tmp").free / 2**30
    answer["driver"] = NVIDIA_DRIVER.read_text().splitlines()[0] if NVIDIA_DRIVER.exists() else ""
    try:
        given = slurm_allocation.current_allocation()
        assert given is not None
        answer["given"], answer["gpus_given"] = str(given), given.gpus_per_node
        others = [name for name in given.nodes if name != answer["node"]]
        answer["interface"] = [others[0], host.source_interface(others[0])] if others else []
    except Exception as error:
        answer["slurm_error"] = f"{type(error).__name__}: {error}"
    try:
        import ray
        import torch

        answer |= {"torch": torch.__version__, "cuda": torch.version.cuda, "ray": ray.__version__}
        answer["devices"] = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    except Exception as error:
        answer["import_error"] = f"{type(error).__name__}: {error}"
    write_json(folder / "answer.json", answer)


def _findings(folder: Path, job: str) -> Iterator[Finding]:
    """What the node's answer means."""
    question, answer = json.loads((folder / "question.json").read_text()), _answer(folder)
    if answer is None:
        log = folder / "job.log"
        said = log.read_text().strip()[-500:] if log.exists() else "(nothing)"
        yield Finding("node", "fails", f"job {job} has left no answer in {folder}; it said: {said}",
                      "the nodes must see this folder and this Python: keep both on a shared file system")  # fmt: skip
        return
    yield from describe(answer, nonce=question["nonce"])


def _answer(folder: Path) -> dict[str, Any] | None:
    end = time.monotonic() + SEEN_SECONDS
    while not (folder / "answer.json").exists() and (folder / "job.log").exists() and time.monotonic() < end:
        time.sleep(0.5)
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads((folder / "answer.json").read_text())
        return found
    return None


def describe(answer: dict[str, Any], *, nonce: str) -> Iterator[Finding]:
    """The findings of a node's answer."""
    node = answer["node"]
    yield (
        Finding("node", "ok", answer["given"])
        if "given" in answer
        else Finding(
            "node", "fails", f"{node}: {answer['slurm_error']}", "Slurm's programs must be on PATH on the nodes, too"
        )
    )
    yield (
        Finding("shared files", "ok", f"{node} reads and writes here")
        if answer.get("nonce") == nonce
        else Finding(
            "shared files", "fails", f"{node} sees another folder under this name", "work on a shared file system"
        )
    )
    yield Finding("local disk", "ok" if answer["tmp_gib"] > 1 else "fails", f"{answer['tmp_gib']:.1f} GiB free in /tmp",
                  "Ray needs some room there: set TMPDIR to a local folder with more")  # fmt: skip
    if "import_error" in answer:
        yield Finding("Python", "fails", f"{answer['python']}: {answer['import_error']}", "run `make env` again")
        return
    versions = f"Python {answer['python']}, torch {answer['torch']}, Ray {answer['ray']}"
    yield Finding("Python", "ok", versions)
    yield _gpus(answer)
    if "interface" in answer:
        yield _interface(answer["interface"])


def _gpus(answer: dict[str, Any]) -> Finding:
    given, devices = answer.get("gpus_given", 0), answer["devices"]
    if not given:
        return Finding("GPU", "unknown", "no job of the config asks for one")
    if devices:
        return Finding("GPU", "ok", f"torch sees {', '.join(devices)}; CUDA {answer['cuda']}")
    if not answer["driver"]:
        return Finding("GPU", "fails", "Slurm gave a GPU, but the node has no NVIDIA driver: its CPU would train",
                       "ask the site's administrators whether the GPUs of this partition are real")  # fmt: skip
    built = "is built without CUDA" if not answer["cuda"] else f"is built for CUDA {answer['cuda']}"
    return Finding("GPU", "fails", f"torch sees no GPU; it {built}, and the node has {answer['driver']}",
                   "install a torch for this driver: see https://pytorch.org/get-started")  # fmt: skip


def _interface(found: list[str]) -> Finding:
    if not found:
        return Finding("network", "ok", ALONE)
    other, name = found
    if not name or name == "lo":
        return Finding("network", "fails", f"no interface leads to {other}", "set NCCL_SOCKET_IFNAME and "
                       "GLOO_SOCKET_IFNAME to the one between the nodes")  # fmt: skip
    return Finding(
        "network", "ok", f"{name} leads to {other}; NCCL and gloo will use it unless NCCL_SOCKET_IFNAME is set"
    )
