"""A short Slurm job that checks a node from inside: its files, Python, torch and Ray, its GPU and network."""

import contextlib
import json
import platform
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from trainyard.cluster import host, slurm_allocation, slurm_queries
from trainyard.doctor.findings import Finding
from trainyard.doctor.sbatch_rehearsal import SbatchRequest
from trainyard.utils.errors import UserError
from trainyard.utils.files import write_json

WALLTIME_MINUTES = 2
VISIBILITY_SECONDS = 60  # until a file that a node wrote is visible here on a network file system
MIN_TMP_GIB = 1  # for Ray's files
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
NONCE, REPORT, LOG = "nonce.json", "report.json", "job.log"  # files of the job


@dataclass
class NodeReport:
    """What the job found on the first of its nodes."""

    node: str
    python: str  # version
    nonce: str = ""  # as the node reads it from the shared folder
    tmp_gib: float = 0.0  # free in /tmp
    driver: str = ""  # NVIDIA's
    allocation: str = ""  # resources of the job
    allocated_gpus: int = 0
    slurm_error: str = ""  # why `allocation` is empty
    other_node: str = ""  # "" if the job has one node
    interface: str = ""  # through which the node reaches the other one; "" if it does not
    torch: str = ""  # version
    cuda: str | None = None  # version that torch is built for
    ray: str = ""  # version
    devices: list[str] = field(default_factory=list)  # GPUs that torch finds
    import_error: str = ""


def probe_nodes(
    requests: list[SbatchRequest], results: Path, *, program: Path, wait_minutes: float, notify: Callable[[str], None]
) -> Iterator[Finding]:
    """Submit the job, wait for its end and yield what it found; a job that does not end in time is cancelled."""
    folder = results / f".doctor-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    try:
        nonce = secrets.token_hex(8)
        write_json(folder / NONCE, nonce)
        job, line = _submit(requests, folder, program)
        notify(f"submitted job {job}: {line}")
        with _cancelled_at_exit(job):
            ended = _wait_for_end(job, folder, wait_minutes * 60, notify)
        if not ended:
            remedy = "see `squeue --me --start`, and allow more time with --wait-minutes"
            yield Finding("node", "unknown", f"job {job} had not ended after {wait_minutes:g} minutes", remedy)
        elif report := _read_report(folder):
            yield from interpret(report, nonce=nonce)
        else:
            output = (folder / LOG).read_text().strip()[-500:] if (folder / LOG).exists() else "(nothing)"
            remedy = "put this folder and this Python on a file system that the nodes share"
            yield Finding("node", "fails", f"job {job} wrote no report into {folder}; its output: {output}", remedy)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _submit(requests: list[SbatchRequest], folder: Path, program: Path) -> tuple[str, str]:
    """Submit a job like the largest request, but short, on at most two nodes, with one GPU and one CPU per node."""
    like = max(requests, key=lambda each: (bool(_one_gpu(each)), each.options.nodes))
    options = like.options
    named = {"account": options.account, "partition": options.partition, "qos": options.qos,
             "constraint": options.constraint, "mem": options.mem, "gres": _one_gpu(like)}  # fmt: skip
    nodes = min(2, max(each.options.nodes for each in requests))
    line = ["sbatch", "--parsable", f"--time={WALLTIME_MINUTES}", f"--nodes={nodes}"]
    line += ["--ntasks-per-node=1", "--cpus-per-task=1"]
    line += [f"--{name}={value}" for name, value in named.items() if value]
    line += ["--job-name=trainyard-doctor", f"--output={folder.absolute() / LOG}"]
    wrapped = f"{sys.executable} {program} --from-inside {folder.absolute()}"
    done = subprocess.run([*line, "--wrap", wrapped], text=True, capture_output=True, check=False)
    if done.returncode:
        raise UserError(f"`{' '.join(line)}` failed: {done.stderr.strip()}")
    return done.stdout.strip().split(";")[0], " ".join(line)


def _one_gpu(request: SbatchRequest) -> str:
    """The value of --gres for one GPU of the requested type; "" for a request without GPUs."""
    return ":".join(["gpu", *request.gpus.split(":")[:-1], "1"]) if request.gpus else ""


@contextlib.contextmanager
def _cancelled_at_exit(job: str) -> Iterator[None]:
    try:
        yield
    finally:
        subprocess.run(["scancel", "--quiet", job], check=False)


def _wait_for_end(job: str, folder: Path, seconds: float, notify: Callable[[str], None]) -> bool:
    """Wait until the job has left the queue, and report each change of its state; False if it has not in time."""
    end, last = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        state = slurm_queries.job_state(job)
        if state not in ("", last):
            notify(f"job {job} is {state.removesuffix(': None')}")
        if not state and (last or (folder / REPORT).exists()):
            return True
        last = state or last
        time.sleep(0.5)
    return False


def write_report(folder: Path) -> None:
    """Write the report about this node into the job's folder; this runs inside the job."""
    report = NodeReport(node=host.node_name(), python=platform.python_version())
    with contextlib.suppress(OSError, ValueError):
        report.nonce = json.loads((folder / NONCE).read_text())
    report.tmp_gib = shutil.disk_usage("/tmp").free / 2**30
    report.driver = NVIDIA_DRIVER.read_text().splitlines()[0] if NVIDIA_DRIVER.exists() else ""
    try:
        allocation = slurm_allocation.current_allocation()
        assert allocation is not None
        report.allocation, report.allocated_gpus = str(allocation), allocation.gpus_per_node
        report.other_node = next((name for name in allocation.nodes if name != report.node), "")
        report.interface = host.source_interface(report.other_node) if report.other_node else ""
    except Exception as error:
        report.slurm_error = f"{type(error).__name__}: {error}"
    try:
        import ray
        import torch

        report.torch, report.cuda, report.ray = torch.__version__, torch.version.cuda, ray.__version__
        report.devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    except Exception as error:
        report.import_error = f"{type(error).__name__}: {error}"
    write_json(folder / REPORT, asdict(report))


def _read_report(folder: Path) -> NodeReport | None:
    """The job's report; None if there is none."""
    end = time.monotonic() + VISIBILITY_SECONDS
    while not (folder / REPORT).exists() and (folder / LOG).exists() and time.monotonic() < end:
        time.sleep(0.5)
    with contextlib.suppress(OSError, ValueError):
        return NodeReport(**json.loads((folder / REPORT).read_text()))
    return None


def interpret(report: NodeReport, *, nonce: str) -> Iterator[Finding]:
    """Yield the findings of a node's report."""
    if report.allocation:
        yield Finding("node", "ok", report.allocation)
    else:
        remedy = "Slurm's programs must be on PATH on the nodes, too"
        yield Finding("node", "fails", f"{report.node}: {report.slurm_error}", remedy)
    if report.nonce == nonce:
        yield Finding("shared files", "ok", f"{report.node} reads and writes here")
    else:
        message = f"{report.node} has another folder at this path"
        yield Finding("shared files", "fails", message, "work on a shared file system")
    verdict: Literal["ok", "fails"] = "ok" if report.tmp_gib > MIN_TMP_GIB else "fails"
    remedy = f"Ray needs {MIN_TMP_GIB} GiB there: set TMPDIR to a local folder with more space"
    yield Finding("local disk", verdict, f"{report.tmp_gib:.1f} GiB free in /tmp", remedy)
    if report.import_error:
        yield Finding("Python", "fails", f"{report.python}: {report.import_error}", "run `make env` again")
        return
    yield Finding("Python", "ok", f"Python {report.python}, torch {report.torch}, Ray {report.ray}")
    yield _interpret_gpus(report)
    if report.allocation:
        yield _interpret_network(report)


def _interpret_gpus(report: NodeReport) -> Finding:
    if not report.allocated_gpus:
        return Finding("GPU", "unknown", "no job of the config requests one", "add a study that uses GPUs")
    if report.devices:
        return Finding("GPU", "ok", f"torch finds {', '.join(report.devices)}; CUDA {report.cuda}")
    if not report.driver:
        message = "Slurm allocated a GPU, but the node has no NVIDIA driver: training would run on its CPU"
        remedy = "ask the site's administrators whether the GPUs of this partition are real"
        return Finding("GPU", "fails", message, remedy)
    build = f"is built for CUDA {report.cuda}" if report.cuda else "is built without CUDA"
    message = f"torch finds no GPU; it {build}, and the node has {report.driver}"
    return Finding("GPU", "fails", message, "install a torch for this driver: see https://pytorch.org/get-started")


def _interpret_network(report: NodeReport) -> Finding:
    if not report.other_node:
        return Finding("network", "ok", "no interface to choose: no job of the config has several nodes")
    if report.interface in ("", "lo"):
        remedy = "set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the interface between the nodes"
        return Finding("network", "fails", f"no interface reaches {report.other_node}", remedy)
    message = f"{report.interface} reaches {report.other_node}; NCCL and gloo use it unless NCCL_SOCKET_IFNAME is set"
    return Finding("network", "ok", message)
